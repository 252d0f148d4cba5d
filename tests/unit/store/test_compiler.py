"""Queries compiled to SQL: nothing that a user says becomes part of the text."""

from datetime import UTC, datetime

import pytest

from auditord.store.conditions import compile_query
from auditord.store.sqlite.dialect import SqliteDialect
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    PlaceCompares,
    RuntimeCompares,
    TimeCompares,
    TimeField,
)

EVIL = 'x\' OR "1"=1; --?'
MOMENT = datetime(2024, 1, 1, tzinfo=UTC)

CONDITIONS: list[Condition] = [
    AllOf(),
    IdEquals(EVIL),
    IsOpen(),
    TimeCompares(TimeField.START, Comparison.GTE, MOMENT),
    TimeCompares(TimeField.STOP, Comparison.EQUALS, MOMENT),
    RuntimeCompares(Comparison.LT, 7),
    MetaContains(EVIL, EVIL),
    MetaContains("site_id", EVIL),
    MetaLacks(EVIL, EVIL),
    MetaLacks("user_id", EVIL),
    MetaContainsAny(EVIL, (EVIL, "x")),
    MetaContainsAny("site_id", (EVIL,)),
    MetaContainsAny("k", ()),
    MetaAbsent(EVIL),
    MetaAbsent("group_id"),
    PlaceCompares(Comparison.GT, MOMENT, EVIL),
    ComponentCompares(EVIL, Comparison.GT, 2**62),
    ComponentCompares("Cores", Comparison.LTE, 4),
]


@pytest.mark.parametrize("condition", [*CONDITIONS, AllOf(tuple(CONDITIONS)), AllOf((AllOf(tuple(CONDITIONS)),))])
def test_every_value_is_a_parameter(condition: Condition) -> None:
    compiled = compile_query(RecordQuery(condition, limit=5), SqliteDialect())
    assert compiled.sql.count("%s") == len(compiled.parameters)
    assert "--" not in compiled.sql
    assert compiled.parameters[-1] == 5
