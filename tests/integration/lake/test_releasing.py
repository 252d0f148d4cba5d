"""Records that only the lake has count as ever, stay known, and come back when they are changed."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.io.pyarrow import PyArrowFile

from auditord.client.query_string import matches
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake import syncing, writing
from auditord.lake import table as tables
from auditord.lake.catalog import LakeFileIO
from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.queries import LakeReader
from auditord.lake.syncing import sync, verify
from auditord.lake.table import LakeMoved, LakeTable
from auditord.lake.writing import month_number
from auditord.store import Action, Amended, Amendment, Duplicates, Provenance, Verdict
from auditord.store.merging import place_of
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    RecordQuery,
    RecordUpdate,
    Score,
)
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
    IdEquals,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    Order,
    PlaceCompares,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.wire import encode_record
from tests.contract.store.feeds import settled
from tests.contract.store.test_aggregates import QUERIES, RECORDS
from tests.contract.store.test_rollups import folded
from tests.integration.lake.killed import LOG, lake_in, opened, run
from tests.integration.lake.lake_rows import rows
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Opened: TypeAlias = Callable[[Path], AbstractAsyncContextManager[tuple[RecordStore, LakeTable]]]

EXAMPLES: Final = int(os.environ.get("RELEASE_EXAMPLES", "4"))
START: Final = datetime(2024, 1, 15, tzinfo=UTC)
DAY: Final = timedelta(days=1)
SENT: Final = Provenance(START + 400 * DAY, "task:slurm", "agent")
ALICE: Final = Provenance(START + 401 * DAY, "user:alice")
BY_MONTH: Final = AggregateQuery(
    by=(CalendarPeriod(CalendarUnit.MONTH), MetaValue("site_id", "site")),
    usage=(ComponentUsage("Cores", ("HEPscore23",)), ComponentUsage("Disk")),
)

ONE_BY_ONE: Final = AggregateQuery(by=(MetaValue("user_id"),), where=MetaAbsent("project"), usage=BY_MONTH.usage)
"""No cell answers it."""


def job(number: int, **changes: object) -> Record:
    """One a day; every fourth has no labels."""
    start = START + number * DAY
    components = (Component("Cores", number, (Score("HEPscore23", 1.5),)), Component("Disk", number, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 3}",), "user_id": ("é" if number % 2 else "b",)}
    hours = timedelta(hours=(number * 7) % 90)
    return msgspec.structs.replace(
        Record(f"job-{number}", start, components, start + hours, meta if number % 4 else None), **changes
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> Opened:
    """A new store each time, whose name in the lake is a; all in one folder use one lake."""

    new_url: Callable[[], str] | None = None
    if request.param == "postgresql":
        new_url = request.getfixturevalue("new_postgres_url")

    @asynccontextmanager
    async def made(folder: Path) -> AsyncGenerator[tuple[RecordStore, LakeTable], None]:
        url = f"sqlite:///{folder}/records.db" if new_url is None else new_url()
        async with opened(folder / "lake", "a", url) as both:
            yield both

    return made


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    made: str = request.getfixturevalue("postgres_url")
    return made


async def put(store: RecordStore, records: Sequence[Record]) -> None:
    await store.add_all(records, SENT, Duplicates.SAME_RUN, atomic=True)


async def listed(store: RecordStore, query: RecordQuery) -> Sequence[bytes]:
    async with store.stream(query) as pages:
        return [document async for page in pages for document in page]


async def check(store: RecordStore, table: LakeTable, records: Collection[Record]) -> None:
    """The store answers as over these records, and the lake has each of them once."""
    assert await store.aggregate(BY_MONTH) == aggregate_records(records, BY_MONTH)
    by_user = replace(BY_MONTH, where=MetaContains("user_id", "b"))
    assert await store.aggregate(by_user) == aggregate_records(records, by_user)
    by_id = RecordQuery(order=Order(SortField.ID), released=True)
    documents = {each.record_id: encode_record(each).decode() for each in records}
    assert sorted(each.decode() for each in await listed(store, by_id)) == sorted(documents.values())
    await settled(store)
    await sync(store, table, "a", LOG)
    assert rows(table, "a") == documents
    verified = await verify(store, table, "a")
    assert (verified.findings, verified.records) == ([], (await store.lake_state()).records)


@given(records=RECORDS, queries=st.lists(QUERIES, min_size=10, max_size=20), months=st.integers(-100, 100))
@settings(
    deadline=None,
    max_examples=EXAMPLES,
    phases=[Phase.generate],  # a table takes a second: making a failing example small would take an hour
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_sums_are_those_of_all_records(
    stores: Opened, tmp_path: Path, records: Sequence[Record], queries: Sequence[AggregateQuery], months: int
) -> None:
    async with stores(Path(mkdtemp(dir=tmp_path))) as (store, table):
        await put(store, records)
        month = month_number(START) + months
        old = [each for each in records if each.stop_time is not None and month_number(each.stop_time) < month]
        assert await run(store, table, "a", month) == len(old)
        for query in queries:
            assert await store.aggregate(query) == aggregate_records(records, query)


async def test_whatever_happens_to_a_released_record_it_counts_once(
    stores: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.lake.writing.RELEASE_RECORDS", 7)
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 20)
    records = {each.record_id: each for each in map(job, range(90))}
    march = month_number(START) + 2
    async with stores(tmp_path) as (store, table):
        await put(store, [each for number, each in enumerate(records.values()) if number not in {3, 7}])
        assert await run(store, table, "a", march) == 43
        assert len(await listed(store, RecordQuery())) == 45
        await put(store, [records["job-3"], records["job-7"], records["job-5"]])  # two are late, one is known
        assert await store.add(records["job-6"], ALICE, Duplicates.SAME_RUN) is Verdict.SAME
        await check(store, table, [*records.values()])
        assert await run(store, table, "a", march) == 2

        records["job-10"] = job(10, stop_time=START + 60 * DAY)
        assert await store.stop(RecordUpdate("job-10", (), START + 60 * DAY), ALICE)
        records["job-11"] = job(11, components=(Component("Cores", 400, ()),))
        correction = Amendment(Action.CORRECT, encode_record(job(11)), records["job-11"], "wrong")
        deletion = Amendment(Action.DELETE, encode_record(records.pop("job-12")), None, "a test")
        assert await store.amend([correction, deletion], ALICE) == [Amended.DONE, Amended.DONE]
        records["job-13"] = job(13, meta={"site_id": ("S1",)})
        assert await store.redact(["job-13"], {"user_id"}) == 1
        assert await store.recall(["job-14"]) == 1
        await check(store, table, [*records.values()])
        assert await run(store, table, "a", march) == 3  # but for the one that stopped later, and the deleted one
        assert ((await store.list_released()).recalled, (await store.lake_state()).records) == (frozenset(), 43)
        await check(store, table, [*records.values()])

        assert await store.recall([f"job-{number}" for number in range(20)]) == 18
        await store.catch_up()
        assert await run(store, table, "a", 0) == 0  # they are to stay now
        assert ((await store.list_released()).recalled, (await store.lake_state()).records) == (frozenset(), 25)
        await check(store, table, [*records.values()])


async def test_sums_that_roll_ups_answer_open_no_file(
    stores: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counting(self: LakeFileIO, location: str) -> PyArrowFile:
        read.append(location)
        return new_input(self, location)

    new_input = LakeFileIO.new_input
    monkeypatch.setattr(LakeFileIO, "new_input", counting)
    records = [job(number, meta={"site_id": (f"S{number % 3}",)}) for number in range(1, 40)]
    until_then = TimeCompares(TimeField.STOP, Comparison.LT, START + 12 * DAY + timedelta(hours=7))
    one = AggregateQuery(IdEquals("job-7"), usage=(ComponentUsage("Cores"),))
    async with stores(tmp_path) as (store, table):
        await put(store, records)
        assert await run(store, table, "a", month_number(START) + 2) == len(records)
        read.clear()
        assert await store.aggregate(BY_MONTH) == aggregate_records(records, BY_MONTH)
        assert read == []
        for query in (one, replace(BY_MONTH, where=until_then)):
            assert await store.aggregate(query) == aggregate_records(records, query)
        unusual = job(40, meta={"site_id": ("S1", "S2")}, stop_time=START + DAY)
        await put(store, [unusual])
        assert await run(store, table, "a", month_number(START) + 2) == 1
        assert (await store.lake_state()).beside_rollups == 1
        assert await store.aggregate(BY_MONTH) == aggregate_records([*records, unusual], BY_MONTH)
        store.lake = None
        late = TimeCompares(TimeField.STOP, Comparison.GTE, START + 60 * DAY)
        assert (await store.aggregate(AggregateQuery(late))).groups == ()
        with pytest.raises(StoreUnavailable, match="40 records are released to the lake"):
            await store.aggregate(one)


async def test_cells_that_are_filled_anew_leave_released_days_to_the_lake(stores: Opened, tmp_path: Path) -> None:
    records = [*map(job, range(1, 60))]
    expected = aggregate_records(records, BY_MONTH)
    async with stores(tmp_path) as (store, table):
        await put(store, records)
        assert await run(store, table, "a", month_number(START) + 1) > 0
        await store.rollups.start_over()
        assert await store.aggregate(BY_MONTH) == expected, "while they are filled"
        await folded(store)
        assert await store.aggregate(BY_MONTH) == expected
        assert await store.recall(["job-5"]) == 1
        await folded(store)
        assert await store.aggregate(BY_MONTH) == expected
        assert await run(store, table, "a", month_number(START) + 2) > 0
        assert await store.aggregate(BY_MONTH) == expected


WHERE: Final[Sequence[Condition]] = (
    AllOf(),
    MetaContains("site_id", "S1"),
    MetaContainsAny("user_id", ("é", "b")),
    MetaAbsent("site_id"),
    IsOpen(),
    TimeCompares(TimeField.STOP, Comparison.LT, START + 25 * DAY),
    RuntimeCompares(Comparison.GT, 86_400),
    PlaceCompares(Comparison.GT, START + 21 * DAY, "job-21"),
)
ORDERS: Final = tuple(Order(field, descending) for field, descending in product(SortField, (False, True)))


async def test_every_list_is_that_of_all_records(stores: Opened, tmp_path: Path) -> None:
    records = [job(number) for number in range(60)] + [job(number, record_id=f"ü{number}") for number in range(60)]
    records[17] = job(17, stop_time=None)
    async with stores(tmp_path) as (store, table):
        await put(store, records)
        assert await run(store, table, "a", month_number(START) + 2) > 0
        for number, where in enumerate([*WHERE, *WHERE]):  # twice, in different orders
            order, limit = ORDERS[number % len(ORDERS)], (None, 10, 0)[number // 2 % 3]
            found = sorted(
                [each for each in records if matches(each, where)],
                key=lambda each, order=order: place_of(each, order),  # type: ignore[misc]
                reverse=order.descending,
            )
            query = RecordQuery(where, order, limit, released=True)
            assert await listed(store, query) == [encode_record(each) for each in found[:limit]], query


class Host:
    """A record store in a file, which is backed up and restored, and a lake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self._file = folder / "records.db"

    def opened(self) -> AbstractAsyncContextManager[tuple[RecordStore, LakeTable]]:
        return opened(self.lake, "a", f"sqlite:///{self._file}")

    def back_up(self, name: str) -> None:
        with closing(sqlite3.connect(self._file)) as source, closing(sqlite3.connect(self.folder / name)) as target:
            source.backup(target)

    def restore(self, name: str) -> None:
        for path in self.folder.glob("records.db*"):
            path.unlink()
        (self.folder / name).rename(self._file)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


