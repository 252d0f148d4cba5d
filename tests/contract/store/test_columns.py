"""Every column of the table of records, in every place that has to know it; the cases are made of the table of columns.

A column that is forgotten somewhere fails here: in a migration, in a way of writing, in a filter, a group, the cells of
roll-ups, former versions, a copy to another database, or the lake.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, LiteralString, TypeAlias

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from auditord.client.query_string import matches
from auditord.config.model import StoreSection
from auditord.database.sql_files import load_queries
from auditord.store import Duplicates, Provenance
from auditord.store.columns import (
    AMOUNT_COLUMNS,
    COLUMNS,
    META_COLUMNS,
    OLDER_KEYS,
    POSTGRES_VALUES,
    SQLITE_COLUMNS,
    SQLITE_VALUES,
    Column,
    compile_function,
)
from auditord.store.copying import copy_store
from auditord.store.opening import open_store
from auditord.store.rows import make_pending
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record, RecordQuery, Score
from auditord_hookspecs.query import (
    Comparison,
    ComponentCompares,
    Condition,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    Order,
    SortField,
)
from auditord_hookspecs.vocabulary import HELD, TOTALS
from auditord_hookspecs.wire import decode_record
from tests.contract.store.conftest import StoreFactory
from tests.contract.store.feeds import settled
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

Row: TypeAlias = Mapping[str, Any]  # Any: columns of all types

START: Final = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
FIRST: Final = Provenance(START + timedelta(hours=2), "task:slurm", "collector")
LATER: Final = Provenance(START + timedelta(hours=3), "user:alice", "command")
SAME_RUN: Final = Duplicates.SAME_RUN
KEYS: Final = (*META_COLUMNS, *sorted(OLDER_KEYS))
MANY: Final = 250
"""Records that PostgreSQL is rather given by COPY."""


def full(record_id: str = "job", text: str = "x", amount: int = 3) -> Record:
    """A record that has a value in every column, of amounts in either form: held if the number is odd."""
    scores = (Score("HEPscore23", 11.5),)
    names = [*(name for name in AMOUNT_COLUMNS if name not in (TOTALS if amount % 2 == 0 else HELD)), "Disk"]
    components = tuple([Component(name, amount + at, scores) for at, name in enumerate(names)])
    meta = {key: (f"{text} {key}",) for key in META_COLUMNS}
    first, *_ = META_COLUMNS
    return Record(record_id, START, components, START + timedelta(hours=1), meta | {first: (f"{text} {first}", "also")})


def other(record_id: str = "job") -> Record:
    """The same run with another value in every column."""
    return msgspec.structs.replace(full(record_id, "y", 40), stop_time=START + timedelta(hours=9))


# -- tables -----------------------------------------------------------------------------------------------------------


BESIDE: Final = {"position", "updated_at", "former", "operation", "changed_at", "changed_by"}
"""Columns of both tables that are not read of a record."""


def kept_in(table: str, columns: Sequence[Column]) -> Sequence[Column]:
    return [each for each in columns if table == "records" or each.removed]


@pytest.mark.parametrize("table", ["records", "removals"])
async def test_the_tables_of_sqlite_are_as_described(tmp_path: Path, table: str) -> None:
    async with open_store(f"sqlite://{tmp_path / 'records.db'}", counted_keys=KEYS):
        pass
    with closing(sqlite3.connect(tmp_path / "records.db")) as connection:
        rows = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    there = {name: type_.removesuffix(" GENERATED ALWAYS") for _, name, type_, *_ in rows if name not in BESIDE}
    columns = kept_in(table, SQLITE_COLUMNS)
    assert there == {each.name: "TEXT" if each.type == "text" else "INTEGER" for each in columns}


@pytest.mark.parametrize("table", ["records", "removals"])
def test_the_tables_of_postgresql_are_as_described(postgres_url: str, table: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT attname, replace(format_type(atttypid, NULL), 'timestamp with time zone', 'timestamptz')"
            " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (f"auditord.{table}",),
        ).fetchall()
    there = {name: type_ for name, type_ in rows if name not in BESIDE}
    assert there == {each.name: each.type for each in kept_in(table, COLUMNS)}


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="removed_columns"):
        load_queries("auditord.store", "sqlite/queries.sql")


# -- ways of writing --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'records.db'}"
    return str(request.getfixturevalue("postgres_url"))


def rows_of(url: str, table: LiteralString = "records", order: LiteralString = "record_id") -> Sequence[Row]:
    """The rows of a table, as both databases give them."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(f"SELECT * FROM {table} ORDER BY {order}")]  # noqa: S608 literals
    with (
        psycopg.connect(url, options="-c TimeZone=UTC") as connection,
        connection.cursor(row_factory=dict_row) as cursor,
    ):
        return cursor.execute(f"SELECT * FROM auditord.{table} ORDER BY {order}").fetchall()  # noqa: S608 literals


def check_row(url: str, row: Row, record: Record, *, is_full: bool = True) -> None:
    """Check that a row has in every column what the table of columns reads of the record, and nothing is empty."""
    values = SQLITE_VALUES if url.startswith("sqlite") else POSTGRES_VALUES
    pending = make_pending(record, FIRST, SAME_RUN, origin=row["origin_id"], score_set=row["score_set"])
    read = compile_function(f"dict({', '.join([f'{name}={value}' for name, value in values.items()])})")
    expected = read(pending, record, pending.row, pending.row.labels, pending.row.amounts)
    wanted = {name: value for name, value in expected.items() if name in row}
    if is_full:
        held, totals = ({AMOUNT_COLUMNS[name] for name in names} for names in (TOTALS, HELD))
        assert {name for name, value in wanted.items() if value is None} in (held, totals)
    assert _plain({name: row[name] for name in wanted}) == _plain(wanted)


