"""Whatever is interrupted, repeated or brought by two ways: in the end every run of every job is stored exactly once.

A source of jobs, the spool and the store are taken through random histories. A crash forgets everything that is not on
the disk, between any two steps of collecting and sending.
"""

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.ingest import StoreSink
from auditord.spool import Queued, Spool
from auditord.store import Duplicates
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord_hookspecs import Batch, Close, Component, Insert, Produced, Provenance, Record, RecordQuery
from auditord_hookspecs.wire import decode_record

NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
PROVENANCE: Final = Provenance(NOW)
SENDERS: Final = ("local",)
HOUR: Final = timedelta(hours=1)


def run_of(job: int, start: datetime) -> Produced:
    """A run that is over, as a collector makes it: another run of the job's id has another start."""
    components = (Component("Cores", start.hour + 1, ()),)
    record = Record(f"job-{job}", start, components, start + HOUR, {"site_id": ("A",)})
    return Produced(record, f"job-{job}-{int(start.timestamp())}")


# Twelve runs in the order of their ends; the ids 0, 1, 2 are recycled twice.
SOURCE: Final = [run_of(number % 3 if number % 2 else number, NOW + number * HOUR) for number in range(12)]
ONCE_ONLY: Final = [run for run in SOURCE if sum(run.record.record_id == each.record.record_id for each in SOURCE) == 1]


class History:
    """The history so far, and the memory of the process."""

    def __init__(self, spool: Spool, store: RecordStore) -> None:
        self.spool = spool
        self.store = store
        self.sink = StoreSink(store, lambda: NOW)
        self.claimed: Sequence[Queued] = ()

    async def collect(self, many: int, overlap: int) -> None:
        """Go on from the checkpoint; what lies shortly before it is read again."""
        reached = await self.spool.checkpoint("slurm") or 0
        end = min(reached + many, len(SOURCE))
        await self.spool.enqueue("slurm", Batch(SOURCE[max(reached - overlap, 0) : end], checkpoint=end), SENDERS)

    async def collect_again(self, first: int, many: int, *, replace: bool) -> None:
        """A period that somebody asks for, with or without ``--replace``."""
        batch = Batch(SOURCE[first : first + many])
        await self.spool.enqueue("slurm", batch, SENDERS, "replace" if replace else "insert")

    async def collect_running(self, number: int) -> None:
        """The open record of a job that runs; some are closed by an update, whatever is queued before it."""
        open_ = msgspec.structs.replace(ONCE_ONLY[number].record, stop_time=None)
        await self.spool.enqueue("slurm", Batch([open_]), SENDERS)
        if number % 2 and (stop := ONCE_ONLY[number].record.stop_time):
            await self.spool.accept([Close(open_.record_id, stop)], PROVENANCE, SENDERS)

    async def post(self, number: int, *, store_is_away: bool) -> None:
        """A client brings a record that a collector finds as well."""
        record = ONCE_ONLY[number].record
        if store_is_away:
            await self.spool.accept([Insert(record)], PROVENANCE, SENDERS)
        else:
            await self.store.add(record, PROVENANCE, Duplicates.SAME_RUN)

    async def claim(self, many: int) -> None:
        self.claimed = await self.spool.claim("local", many)

    async def deliver(self, many: int) -> None:
        """Send some of what was claimed; the process may not live to settle it."""
        assert await self.sink.deliver([one.entry for one in self.claimed[:many]]) == {}

    async def settle(self) -> None:
        """Send all that was claimed, and forget it."""
        await self.deliver(len(self.claimed))
        await self.spool.settle("local", [one.entry_id for one in self.claimed], {})
        self.claimed = ()

    async def finish(self) -> None:
        """In the end everything is read, and everything is sent."""
        self.claimed = ()
        await self.collect(len(SOURCE), 0)
        await self.claim(1_000)
        await self.settle()


small = st.integers(0, 6)
STEPS = st.one_of(
    st.tuples(st.just("collect"), small, small),
    st.tuples(st.just("collect_again"), small, st.integers(0, len(SOURCE)), st.booleans()),
    st.tuples(st.just("collect_running"), st.integers(0, len(ONCE_ONLY) - 1)),
    st.tuples(st.just("post"), st.integers(0, len(ONCE_ONLY) - 1), st.booleans()),
    st.tuples(st.just("claim"), small),
    st.tuples(st.just("deliver"), small),
    st.tuples(st.just("settle")),
    st.tuples(st.just("crash")),
)


async def live(folder: Path, steps: Sequence[tuple[object, ...]]) -> list[Record]:
    """Go through a history, to its end; what is stored then."""
    stack = AsyncExitStack()
    history = await begin(stack, folder)
    for name, *arguments in [*steps, ("crash",)]:
        if name == "crash":
            await stack.aclose()
            history = await begin(stack, folder)
        else:
            await step(history, str(name), arguments)
    async with stack:
        await history.finish()
        assert await history.spool.quarantine_summaries() == []
        assert (await history.spool.statistics()).queues == {}
        assert (await history.store.counts()).differences == 0
        async with history.store.stream(RecordQuery()) as pages:
            return [decode_record(text) async for page in pages for text in page]


async def begin(stack: AsyncExitStack, folder: Path) -> History:
    spool = await stack.enter_async_context(Spool.opened(folder, lambda: NOW))
    store = await stack.enter_async_context(open_store(f"sqlite://{folder}/records.db", counted_keys=()))
    return History(spool, store)


async def step(history: History, name: str, arguments: Sequence[object]) -> None:
    match name, arguments:
        case "collect_again", (int(first), int(many), bool(replace)):
            await history.collect_again(first, many, replace=replace)
        case "post", (int(number), bool(away)):
            await history.post(number, store_is_away=away)
        case _:
            await getattr(history, name)(*arguments)


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_every_run_is_stored_exactly_once(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stored = anyio.run(live, Path(folder), steps)
    assert len({record.record_id for record in stored}) == len(stored) == len(SOURCE)
    for record in stored:
        (run,) = [each for each in SOURCE if each.record.start_time == record.start_time]
        assert record.record_id in {run.record.record_id, run.alternate_id}
        assert msgspec.structs.replace(record, record_id=run.record.record_id) == run.record
