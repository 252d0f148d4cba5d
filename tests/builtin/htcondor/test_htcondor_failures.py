"""Random failures of condor_history, one after the other: every job is accounted for once, whatever happens."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import CommandFailed, Produced
from tests.builtin.htcondor.history_player import EPOCH, Player
from tests.builtin.htcondor.test_htcondor_collecting import FEWEST_READ

NOW = datetime.fromtimestamp(EPOCH, UTC)
SCHEDDS: Sequence[str] = ("s1", "s2")

FAULTS: st.SearchStrategy[Mapping[str, Any]] = st.one_of(
    st.just({}),
    st.just({"old": True}),
    st.just({"fail": True}),
    st.fixed_dictionaries({"cap": st.integers(2, 12), "old": st.booleans()}),
    st.fixed_dictionaries({"cut": st.floats(0, 1), "exit": st.sampled_from([0, 0, 1])}),
    st.fixed_dictionaries({"lines": st.integers(0, 8)}),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("jobs"), st.sampled_from(SCHEDDS), st.integers(1, 6), st.integers(0, 30)),
        st.tuples(st.just("rotate"), st.sampled_from(SCHEDDS), st.integers(0, 3)),
        st.tuples(st.just("run"), st.fixed_dictionaries(dict.fromkeys(SCHEDDS, FAULTS))),
        st.tuples(st.just("killed"), st.integers(0, 3)),
        st.tuples(st.just("reinstalled"), st.sampled_from(SCHEDDS)),
    ),
    max_size=25,
)


class Scenario:
    """A pool, a collector, and what must come of both."""

    def __init__(self, folder: Path, output: str) -> None:
        self.pool = Player(folder)
        self.expected: list[str] = []
        self.unread: dict[str, int] = dict.fromkeys(SCHEDDS, 0)
        self.clusters: dict[str, int] = dict.fromkeys(SCHEDDS, 0)
        self.clock = EPOCH
        options = {"schedd_names": SCHEDDS, "output": output, "earliest_datetime": NOW}
        plain = [{"name": "Cores", "key": "CpusProvisioned"}]  # needs no process that evaluates, in any way of output
        self.config = HTCondorConfig.model_validate({**options, "components": plain})
        self.context = FakeCollectorContext(moment=NOW, commands=self.play)

    def play(self, argv: Sequence[str]) -> bytes:
        printed, complaint, code = self.pool.run(argv[1:])
        if code:
            raise CommandFailed(complaint)
        return printed.encode()

    def jobs(self, schedd: str, count: int, days_in_queue: int) -> None:
        for _ in range(count):
            self.clock += 1
            self.clusters[schedd] += 1
            end = max(self.clock - days_in_queue * 86_400, EPOCH)
            times = {"end": end, "QDate": self.clock}
            name = f"{schedd}#{self.clusters[schedd]}.0#{self.clock}"
            self.expected.append(self.pool.add(schedd, self.clusters[schedd], GlobalJobId=name, **times))
        self.unread[schedd] += count

    def rotate(self, schedd: str, more: int) -> None:
        """HTCondor forgets old ads; what nobody has read yet would be lost for everybody."""
        self.pool.rotate(schedd, self.unread[schedd] + more)

    def reinstalled(self, schedd: str) -> None:
        self.pool.rotate(schedd, self.unread[schedd])
        self.clusters[schedd] = 0

    async def run(self, faults: Mapping[str, Mapping[str, Any]]) -> bool:
        self.pool.disturb(**faults)
        try:
            await self.context.keep(HTCONDOR.collect(self.config, self.context))
        except CommandFailed:
            self._note_progress()
            return False
        self._note_progress()
        return True

    def _note_progress(self) -> None:
        got = set(self.records())
        for schedd in SCHEDDS:
            unread = [name for name in self.expected if name.startswith(schedd) and f"htcondor-{name}" not in got]
            oldest = min((self.expected.index(name) for name in unread), default=len(self.expected))
            self.unread[schedd] = sum(name.startswith(schedd) for name in self.expected[oldest:])

    async def killed(self, after: int) -> None:
        """The daemon dies between two batches."""
        self.pool.disturb()
        batches: Any = HTCONDOR.collect(self.config, self.context)
        for _ in range(after):
            try:
                batch = await anext(batches)
            except (StopAsyncIteration, CommandFailed):
                break
            self.context.kept.append(batch)
            self.context.remembered.update(batch.seen)
            self.context.checkpoint = batch.checkpoint or self.context.checkpoint
        await batches.aclose()
        self._note_progress()

    def records(self) -> list[str]:
        return [
            one.record.record_id for batch in self.context.kept for one in batch.records if isinstance(one, Produced)
        ]

    async def live(self, events: Sequence[tuple[Any, ...]]) -> None:
        await self.run({})
        for name, *arguments in events:
            self.context.moment += timedelta(minutes=15)
            outcome = getattr(self, name)(*arguments)
            if outcome is not None:
                await outcome
        self.jobs("s1", 1, 0)
        self.jobs("s2", 1, 0)
        assert await self.run({}), "without a fault a run must succeed"
        assert await self.run({})


@pytest.mark.parametrize("output", ["separated", "json", "jsonl"])
def test_no_job_is_lost_or_doubled(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEWEST_READ, 2)  # no schedd of the pool has a lower limit

    @settings(max_examples=40, deadline=None)
    @given(EVENTS)
    def check(events: Sequence[tuple[Any, ...]]) -> None:
        with TemporaryDirectory() as folder:
            world = Scenario(Path(folder), output)
            anyio.run(world.live, events)
            assert sorted(world.records()) == sorted(f"htcondor-{name}" for name in world.expected)

    check()