MARCH: Final = month_number(START) + 2


async def test_a_restored_store_counts_what_it_had_released(host: Host) -> None:
    """Released after the backup: it has them itself. Changed after it: they come back as they were."""
    records = {each.record_id: each for each in map(job, range(60))}
    async with host.opened() as (store, table):
        await put(store, [*records.values()])
        assert await run(store, table, "a", MARCH - 1) > 10
        host.back_up("backup")
        assert await run(store, table, "a", MARCH) > 10
        await store.stop(RecordUpdate("job-3", (), START + 100 * DAY), ALICE)
        await store.amend([Amendment(Action.DELETE, encode_record(job(4)), None, "wrong")], ALICE)
        await put(store, [job(70)])
        await run(store, table, "a", MARCH)
    host.restore("backup")
    async with host.opened() as (store, table):
        assert await store.aggregate(BY_MONTH) == aggregate_records(records.values(), BY_MONTH), "before any run"
        await put(store, [job(71)])
        await check(store, table, [*records.values(), job(71)])
        await run(store, table, "a", MARCH)
        await check(store, table, [*records.values(), job(71)])


async def test_a_store_restored_after_a_release_alone_goes_on(host: Host) -> None:
    records = [*map(job, range(60))]
    async with host.opened() as (store, table):
        await put(store, records)
        await sync(store, table, "a", LOG)
        host.back_up("backup")
        released = await run(store, table, "a", MARCH)
    host.restore("backup")
    async with host.opened() as (store, table):
        assert len(await listed(store, RecordQuery())) == 60
        assert await run(store, table, "a", MARCH) == released
        await check(store, table, records)


