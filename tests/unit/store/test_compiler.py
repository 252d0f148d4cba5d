"""Queries compiled to SQL: nothing that a user says becomes part of the text."""

from datetime import UTC, datetime

import pytest

from auditord.store.conditions import compile_condition, compile_query
from auditord.store.dialects import Columns
from auditord.store.sqlite.dialect import SqliteDialect
from auditord_hookspecs import RecordQuery
from auditord_hookspecs import query as queries

EVIL = 'x\' OR "1"=1; --?'
MOMENT = datetime(2024, 1, 1, tzinfo=UTC)

CONDITIONS: list[queries.Condition] = [
    queries.AllOf(),
    queries.IdEquals(EVIL),
    queries.IsOpen(),
    queries.TimeCompares(queries.TimeField.START, queries.Comparison.GTE, MOMENT),
    queries.TimeCompares(queries.TimeField.STOP, queries.Comparison.EQUALS, MOMENT),
    queries.RuntimeCompares(queries.Comparison.LT, 7),
    queries.MetaContains(EVIL, EVIL),
    queries.MetaContains("site_id", EVIL),
    queries.MetaLacks(EVIL, EVIL),
    queries.MetaLacks("user_id", EVIL),
    queries.MetaContainsAny(EVIL, (EVIL, "x")),
    queries.MetaContainsAny("site_id", (EVIL,)),
    queries.MetaContainsAny("k", ()),
    queries.MetaAbsent(EVIL),
    queries.MetaAbsent("group_id"),
    queries.PlaceCompares(queries.Comparison.GT, MOMENT, EVIL),
    queries.ComponentCompares(EVIL, queries.Comparison.GT, 2**62),
    queries.ComponentCompares("Cores", queries.Comparison.LTE, 4),
    queries.ImplausibleCpuTime(),
]


@pytest.mark.parametrize(
    "condition", [*CONDITIONS, queries.AllOf(tuple(CONDITIONS)), queries.AllOf((queries.AllOf(tuple(CONDITIONS)),))]
)
def test_every_value_is_a_parameter(condition: queries.Condition) -> None:
    compiled = compile_query(RecordQuery(condition, limit=5), SqliteDialect())
    assert compiled.sql.count("%s") == len(compiled.parameters)
    assert "--" not in compiled.sql
    assert compiled.parameters[-1] == 5


def test_implausible_cpu_times_are_counted_in_an_index() -> None:
    compiled = compile_condition(queries.ImplausibleCpuTime(), SqliteDialect(), Columns.EITHER)
    assert "runtime" not in compiled.sql  # a generated column, which no index covers