def _plain(row: Row) -> Any:  # Any: of JSON
    flags = {name: int(value) if isinstance(value, bool) else value for name, value in row.items()}
    return msgspec.json.decode(msgspec.json.encode(flags))


async def test_every_way_of_adding_writes_every_column(url: str) -> None:
    bulk = [full(f"bulk-{number:03}", f"v{number}", number) for number in range(MANY)]
    bulk[0] = Record("bulk-000", START, (), None, None)
    async with open_store(url, counted_keys=KEYS) as store:
        await store.add(full("alone"), FIRST, SAME_RUN)
        await store.add_all(bulk, FIRST, SAME_RUN, atomic=True)
        await store.add_all([full("alone"), full("planned")], FIRST, SAME_RUN, atomic=False)
    rows = rows_of(url)
    wanted = sorted([full("alone"), full("planned"), *bulk], key=lambda each: each.record_id)
    for row, record in zip(rows, wanted, strict=True):
        check_row(url, row, record, is_full=record.record_id != "bulk-000")


async def test_a_change_writes_every_column_and_keeps_the_former_version(url: str) -> None:
    async with open_store(url, counted_keys=KEYS, outbox=True) as store:
        await store.add(full(), FIRST, SAME_RUN)
        await store.replace(other(), LATER)
        check_row(url, rows_of(url)[0], other())
        (removal,) = [each for each in rows_of(url, "removals", "position") if each["document"] is not None]
        check_row(url, removal, full())
        await store.redact(["job"], list(META_COLUMNS))
    check_row(url, rows_of(url)[0], msgspec.structs.replace(other(), meta={}), is_full=False)


async def test_a_copy_writes_every_column_of_the_other_database(tmp_path: Path, empty_postgres_url: str) -> None:
    first, second = f"sqlite://{tmp_path / 'first.db'}", f"sqlite://{tmp_path / 'second.db'}"
    async with open_store(first, counted_keys=KEYS) as store:
        await store.add(full("job"), FIRST, SAME_RUN)
        await store.add(other("other"), FIRST, SAME_RUN)
    for source, target in ((first, empty_postgres_url), (empty_postgres_url, second)):
        ends = StoreSection(url=source), StoreSection(url=target)
        await copy_store(*ends, resume=False, now=lambda: START, progress=_Silent())
        for row, record in zip(rows_of(target), (full("job"), other("other")), strict=True):
            check_row(target, row, record)


class _Silent:
    def note_progress(self, phase: str, done: int, total: int) -> None:
        pass


# -- questions --------------------------------------------------------------------------------------------------------


def world() -> Iterator[Record]:
    """For each column that a question may be about: records with a value, with another one, with two and with none."""
    none = Record("none", START, (), START + timedelta(hours=1), None)
    yield none
    for key in KEYS:
        for at, values in enumerate([("x",), ("y",), ("x", "y"), ()]):
            yield msgspec.structs.replace(none, record_id=f"{key}-{at}", meta={key: values})
    yield msgspec.structs.replace(none, record_id="all", meta=dict.fromkeys(META_COLUMNS, ("x",)))
    for name in (*AMOUNT_COLUMNS, "Disk"):
        for at, amounts in enumerate([(3,), (4,), (3, 3)]):
            components = tuple([Component(name, amount, ()) for amount in amounts])
            yield msgspec.structs.replace(none, record_id=f"{name}-{at}", components=components)


def conditions() -> Iterator[Condition]:
    for key in KEYS:
        yield MetaContains(key, "x")
        yield MetaContainsAny(key, ("y", "z"))
        yield MetaLacks(key, "x")
        yield MetaAbsent(key)
    for name in AMOUNT_COLUMNS:
        yield ComponentCompares(name, Comparison.GT, 3)


async def check_answers(store: RecordStore, records: Sequence[Record]) -> None:
    """Check the answers about each column, by records alone and by whatever else the store keeps of them."""
    usage = tuple([ComponentUsage(name) for name in AMOUNT_COLUMNS if name not in HELD])
    totals = AggregateQuery(usage=tuple(map(ComponentUsage, HELD)))
    assert await store.aggregate(totals) == aggregate_records(records, totals)
    for condition in conditions():
        async with store.stream(RecordQuery(condition, Order(SortField.ID))) as pages:
            found = [decode_record(document).record_id async for page in pages for document in page]
        assert found == sorted(each.record_id for each in records if matches(each, condition)), condition
        query = AggregateQuery(condition, usage=usage)
        assert await store.aggregate(query) == aggregate_records(records, query), condition
    older = {each.key: each.older for each in COLUMNS if each.key and each.older}
    for key in META_COLUMNS:
        for by in (MetaValue(key), MetaValue(*[each for each in (key, older.get(key)) if each])):
            for where in (AggregateQuery().where, MetaContains(key, "x")):
                query = AggregateQuery(where, by=(by,), usage=usage)
                assert await store.aggregate(query) == aggregate_records(records, query), query


async def test_every_column_answers_for_records_cells_and_removed_versions(stores: StoreFactory) -> None:
    records = {each.record_id: each for each in world()}
    async with stores() as store:
        await store.add_all(list(records.values()), FIRST, SAME_RUN, atomic=True)
        await check_answers(store, list(records.values()))  # of the versions behind the cells
        await settled(store)
        await store.catch_up()
        await check_answers(store, list(records.values()))
        for record_id, record in list(records.items())[::2]:
            meta = {key: ("z", *values[1:]) for key, values in (record.meta or {}).items()}
            records[record_id] = msgspec.structs.replace(record, meta=meta)
            await store.replace(records[record_id], LATER)
        await check_answers(store, list(records.values()))  # less the removed versions that are in the cells
