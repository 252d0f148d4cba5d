"""Aggregates in SQLite's SQL: every value a parameter, periods from an index, limbs that cannot overflow."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from auditord.database.migrations import load_migrations, migrate
from auditord.store.aggregates import Overflow
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.sqlite.dialect import (
    SqliteDialect,
    SumOfShares,
    pieces,
    product_sum,
    split_product_sum,
    sum_of,
    whole,
)
from auditord.store.sqlite.store import MIGRATIONS, noticing_overflow, take_rows
from auditord_hookspecs import Window, aggregates
from auditord_hookspecs.query import AllOf, Comparison, Condition, MetaContains, TimeCompares, TimeField
from auditord_hookspecs.records import MAX_AMOUNT

START = datetime(2024, 1, 1, tzinfo=UTC)
SCORE = aggregates.ScoreValue("o'name", "o'score")
DAY = Window(START, START + timedelta(1))
LONGEST = (datetime(9999, 12, 31, tzinfo=UTC) - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
CORES = (aggregates.ComponentUsage("Cores", ("hepscore23",)),)
SITE, GROUP = aggregates.MetaValue("site_id", "site"), aggregates.MetaValue("group_id", "group")


def during(field: TimeField, *others: Condition) -> AllOf:
    after, before = (
        TimeCompares(field, Comparison.GTE, DAY.start),
        TimeCompares(field, Comparison.LT, DAY.stop),
    )
    return AllOf((after, before, *others))


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, load_migrations(MIGRATIONS), Path(":memory:"))
    connection.create_aggregate("sum_of_shares", 5, SumOfShares)
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, query: aggregates.AggregateQuery) -> list[str]:
    statement = compile_aggregate(query, SqliteDialect(windowed=query.window is not None)).statement
    sql, parameters = statement.to_query()
    steps = connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
    return [step for *_, step in steps if " records " in step]


def test_everything_that_is_asked_for_is_a_parameter() -> None:
    by = (
        aggregates.MetaValue("o'key"),
        aggregates.MetaValue('o"key'),
        aggregates.ComponentAmount("o'name"),
        aggregates.ComponentPresent("o'name"),
        aggregates.ExceedsRuntime("o'name", Decimal("1.5"), "o'other"),
        SCORE,
    )
    query = aggregates.AggregateQuery(
        MetaContains("o'key", "o'value"), by, (aggregates.ComponentUsage("o'name", ("o'score",)),), DAY, START
    )
    for is_exact in (False, True):
        statement = compile_aggregate(query, SqliteDialect(is_exact=is_exact, windowed=True)).statement
        assert "o'" not in statement.sql
        assert 'o"' not in statement.sql
        assert statement.sql.count("%s") == len(statement.parameters)


BY_STOP = "SEARCH records USING COVERING INDEX records_by_stop (stop_time>? AND stop_time<?)"
FEW = "SEARCH records USING INDEX records_with_more (stop_time>? AND stop_time<?)"


def test_a_period_by_columns_is_read_from_one_index_alone(connection: sqlite3.Connection) -> None:
    where = during(TimeField.STOP)
    assert plan(connection, aggregates.AggregateQuery(where, (SITE, GROUP), CORES)) == [BY_STOP, FEW, FEW]
    known = (GROUP, aggregates.ComponentPresent("TotalCPU"), aggregates.ExceedsRuntime("TotalCPU", Decimal(1), "Cores"))
    assert plan(connection, aggregates.AggregateQuery(where, known, CORES)) == [BY_STOP, FEW, FEW]
    months = (GROUP, aggregates.CalendarPeriod(aggregates.CalendarUnit.MONTH))
    assert plan(connection, aggregates.AggregateQuery(where, months)) == [BY_STOP, FEW]


def test_started_in_a_period_is_found_by_the_index_on_starts(connection: sqlite3.Connection) -> None:
    steps, _ = plan(connection, aggregates.AggregateQuery(during(TimeField.START), (GROUP,)))
    assert steps == "SEARCH records USING INDEX records_by_start (start_time>? AND start_time<?)"


def test_a_window_begins_where_the_first_overlaps(connection: sqlite3.Connection) -> None:
    assert plan(connection, aggregates.AggregateQuery(by=(SITE, GROUP), usage=CORES, window=DAY, as_of=DAY.stop)) == [
        "SEARCH records USING COVERING INDEX records_by_stop (stop_time>?)",
        "SEARCH records USING COVERING INDEX records_by_stop (stop_time=?)",
        "SEARCH records USING INDEX records_with_more (stop_time>?)",
        "SEARCH records USING COVERING INDEX records_by_stop (stop_time=?)",
        "SEARCH records USING INDEX records_with_more (stop_time>?)",
        "SEARCH records USING INDEX records_with_more (stop_time=?)",
    ]


ROWS = "(VALUES ({amount}, {runtime}), ({amount}, {runtime}), ({amount}, {runtime}))"


@pytest.mark.parametrize("amount", [0, 1, 2**31 - 1, 2**31, 2**62 + 12345, MAX_AMOUNT])
@pytest.mark.parametrize("runtime", [0, 1, 2**30 - 1, 2**30, 86_400_000_000, LONGEST])
def test_split_sums_are_exact_and_their_limbs_leave_room_for_two_billion(
    connection: sqlite3.Connection, amount: int, runtime: int
) -> None:
    for (columns, limbs), expected in (
        (sum_of("column1", is_exact=True), amount),
        (split_product_sum("column1", "column2"), amount * runtime),
    ):
        rows = ROWS.format(amount=amount, runtime=runtime)
        found = connection.execute(f"SELECT {', '.join(columns)} FROM {rows}").fetchone()  # noqa: S608 our own
        assert all(isinstance(limb, int) and limb * 2**31 < 3 * 2**63 for limb in found)
        assert sum(limb << shift for limb, shift in zip(found, limbs, strict=True)) == 3 * expected


@pytest.mark.parametrize("amount", [0, 2**20 - 1, 2**20, 4 * 10**12])
@pytest.mark.parametrize("runtime", [0, 1, 2**20, 50 * 86_400 * 10**6])
def test_bytes_times_microseconds_fit_in_pieces(connection: sqlite3.Connection, amount: int, runtime: int) -> None:
    columns, limbs = product_sum(pieces("column1"), pieces("column2"))
    rows = ROWS.format(amount=amount, runtime=runtime)
    found = connection.execute(f"SELECT {', '.join(columns)} FROM {rows}").fetchone()  # noqa: S608 our own
    assert all(isinstance(limb, int) and limb * 500_000 < 3 * 2**63 for limb in found)
    assert sum(limb << shift for limb, shift in zip(found, limbs, strict=True)) == 3 * amount * runtime


@pytest.mark.parametrize(("amount", "runtime"), [(2**61, 2), (2**32, 2**32), (MAX_AMOUNT, 1)])
def test_plain_sums_that_do_not_fit_are_noticed(connection: sqlite3.Connection, amount: int, runtime: int) -> None:
    columns, _ = product_sum(whole("column1"), whole("column2"))
    rows = ROWS.format(amount=amount, runtime=runtime)
    with pytest.raises(Overflow), noticing_overflow():
        take_rows(connection.execute(f"SELECT {columns[0]} FROM {rows}"))  # noqa: S608 our own


def test_another_fault_stays_what_it_is(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"), noticing_overflow():
        connection.execute("SELECT sum(x) FROM missing")
