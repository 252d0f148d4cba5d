"""Two daemons write one lake and are killed at any step, while records change and stores are restored.

After each kill the sums of each store are those of a plain ledger: nothing is lost and nothing counts twice.
LAKE_KILLS says how many kills there are.
"""

import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import msgspec
import pytest
import stamina

from auditord.errors import StoreUnavailable
from auditord.lake.syncing import verify
from auditord.lake.table import LakeTable
from auditord.lake.writing import month_number
from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    RecordUpdate,
)
from auditord_hookspecs.wire import encode_record
from tests.integration.lake import killed
from tests.integration.lake.killed import opened, run
from tests.integration.lake.lake_rows import rows
from tests.s3_server import s3_server
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

T = TypeVar("T")

KILLS: Final = int(os.environ.get("LAKE_KILLS", "4"))
BETWEEN_RESTORES: Final = 10
START: Final = datetime(2024, 1, 15, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
SLURM: Final = Provenance(START, "task:slurm")
MONTH: Final = month_number(START) + 3
QUERIES: Final = (
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.MONTH), MetaValue("site_id")), usage=(ComponentUsage("Cores"),)),
    AggregateQuery(by=(MetaValue("project"),), usage=(ComponentUsage("Cores"),)),
)


def job(number: int, *, is_open: bool = False) -> Record:
    """Records of half a year, over and over."""
    start = START + (number * 20 % 4_400) * HOUR
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 3}",), "user_id": (f"user-{number % 7}",)}
    meta["project"] = ("p", "q")[: number % 3]
    record = Record(f"job-{number:05}", start, (Component("Cores", number, ()),), start + HOUR, meta)
    return msgspec.structs.replace(record, stop_time=None) if is_open else record


class Daemon:
    """A store, what it must have, and its part of the lake.

    Args:
        name: in the lake.
        lake: folder of the lake.
        url: of the store.
    """

    def __init__(self, name: str, lake: Path, url: str) -> None:
        self.name = name
        self.ledger: dict[str, Record] = {}
        self._lake = lake
        self._url = url
        self._made = 0
        self._saved: dict[str, Record] | None = None

    def opened(self) -> "_Opened":
        """The store, and the lake."""
        return opened(self._lake, self.name, self._url)

    @property
    def is_saved(self) -> bool:
        """True if there is a backup."""
        return self._saved is not None

    def started(self, step: int, *, keeps: bool) -> "subprocess.Popen[bytes]":
        """A process that syncs and releases, and is killed at a step.

        Args:
            step: the number of the step.
            keeps: whether snapshots stay for a day, as a backup of any daemon needs; else for two seconds.
        """
        keep = "86400" if keeps else "2"
        return subprocess.Popen(
            [sys.executable, killed.__file__, str(self._lake), self.name, self._url, str(MONTH), str(step)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LAKE_TEST_KEEP": keep},
        )

    async def change(self, store: RecordStore, random: Random) -> None:
        """New records, open ones, closes, corrections, deletions and redactions."""
        new = [job(self._made + number, is_open=number % 4 == 0) for number in range(12)]
        self._made += len(new)
        await persist(lambda: store.add_all(new, SLURM, Duplicates.SAME_RUN, atomic=True))
        self.ledger |= {each.record_id: each for each in new}
        for _ in range(6):
            stop = START + random.randrange(5_000) * HOUR
            if (record := self._any(random)) is not None:
                update = RecordUpdate(record.record_id, (), stop)
                assert await persist(partial(store.stop, update, SLURM))
                self.ledger[record.record_id] = msgspec.structs.replace(record, stop_time=stop)
        if (wrong := self._any(random)) is not None:
            amendment = Amendment(Action.DELETE, encode_record(wrong), None, "wrong")
            await persist(lambda: store.amend([amendment], SLURM))
            del self.ledger[wrong.record_id]
        if (named := self._any(random)) is not None:
            await persist(lambda: store.redact([named.record_id], ["user_id"]))
            meta = {key: values for key, values in (named.meta or {}).items() if key != "user_id"}
            self.ledger[named.record_id] = msgspec.structs.replace(named, meta=meta)

    def _any(self, random: Random) -> Record | None:
        return self.ledger.get(f"job-{random.randrange(max(1, self._made)):05}")

    def save(self) -> None:
        """Back up the store, which is a file."""
        file = Path(self._url.removeprefix("sqlite://"))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(f"{file}.saved")) as target:
            source.backup(target)
        self._saved = dict(self.ledger)

    def restore(self) -> None:
        """Put the backup back, if there is one."""
        if self._saved is None:
            return
        file = Path(self._url.removeprefix("sqlite://"))
        for path in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
            path.unlink(missing_ok=True)
        Path(f"{file}.saved").rename(file)
        self.ledger, self._saved = self._saved, None


