"""Queries for PostgreSQL: texts that cannot be stored are never asked for, and who may sort."""

from datetime import UTC, datetime

import pytest

from auditord.store.conditions import compile_query
from auditord.store.postgres.dialect import PostgresDialect, follows_an_index
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    Order,
    SortField,
    TimeCompares,
    TimeField,
)

NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = TimeCompares(TimeField.STOP, Comparison.GT, NOW)
STARTED = TimeCompares(TimeField.START, Comparison.GT, NOW)


def impossible(text: str) -> dict[Condition, str]:
    """Conditions with a text that no record can have, and what they come to."""
    return {
        IdEquals(text): "WHERE FALSE ",
        MetaContains("k", text): "WHERE FALSE ",
        MetaContains(text, "v"): "WHERE FALSE ",
        MetaContainsAny("k", (text,)): "WHERE FALSE ",
        MetaLacks(text, "v"): "WHERE FALSE ",
        MetaLacks("k", text): "WHERE coalesce(meta ? %s, FALSE) ",
        MetaAbsent(text): "WHERE TRUE ",
        ComponentCompares(text, Comparison.GT, 1): "WHERE FALSE ",
    }


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_texts_that_the_database_refuses_are_answered_without_it(text: str) -> None:
    for condition, sql in impossible(text).items():
        compiled = compile_query(RecordQuery(condition), PostgresDialect())
        assert sql in compiled.sql
        assert text not in compiled.parameters


def test_what_a_user_says_is_a_parameter() -> None:
    nasty = "'); DROP TABLE auditord.records; -- %s"
    query = RecordQuery(
        AllOf((IdEquals(nasty), MetaContains(nasty, nasty), ComponentCompares(nasty, Comparison.GT, 1)))
    )
    compiled = compile_query(query, PostgresDialect())
    assert "DROP" not in compiled.sql
    assert compiled.sql.count("%s") == len(compiled.parameters)


@pytest.mark.parametrize(
    ("where", "order", "follows"),
    [
        (AllOf(), SortField.STOP, True),
        (LATER, SortField.STOP, True),
        (STARTED, SortField.STOP, False),
        (STARTED, SortField.START, True),
        (AllOf((LATER, MetaContains("k", "v"))), SortField.STOP, False),
        (AllOf((LATER, MetaLacks("k", "v"))), SortField.STOP, True),
        (IdEquals("x"), SortField.STOP, False),
        (AllOf(), SortField.RUNTIME, False),
        (AllOf(), SortField.ID, True),
    ],
)
def test_large_answers_come_out_of_an_index(where: Condition, order: SortField, follows: bool) -> None:  # noqa: FBT001 parametrised
    assert follows_an_index(RecordQuery(where, Order(order))) is follows
