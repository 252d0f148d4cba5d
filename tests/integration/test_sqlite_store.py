"""The record store in SQLite beyond the contract: faults of the disk, kill -9, poison, query plans, reading beside."""

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from auditord.database import Database
from auditord.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.amendments import Action, Amendment
from auditord.store.conditions import compile_query
from auditord.store.dialects import Sql
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.sqlite import SqliteRecordStore
from auditord.store.sqlite.dialect import SqliteDialect, other_times, perhaps_of
from auditord.store.sqlite.store import MIGRATIONS, has_none
from auditord.store.statements import sqlite_statements
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, InvalidRecord, Record, RecordQuery, RecordUpdate
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    MetaContains,
    MetaContainsAny,
    Order,
    SortField,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.wire import decode_record, encode_record
from tests.lake_in_memory import MemoryLake, release

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
PROVENANCE = Provenance(START, "task:slurm", "test/1")
SAME_RUN = Duplicates.SAME_RUN


def record(number: int, **changes: object) -> Record:
    made = Record(
        f"job-{number:06}",
        START + timedelta(seconds=number),
        (Component("Cores", 1, ()),),
        START + timedelta(seconds=number),
        {"site_id": ("S",), "user_id": (f"u{number % 7}",)},
    )
    return msgspec.structs.replace(made, **changes)


async def all_ids(store: RecordStore) -> list[str]:
    async with store.stream(RecordQuery()) as pages:
        return [decode_record(document).record_id async for page in pages for document in page]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    database = Database.open(path, MIGRATIONS)
    yield database
    await database.close()


@pytest.fixture
def store(database: Database) -> SqliteRecordStore:
    return SqliteRecordStore(database)


ADD_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from auditord.store import Duplicates, Provenance
from auditord.store.sqlite import SqliteRecordStore
from auditord_hookspecs import Record
from datetime import UTC, datetime

MOMENT = datetime(2024, 1, 1, tzinfo=UTC)

async def add(store, worker):
    for number in range(1_000_000):
        name = f"{worker}-{number}"
        await store.add(Record(name, MOMENT, (), MOMENT), Provenance(MOMENT), Duplicates.REFUSE)
        print(name, flush=True)

async def main():
    store = await SqliteRecordStore.open(Path(sys.argv[1]), counted_keys=())
    await asyncio.gather(*(add(store, worker) for worker in range(16)))