async def test_a_restored_store_takes_back_what_had_only_been_recalled(host: Host) -> None:
    """No batch tells that the lake is ahead, and another change lets a later snapshot count."""
    records = {each.record_id: each for each in map(job, range(30))}
    async with host.opened() as (store, table):
        await put(store, [*records.values()])
        await run(store, table, "a", MARCH)
        host.back_up("backup")
        assert await store.recall(["job-3"]) == 1
        await run(store, table, "a", 0)
    host.restore("backup")
    async with host.opened() as (store, table):
        records["job-4"] = job(4, stop_time=START + 100 * DAY)
        await store.stop(RecordUpdate("job-4", (), START + 100 * DAY), ALICE)
        await check(store, table, [*records.values()])
        await run(store, table, "a", MARCH)
        await check(store, table, [*records.values()])


async def test_a_restore_without_the_snapshot_says_what_it_wants(host: Host) -> None:
    async with host.opened() as (store, table):
        await put(store, [*map(job, range(30))])
        await run(store, table, "a", MARCH)
        host.back_up("backup")
        await store.stop(RecordUpdate("job-3", (), START + 100 * DAY), ALICE)
        await run(store, table, "a", MARCH)
        now = datetime.now(UTC) + DAY
        table.expire(now, (await store.lake_state()).snapshot_id)
    host.restore("backup")
    async with host.opened() as (store, table):
        with pytest.raises(StoreUnavailable, match="is newer than this record store"):
            await store.aggregate(AggregateQuery(usage=(ComponentUsage("Cores"),), where=IdEquals("job-1")))
        with pytest.raises(ConfigurationError, match="1 of the records that this record store has released"):
            await sync(store, table, "a", LOG)
        assert rows(table, "a").keys() >= {"job-1", "job-2"}, "nothing was taken out"


