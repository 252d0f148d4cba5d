"""Statements for the engines of the lake, which their own tests put to them."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord.lake.dialect import DuckDbDialect, LakeDialect
from auditord.lake.spark_dialect import SparkDialect
from auditord.lake.trino_dialect import TrinoDialect
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.conditions import compile_condition
from auditord.store.dialects import Columns
from auditord_hookspecs import AggregateQuery, CalendarPeriod, CalendarUnit, ComponentAmount, ComponentUsage, Window
from auditord_hookspecs.query import (
    Comparison,
    ComponentCompares,
    Condition,
    MetaContains,
    MetaLacks,
    TimeCompares,
    TimeField,
)
from tests.contract.store.test_aggregates import QUERIES

BEGIN, END = datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 4, 1, tzinfo=UTC)


@given(query=QUERIES, dialect=st.sampled_from([DuckDbDialect("site"), SparkDialect("site"), TrinoDialect("site")]))
def test_each_parameter_has_its_place(query: AggregateQuery, dialect: LakeDialect) -> None:
    statement = compile_aggregate(query, dialect).statement
    assert statement.sql.count("%s") == len(statement.parameters)
    assert "%" not in statement.sql.replace("%s", "")
    assert "?" not in statement.sql  # stands for a parameter there


@pytest.mark.parametrize(
    ("condition", "sql", "parameters"),
    [
        (MetaContains("VO", "cms"), "arrays_overlap(meta[%s], array(%s))", ("VO", "cms")),
        (
            MetaLacks("VO", "cms"),
            "((meta[%s] IS NOT NULL) AND NOT coalesce(arrays_overlap(meta[%s], array(%s)), FALSE))",
            ("VO", "VO", "cms"),
        ),
        (
            ComponentCompares("Disk", Comparison.GTE, 7),
            "exists(components, each -> each.name = %s AND each.amount >= %s)",
            ("Disk", 7),
        ),
        (TimeCompares(TimeField.STOP, Comparison.LT, END), "stopped_at < %s", (END,)),
    ],
)
def test_conditions_of_spark(condition: Condition, sql: str, parameters: Sequence[object]) -> None:
    compiled = compile_condition(condition, SparkDialect(), Columns.COMPLETE)
    assert (compiled.sql, compiled.parameters) == (sql, parameters)


@pytest.mark.parametrize(
    ("condition", "sql", "parameters"),
    [
        (MetaContains("VO", "cms"), "arrays_overlap(element_at(meta, %s), ARRAY[%s])", ("VO", "cms")),
        (
            ComponentCompares("Disk", Comparison.GTE, 7),
            "any_match(components, each -> each.name = %s AND each.amount >= %s)",
            ("Disk", 7),
        ),
        (TimeCompares(TimeField.STOP, Comparison.LT, END), "stopped_at < %s", (END,)),
    ],
)
def test_conditions_of_trino(condition: Condition, sql: str, parameters: Sequence[object]) -> None:
    compiled = compile_condition(condition, TrinoDialect(), Columns.COMPLETE)
    assert (compiled.sql, compiled.parameters) == (sql, parameters)


def test_trino_groups_by_places_since_it_knows_no_names_there() -> None:
    by = (CalendarPeriod(CalendarUnit.QUARTER), ComponentAmount("Cores"))
    sql = compile_aggregate(AggregateQuery(by=by, usage=(ComponentUsage("Cores"),)), TrinoDialect()).statement.sql
    day = "date_add('day', (stop_time + 62135596800000000) / 86400000000, DATE '0001-01-01')"
    assert f"date_trunc('quarter', {day}) AS key0" in sql
    assert "amount0 AS key1" in sql
    assert " GROUP BY 2, 1" in sql  # the finest first


def test_spark_leaves_out_the_months_that_no_window_has() -> None:
    sql = compile_aggregate(AggregateQuery(window=Window(BEGIN, END)), SparkDialect()).statement.sql
    assert "stopped_at >= timestamp_micros(1709251200000000) AND started_at < timestamp_micros(1711929600000000)" in sql


def test_spark_sums_in_pieces_that_fit() -> None:
    compiled = compile_aggregate(AggregateQuery(usage=(ComponentUsage("Cores"),)), SparkDialect())
    assert compiled.parts[0].runtime == (31, 0)
    assert compiled.parts[0].usage == ((0, (31, 0), (31, 0, 31, 0)),)
    assert "sum((amount0) & 2147483647) AS sum6" in compiled.statement.sql


def test_spark_counts_days_from_1970_and_lists_without_sums() -> None:
    by = (CalendarPeriod(CalendarUnit.QUARTER), ComponentAmount("Disk"))
    sql = compile_aggregate(AggregateQuery(by=by), SparkDialect()).statement.sql
    day = "date_from_unix_date(CAST((stop_time + 62135596800000000) div 86400000000 - 719162 AS INT))"
    assert f"trunc({day}, 'quarter') AS key0" in sql
    assert "nullif(array_join(transform(filter(components, each -> each.name = %s)" in sql