asyncio.run(main())
"""


def add_until_killed(path: Path, after: int) -> list[str]:
    """The ids that a child process said to be stored, before and after it was told to die."""
    child = subprocess.Popen([sys.executable, "-c", ADD_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout:
        acknowledged = [child.stdout.readline().strip() for _ in range(after)]
        child.kill()
        # Also what had been said but not read yet; the last line may be torn.
        return acknowledged + [line.strip() for line in child.stdout if line.endswith("\n")]


@pytest.mark.parametrize("after", [1, 400, 1500])
async def test_after_kill_9_every_acknowledged_record_is_there(path: Path, after: int) -> None:
    acknowledged = await asyncio.to_thread(add_until_killed, path, after)
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        stored = await all_ids(store)
        assert set(acknowledged) <= set(stored)
        assert len(stored) == len(set(stored)) == (await store.counts()).total
        assert len(stored) - len(acknowledged) <= 16  # committed, but not acknowledged yet


async def fill(store: SqliteRecordStore) -> None:
    """Let the last pages be taken: the upkeep of roll-ups gives some back now and then."""
    for number in range(5_000):
        await store.check()
        with suppress(StoreUnavailable):
            await store.add(record(10_000 + number), PROVENANCE, SAME_RUN)


async def test_on_a_full_disk_nothing_acknowledged_is_lost(path: Path) -> None:
    database = Database.open(path, MIGRATIONS)
    await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 60").fetchall())
    store = SqliteRecordStore(database)
    outcomes: dict[str, Verdict | BaseException] = {}

    async def add(number: int) -> None:
        each = record(number)
        try:
            outcomes[each.record_id] = await store.add(each, PROVENANCE, SAME_RUN)
        except StoreUnavailable as error:
            outcomes[each.record_id] = error

    for first in range(0, 5_000, 100):
        await asyncio.gather(*(add(number) for number in range(first, first + 100)))
    acknowledged = sorted(name for name, outcome in outcomes.items() if outcome is Verdict.ADDED)
    refused = [outcome for outcome in outcomes.values() if isinstance(outcome, StoreUnavailable)]
    assert acknowledged
    assert f"{path} is not available: there is no room left on its disk" in str(refused[-1])
    assert await all_ids(store) == acknowledged
    assert (await store.counts()).total == len(acknowledged)
    with pytest.raises(StoreUnavailable, match="no room left"):
        await fill(store)
    await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchall())
    await store.check()
    verdicts = [await store.add(record(number), PROVENANCE, SAME_RUN) for number in range(0, 5_000, 100)]
    assert set(verdicts) == {Verdict.SAME, Verdict.ADDED}
    assert (await store.counts()).total == len(await all_ids(store))
    await store.close()


async def refuse_poison(database: Database) -> None:
    """A database has reasons of its own to refuse a record; a trigger stands for them."""
    trigger = """
        CREATE TRIGGER poison BEFORE INSERT ON records WHEN NEW.record_id LIKE 'poison%'
        BEGIN SELECT raise(ABORT, 'we do not take poison'); END
    """
    await database.write(lambda connection: connection.execute(trigger).fetchall())


async def test_one_poisonous_record_fails_alone(database: Database, store: SqliteRecordStore) -> None:
    await refuse_poison(database)
    too_large = record(5)
    msgspec.structs.force_setattr(too_large, "components", (_component("Cores", 2**63),))
    records = [record(0), record(1, record_id="poison"), record(2), record(0), too_large, record(6)]
    adding = (store.add(each, PROVENANCE, SAME_RUN) for each in records)
    outcomes = list(await asyncio.gather(*adding, return_exceptions=True))
    kinds = [Verdict.ADDED, InvalidRecord, Verdict.ADDED, Verdict.SAME, InvalidRecord, Verdict.ADDED]
    assert [type(each) if isinstance(each, Exception) else each for each in outcomes] == kinds
    assert str(outcomes[1]) == "The record 'poison' cannot be stored: we do not take poison."
    assert await all_ids(store) == ["job-000000", "job-000002", "job-000006"]
    assert (await store.counts()).total == 3
    with pytest.raises(InvalidRecord, match="poison"):
        await store.add_all([record(7), record(8, record_id="poison")], PROVENANCE, SAME_RUN, atomic=False)
    with pytest.raises(InvalidRecord, match="poison"):
        await store.replace(record(8, record_id="poison"), PROVENANCE)
    assert await store.get("job-000007") is None


def _component(name: str, amount: int) -> Component:
    component = Component(name, 1, ())
    msgspec.structs.force_setattr(component, "amount", amount)
    return component


async def plan(database: Database, query: RecordQuery, *, few: bool = False) -> list[str]:
    sql, parameters = compile_query(query, SqliteDialect(), few=few).to_query()

    def explain(connection: sqlite3.Connection) -> list[str]:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        return [step for *_, step in rows if "SUBQUERY" not in step and "VIRTUAL TABLE" not in step]

    return await database.read(explain)


LAST_DAY = AllOf(
    (
        TimeCompares(TimeField.STOP, Comparison.GTE, START),
        TimeCompares(TimeField.STOP, Comparison.LT, START + timedelta(1)),
        MetaContains("site_id", "S"),
    )
)
STARTED = AllOf(
    (
        TimeCompares(TimeField.START, Comparison.GTE, START),
        TimeCompares(TimeField.START, Comparison.LT, START + timedelta(1)),
    )
)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (RecordQuery(), ["SCAN records USING INDEX records_by_stop"]),
        (RecordQuery(order=Order(descending=True), limit=10), ["SCAN records USING INDEX records_by_stop"]),
        (RecordQuery(LAST_DAY), ["SEARCH records USING INDEX records_by_stop (stop_time>? AND stop_time<?)"]),
        (RecordQuery(MetaContains("user_id", "u")), ["SCAN records USING INDEX records_by_stop"]),
        (RecordQuery(ComponentCompares("Cores", Comparison.GT, 1)), ["SCAN records USING INDEX records_by_stop"]),
        (RecordQuery(STARTED), ["SCAN records USING INDEX records_by_stop"]),
        (
            RecordQuery(STARTED, Order(SortField.START)),
            [
                "SEARCH records USING INDEX records_by_start (start_time>? AND start_time<?)",
                "USE TEMP B-TREE FOR RIGHT PART OF ORDER BY",  # among equal start times only
            ],
        ),
        (RecordQuery(order=Order(SortField.ID)), ["SCAN records USING INDEX records_by_id"]),
        (RecordQuery(IdEquals("job-1")), ["SEARCH records USING INDEX records_by_id (record_id=?)"]),
    ],
)
async def test_answers_stream_from_an_index(database: Database, query: RecordQuery, expected: list[str]) -> None:
    assert await plan(database, query) == expected


@pytest.mark.parametrize("field", [TimeField.START, TimeField.STOP])
@pytest.mark.parametrize("sort", [SortField.START, SortField.STOP, SortField.ID, SortField.RUNTIME])
@pytest.mark.parametrize(("direction", "limit"), [("up", None), ("up", 7), ("down", None), ("down", 7)])
async def test_few_records_by_another_time_are_sorted_as_many_are(  # noqa: PLR0917 both fixtures and the cases
    path: Path, monkeypatch: pytest.MonkeyPatch, field: TimeField, sort: SortField, direction: str, limit: int | None
) -> None:
    after = TimeCompares(field, Comparison.GTE, START + timedelta(seconds=60))
    order = Order(sort, descending=direction == "down")
    query = RecordQuery(AllOf((after, MetaContains("site_id", "S"))), order, limit)
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        records = [
            record(number, stop_time=START + timedelta(seconds=100 - number % 50)) if number % 9 else record(number)
            for number in range(100)
        ]
        await store.add_all(records, PROVENANCE, SAME_RUN, atomic=True)
        few = await documents(store, query)
        monkeypatch.setattr("auditord.store.sqlite.store.FEW_TO_SORT", 1)
        many = await documents(store, query)
    assert few == many
    assert len(few) == limit or len(few) > 30


async def documents(store: RecordStore, query: RecordQuery) -> list[bytes]:
    async with store.stream(query) as pages:
        return [document async for page in pages for document in page]


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (RecordQuery(TimeCompares(TimeField.START, Comparison.GTE, START)), "records_by_start (start_time>?)"),
        (RecordQuery(STARTED, limit=3), "records_by_start (start_time>? AND start_time<?)"),
        (RecordQuery(AllOf((STARTED, MetaContains("user_id", "u"))), Order(SortField.ID)), "records_by_start"),
        (RecordQuery(LAST_DAY, Order(SortField.START)), "records_by_stop (stop_time>? AND stop_time<?)"),
    ],
)
async def test_few_records_by_another_time_are_found_by_its_index(
    database: Database, query: RecordQuery, index: str
) -> None:
    assert other_times(query) is not None
    assert index in " ".join(await plan(database, query, few=True))


@pytest.mark.parametrize(
    "query",
    [
        RecordQuery(),
        RecordQuery(LAST_DAY),
        RecordQuery(AllOf((STARTED, LAST_DAY))),
        RecordQuery(AnyOf((STARTED, IdEquals("job-1")))),
        RecordQuery(STARTED, Order(SortField.START)),
        RecordQuery(STARTED, Order(SortField.RUNTIME)),
    ],
)
def test_other_answers_keep_to_the_index_of_their_order(query: RecordQuery) -> None:
    assert other_times(query) is None


async def test_a_filter_on_a_user_reads_only_the_index(database: Database) -> None:
    sql, parameters = compile_query(RecordQuery(MetaContains("user_id", "u")), SqliteDialect()).to_query()
    explained = await database.read(lambda connection: connection.execute(f"EXPLAIN {sql}", parameters).fetchall())
    steps = [row[1] for row in explained]
    assert "DeferredSeek" in steps  # the record itself is looked up only when its document is needed


@pytest.mark.parametrize(
    ("name", "search"),
    [
        ("scrub_removals", "SEARCH removals USING INDEX removals_with_names (position<?)"),
        ("removals_of_slice", "SEARCH removals USING INTEGER PRIMARY KEY (rowid>?)"),
    ],
)
async def test_removals_that_wait_for_a_consumer_are_not_visited_again(
    database: Database, name: str, search: str
) -> None:
    """There are millions, if the lake was switched off for months."""
    statement, edges = sqlite_statements()[name], {"position": 9, "after": 7, "upto": 9}
    rows = await database.read(
        lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {statement}", edges).fetchall()
    )
    assert [step for *_, step in rows if "removals" in step] == [search]


async def test_other_counted_keys_are_counted_again(path: Path) -> None:
    store = await SqliteRecordStore.open(path, counted_keys=("user_id",))
    records = [record(number, meta={"a": ("x", "x", "y\\"), "user_id": ("u",)}) for number in range(5)]
    await store.add_all([*records, record(9, meta=None)], PROVENANCE, SAME_RUN, atomic=True)
    await store.close()
    store = await SqliteRecordStore.open(path, counted_keys=("a", "b", "a"))
    counts = await store.counts()
    assert (counts.total, counts.per_value) == (6, {"a": {"x": 5, "y\\": 5}, "b": {}})
    await store.add(record(10, meta={"a": ("y\\",), "b": ("z",)}), PROVENANCE, SAME_RUN)
    assert (await store.counts()).per_value == {"a": {"x": 5, "y\\": 6}, "b": {"z": 1}}
    await store.close()


async def test_reading_what_a_killed_daemon_left(path: Path) -> None:
    left = path.with_name("left.db")
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        await store.add(record(1), PROVENANCE, SAME_RUN)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
    async with open_store_for_reading(f"sqlite://{left}") as store:
        assert await all_ids(store) == ["job-000001"]


async def test_provenance_is_kept_beside_the_record(database: Database, store: SqliteRecordStore) -> None:
    await store.add(record(1, stop_time=None), PROVENANCE, SAME_RUN)
    later = Provenance(START + timedelta(1), None, "curl/8")
    await store.stop(RecordUpdate("job-000001", (), START), later)
    await store.add(record(2), later, SAME_RUN)
    rows = await database.read(
        lambda connection: connection.execute(
            "SELECT record_id, principal, agent, received_at, updated_at FROM records JOIN origins USING (origin_id)"
        ).fetchall()
    )
    first, second = 1_706_933_106_000_000, 1_707_019_506_000_000
    assert rows == [
        ("job-000001", "task:slurm", "test/1", first, second),
        ("job-000002", None, "curl/8", second, None),
    ]


async def test_reading_beside_a_daemon(path: Path) -> None:
    url = f"sqlite:///{path}"  # four slashes do no harm
    async with open_store(url, counted_keys=("site_id",)) as daemon:
        await daemon.add(record(1), PROVENANCE, SAME_RUN)
        async with open_store_for_reading(url) as store:
            assert await all_ids(store) == ["job-000001"]
            assert await store.get("job-000001") == encode_record(record(1))
            assert (await store.counts()).per_value == {"site_id": {"S": 1}}
            with pytest.raises(StoreUnavailable, match="reading only"):
                await store.add(record(2), PROVENANCE, SAME_RUN)
            with pytest.raises(StoreUnavailable, match="reading only"):
                await store.check()


async def test_nothing_to_read(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=re.escape(f"There is no {path}. If nothing has been collected yet")):
        async with open_store_for_reading(f"sqlite://{path}"):
            pytest.fail("opened")
    assert not path.exists()  # noqa: ASYNC240 a test may block


async def test_a_file_that_cannot_be_looked_for_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(StoreUnavailable, match="it cannot be opened; the folder must exist"):
        async with open_store_for_reading(f"sqlite://{tmp_path}/folder/records.db"):
            pytest.fail("opened")


def shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(3 * 8192)


def scribble(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 20 * 8192)


@pytest.mark.parametrize("damage", [shorten, scribble])
async def test_a_damaged_file_is_named(path: Path, damage: Callable[[Path], None]) -> None:
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        await store.add_all([record(number) for number in range(2_000)], PROVENANCE, SAME_RUN, atomic=True)
    damage(path)
    with pytest.raises(StoreUnavailable, match=r"records\.db is not available: it is damaged"):
        async with open_store(f"sqlite://{path}", counted_keys=()) as store:
            await all_ids(store)


async def test_a_spool_is_no_record_store(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA application_id = 7; PRAGMA user_version = 1; CREATE TABLE queue (x);")
    connection.close()
    with pytest.raises(SchemaMismatch, match="another program's database"):
        async with open_store(f"sqlite://{path}", counted_keys=()):
            pytest.fail("opened")


async def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///path"):
        async with open_store("sqlite://records.db", counted_keys=()):
            pytest.fail("opened")


def user(name: str) -> MetaContains:
    return MetaContains("user_id", name)


async def test_a_value_that_no_record_has_is_known_by_the_counts(path: Path) -> None:
    async with open_store(f"sqlite://{path}", counted_keys=("user_id",)) as store:
        assert isinstance(store, SqliteRecordStore)
        many = 1_010
        await store.add_all([record(number) for number in range(many)], PROVENANCE, SAME_RUN, atomic=True)
        await store.rollups.fold()
        connection = sqlite3.connect(path)
        assert has_none(connection, user("nobody"))
        assert has_none(connection, AllOf((MetaContains("site_id", "S"), user("nobody"))))
        assert has_none(connection, AnyOf((user("nobody"), MetaContainsAny("user_id", ("u7", "u8")))))
        assert not has_none(connection, AnyOf((user("nobody"), user("u1"))))
        assert not has_none(connection, MetaContainsAny("user_id", ("nobody", "u1")))
        assert not has_none(connection, MetaContains("site_id", "T")), "nobody counts sites"
        assert not has_none(connection, AllOf())
        await store.add(record(many, meta={"user_id": ("late", "twice")}), PROVENANCE, SAME_RUN)
        assert not has_none(connection, user("late"))
        assert not has_none(connection, user("twice"))
        first = record(1)
        corrected = msgspec.structs.replace(first, meta={"user_id": ("renamed",)})
        await store.amend(
            [Amendment(Action.CORRECT, (await store.documents([first.record_id]))[first.record_id], corrected, "test")],
            PROVENANCE,
        )
        assert not has_none(connection, user("renamed"))
        await store.redact([corrected.record_id], ["user_id"])
        assert has_none(connection, user("renamed"))
        connection.close()


@pytest.mark.parametrize("name", ["u1", "late", "nobody"])
async def test_a_listing_by_user_is_the_same_with_and_without_counts(path: Path, name: str) -> None:
    found = list[list[str]]()
    for counted_keys in ((), ("user_id",)):
        async with open_store(f"sqlite://{path}", counted_keys=counted_keys) as store:
            await store.add_all([record(number) for number in range(50)], PROVENANCE, SAME_RUN, atomic=True)
            await store.add(record(50, meta={"user_id": ("late", "u1")}), PROVENANCE, SAME_RUN)
            async with store.stream(RecordQuery(user(name))) as pages:
                found.append([decode_record(each).record_id async for page in pages for each in page])
    assert found[0] == found[1]
    assert bool(found[0]) == (name != "nobody")


async def test_a_listing_has_recalled_records_whose_users_are_counted_since_their_release(path: Path) -> None:
    memory, url = MemoryLake(), f"sqlite://{path}"
    async with open_store(url, counted_keys=()) as store:
        await store.add(record(1), PROVENANCE, SAME_RUN)
        assert await release(store, memory, ["job-000001"], START + timedelta(days=1)) == 1
    async with open_store(url, counted_keys=("user_id",)) as store:
        store.lake = memory
        await store.catch_up()
        assert await store.recall(["job-000001"]) == 1
        async with store.stream(RecordQuery(user("u1"))) as pages:
            assert [each async for page in pages for each in page] == [encode_record(record(1))]


BY_START = Order(SortField.START, descending=True)


@pytest.mark.parametrize(
    ("where", "limit"),
    [
        (user("u1"), None),
        (user("u1"), 3),
        (user("late"), None),
        (user("nobody"), 10),
        (MetaContainsAny("user_id", ("u2", "late", "nobody")), 20),
        (AllOf((MetaContains("site_id", "S"), user("u1"), TimeCompares(TimeField.START, Comparison.LT, START))), 5),
        (AnyOf((user("u1"), IdEquals("job-000003"))), None),
    ],
)
async def test_few_records_of_a_user_are_found_by_another_index(
    path: Path, where: Condition, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought = list[Sequence[str]]()

    def seen(users: Sequence[str]) -> Sql:
        sought.append(users)
        return perhaps_of(users)

    monkeypatch.setattr("auditord.store.sqlite.store.perhaps_of", seen)
    found = list[list[str]]()
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        await store.add_all([record(number) for number in range(40)], PROVENANCE, SAME_RUN, atomic=True)
        await store.add(record(50, meta={"user_id": ("late", "u1")}), PROVENANCE, SAME_RUN)
        await store.add(record(51, meta={"user": ("u1",)}, stop_time=None), PROVENANCE, SAME_RUN)
        await store.add(record(52, stop_time=START - timedelta(days=1)), PROVENANCE, SAME_RUN)
        for few in (10_000, -1):
            monkeypatch.setattr("auditord.store.rollups.scope.FEW_TO_SORT", few)
            async with store.stream(RecordQuery(where, BY_START, limit)) as pages:
                found.append([decode_record(each).record_id async for page in pages for each in page])
    assert found[0] == found[1]
    assert len(sought) == (0 if isinstance(where, AnyOf) else 1)


async def test_whose_records_are_many_is_known_by_the_roll_ups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.store.rollups.scope._PASSED_FOR_ONE", 1)
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        assert isinstance(store, SqliteRecordStore)
        await store.add_all([record(number) for number in range(40)], PROVENANCE, SAME_RUN, atomic=True)
        await store.rollups.fold()

        def pass_over(users: Sequence[str]) -> Sql:
            raise AssertionError(users)

        monkeypatch.setattr("auditord.store.sqlite.store.perhaps_of", pass_over)
        async with store.stream(RecordQuery(user("u1"), BY_START, 5)) as pages:  # one of six
            assert len([each async for page in pages for each in page]) == 5
        with pytest.raises(AssertionError, match="u1"):
            async with store.stream(RecordQuery(user("u1"), BY_START, 6)):
                pytest.fail("all six are wanted")


@pytest.mark.parametrize("count", [1, 9, 10, 11, 999, 1_000, 1_111, 2_345])
async def test_a_bulk_of_any_size_is_there_once(path: Path, count: int) -> None:
    added = [record(number, meta={"user_id": (f"u{number}",)}) for number in range(count)]
    async with open_store(f"sqlite://{path}", counted_keys=()) as store:
        assert set(await store.add_all(added, PROVENANCE, SAME_RUN, atomic=True)) == {Verdict.ADDED}
        assert await all_ids(store) == [each.record_id for each in added]
        found = await store.documents([added[-1].record_id])
        assert found == {added[-1].record_id: encode_record(added[-1])}
        known = [record(count), *added]
        assert (await store.add_all(known, PROVENANCE, SAME_RUN, atomic=False)).count(Verdict.ADDED) == 1
        assert (await store.counts()).total == count + 1