async def test_a_snapshot_that_another_daemon_expired_is_no_loss(host: Host) -> None:
    records = [*map(job, range(30))]
    async with host.opened() as (store, table):
        await put(store, records)
        await run(store, table, "a", MARCH)
        async with opened(host.lake, "b", f"sqlite:///{host.folder}/other.db") as (other, same_table):
            await put(other, records)
            await run(other, same_table, "b", MARCH)
            now = datetime.now(UTC) + DAY
            same_table.expire(now, (await other.lake_state()).snapshot_id)
        assert await store.aggregate(BY_MONTH) == aggregate_records(records, BY_MONTH)
        await check(store, table, records)
        hub = LakeReader(table, None, DuckDb(EngineLimits(256 << 20, 1, host.folder / "spill")), "a")
        store.lake = hub  # which answers for all daemons where it is asked itself
        assert await store.aggregate(ONE_BY_ONE) == aggregate_records(records, ONE_BY_ONE)
        assert (await hub.aggregate(AggregateQuery())).groups[0].records == 60
        hub.close()


async def test_released_records_are_never_given_up(host: Host) -> None:
    records = [*map(job, range(30))]
    async with host.opened() as (store, table):
        await put(store, records)
        await run(store, table, "a", MARCH)
        other = lake_in(host.folder / "other")
        with pytest.raises(ConfigurationError, match="is not the table to which this record store has released"):
            await sync(store, other, "a", LOG)
        await store.begin_lake()  # as if the lake had been another one meanwhile
        await check(store, table, records)
        assert await run(store, table, "a", MARCH) == 0
        assert await listed(store, RecordQuery()) == []