_Opened = killed.Opened


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call, as soon as the lake, which others write, can be read."""
    async for attempt in stamina.retry_context(on=StoreUnavailable, attempts=None, timeout=60.0, wait_max=1.0):
        with attempt:
            return await call()
    raise AssertionError("the last attempt returns or raises")


def ended(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """The number of those that were killed."""
    for process in processes:
        _, output = process.communicate(timeout=250)
        # Two that make the catalog at the same time, one of which is killed, or a lock that outlives its holder.
        known = b"StoreUnavailable" in output or b"LakeOvertaken" in output or b"LakeMoved" in output
        assert process.returncode in {0, -9} or known, output.decode()
    return sum(process.returncode == -9 for process in processes)


async def check_sums(daemon: Daemon, store: RecordStore) -> None:
    """The sums are those of the ledger."""
    for query in QUERIES:
        assert await persist(partial(store.aggregate, query)) == aggregate_records(daemon.ledger.values(), query)


async def check_rows(daemon: Daemon, store: RecordStore, table: LakeTable) -> None:
    """Sync and release the rest: the lake has what the ledger has, and what is released is there."""
    await run(store, table, daemon.name, MONTH)
    wanted = {record_id: encode_record(each).decode() for record_id, each in daemon.ledger.items()}
    assert rows(table, daemon.name) == wanted
    verified = await verify(store, table, daemon.name)
    assert (verified.findings, (await store.list_released()).recalled) == ([], frozenset())
    await check_sums(daemon, store)


@pytest.fixture(params=["files", "object store"])
def kills_wanted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many; half of them in an object store, whose server takes its time."""
    if request.param == "files":
        yield KILLS
        return
    with s3_server() as server:
        monkeypatch.setenv("LAKE_TEST_S3", server.endpoint)
        yield KILLS // 2


@asynccontextmanager
async def both(daemons: Sequence[Daemon]) -> AsyncGenerator[Sequence[tuple[Daemon, RecordStore, LakeTable]], None]:
    one, other = daemons
    async with one.opened() as (store, table), other.opened() as (other_store, other_table):
        yield [(one, store, table), (other, other_store, other_table)]


@pytest.mark.timeout(7_200)
async def test_killed_anywhere_nothing_is_lost_and_nothing_counts_twice(
    tmp_path: Path, new_postgres_url: Callable[[], str], kills_wanted: int
) -> None:
    random, kills, lake = Random(4711), 0, tmp_path / "lake"  # noqa: S311 no secret
    a = Daemon("a", lake, f"sqlite://{tmp_path / 'a.db'}")
    daemons = [a, Daemon("b", lake, new_postgres_url())]
    async with both(daemons) as all_opened:
        for daemon, store, _ in all_opened:
            for _ in range(10):
                await daemon.change(store, random)
    restores, is_last = 0, False
    while not is_last:
        async with both(daemons) as all_opened:
            is_round = False
            while not is_round:
                processes = [daemon.started(random.randint(1, 220), keeps=a.is_saved) for daemon in daemons]
                for daemon, store, _ in all_opened:  # while they sync
                    await daemon.change(store, random)
                kills += ended(processes)
                for daemon, store, _ in all_opened:
                    await check_sums(daemon, store)
                is_last = kills >= kills_wanted
                is_round = is_last or kills // BETWEEN_RESTORES > restores
            if is_last or restores % 2:
                for each in all_opened:
                    await check_rows(*each)
        restores += 1
        if not is_last:
            a.restore() if restores % 2 == 0 else a.save()
        print(f"{kills} kills, {[len(each.ledger) for each in daemons]} records", flush=True)  # noqa: T201