async def test_a_full_sync_that_begins_late_deletes_no_released_record(host: Host) -> None:
    """Its run was cancelled while other daemons committed first, and another daemon has taken over."""
    records = [*map(job, range(30))]
    async with host.opened() as (store, table):
        await put(store, records)
        await sync(store, table, "a", LOG)
        begun = table.position("a"), await store.list_released()
        assert await run(store, table, "a", MARCH) > 0
        with pytest.raises(LakeMoved):
            table.forget("a", *begun)
        await check(store, table, records)


async def test_rows_that_are_released_while_all_are_given_up_stay(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has looked for released rows before the daemon's run commits some."""
    records = [*map(job, range(30))]
    has_looked, has_released = threading.Event(), threading.Event()
    remove_rows = writing.remove_rows

    def remove_late(*given: Any) -> Any:  # Any: as remove_rows
        if not has_looked.is_set():
            has_looked.set()
            has_released.wait(60)
        return remove_rows(*given)

    async with host.opened() as (store, table):
        await put(store, records)
        await sync(store, table, "a", LOG)
        other = lake_in(host.lake)
        monkeypatch.setattr(tables, "remove_rows", remove_late)
        removing = asyncio.create_task(asyncio.to_thread(other.remove, "a"))
        assert await asyncio.to_thread(has_looked.wait, 60)
        assert await run(store, table, "a", MARCH) > 0
        has_released.set()
        with pytest.raises(ConfigurationError, match="may exist only in the lake"):
            await removing
        await check(store, table, records)
        other.close()


async def test_a_release_that_was_committed_and_not_dealt_with_is_found(host: Host) -> None:
    """The process ended behind its commit; records change before the next run."""
    records = {each.record_id: each for each in map(job, range(30))}
    async with host.opened() as (store, table):
        await put(store, [*records.values()])
        await sync(store, table, "a", LOG)
        position = table.position("a")
        assert position is not None
        table.mark("a", position, lambda each: each[0] is not None, position.batch)
        await check(store, table, [*records.values()])
        records["job-3"] = job(3, stop_time=START + 100 * DAY)
        await store.stop(RecordUpdate("job-3", (), START + 100 * DAY), ALICE)
        await syncing.release(store, table, "a", lambda _: False)
        assert ((await store.lake_state()).records, len(await listed(store, RecordQuery()))) == (29, 1)
        await check(store, table, [*records.values()])


async def test_records_that_another_consumer_has_not_read_are_not_marked(url: str, tmp_path: Path) -> None:
    """Else every run would rewrite their files, and release nothing."""
    async with open_store(url, counted_keys=(), outbox=True):  # nothing forwards its changes any more
        pass
    async with opened(tmp_path / "lake", "a", url) as (store, table):
        await put(store, [*map(job, range(20))])
        for _ in range(2):
            assert await run(store, table, "a", MARCH) == 0
            position = table.position("a")
            assert position is not None
            assert (position.release, (await store.list_released()).recalled) == (0, frozenset())
        await store.forget_outbox((await store.outbox(100)).position)
        await put(store, [*map(job, range(20, 40))])
        assert await run(store, table, "a", MARCH) == 20
        await put(store, [*map(job, range(40, 44))])
        await settled(store)
        await store.forget_outbox((await store.outbox(100)).position)
        await store.check()  # another transaction, after which the batches of PostgreSQL have higher numbers
        assert await run(store, table, "a", MARCH) == 24
        await check(store, table, [*map(job, range(44))])


async def test_names_that_were_redacted_leave_the_files(host: Host) -> None:
    name = "somebody-special"
    records = {each.record_id: each for each in (job(number, meta={"user_id": (name,)}) for number in range(30))}
    async with host.opened() as (store, table):
        await put(store, [*records.values()])
        await run(store, table, "a", MARCH)
        assert await store.redact([*records], {"user_id"}) == 30
        await run(store, table, "a", MARCH)
        now = datetime.now(UTC) + DAY
        table.expire(now, (await store.lake_state()).snapshot_id)
        documents: Mapping[str, str] = rows(table, "a")
        assert len(documents) == (await store.lake_state()).records == 30
    files = [path for path in host.lake.rglob("*.parquet") if path.is_file()]
    assert files
    assert not [path for path in files if name.encode() in path.read_bytes()]
    assert not [path for path in host.lake.rglob("*.avro") if name.encode() in path.read_bytes()]
