"""Queries for PostgreSQL: texts that cannot be stored are never asked for, and who may sort."""

from datetime import UTC, datetime

import pytest

from auditord.store.conditions import compile_query
from auditord.store.postgres.dialect import PostgresDialect, follows_an_index
from auditord_hookspecs import RecordQuery
from auditord_hookspecs import query as queries

NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = queries.TimeCompares(queries.TimeField.STOP, queries.Comparison.GT, NOW)
STARTED = queries.TimeCompares(queries.TimeField.START, queries.Comparison.GT, NOW)


def impossible(text: str) -> dict[queries.Condition, str]:
    """Conditions with a text that no record can have, and what they come to."""
    return {
        queries.IdEquals(text): "WHERE FALSE ",
        queries.MetaContains("k", text): "WHERE FALSE ",
        queries.MetaContains(text, "v"): "WHERE FALSE ",
        queries.MetaContainsAny("k", (text,)): "WHERE FALSE ",
        queries.MetaLacks(text, "v"): "WHERE FALSE ",
        queries.MetaLacks("k", text): "WHERE coalesce(meta ? %s, FALSE) ",
        queries.MetaAbsent(text): "WHERE TRUE ",
        queries.ComponentCompares(text, queries.Comparison.GT, 1): "WHERE FALSE ",
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
        queries.AllOf(
            (
                queries.IdEquals(nasty),
                queries.MetaContains(nasty, nasty),
                queries.ComponentCompares(nasty, queries.Comparison.GT, 1),
            )
        )
    )
    compiled = compile_query(query, PostgresDialect())
    assert "DROP" not in compiled.sql
    assert compiled.sql.count("%s") == len(compiled.parameters)


@pytest.mark.parametrize(
    ("where", "order", "follows"),
    [
        (queries.AllOf(), queries.SortField.STOP, True),
        (LATER, queries.SortField.STOP, True),
        (STARTED, queries.SortField.STOP, False),
        (STARTED, queries.SortField.START, True),
        (queries.AllOf((LATER, queries.MetaContains("k", "v"))), queries.SortField.STOP, False),
        (queries.AllOf((LATER, queries.MetaLacks("k", "v"))), queries.SortField.STOP, True),
        (queries.IdEquals("x"), queries.SortField.STOP, False),
        (queries.AllOf(), queries.SortField.RUNTIME, False),
        (queries.AllOf(), queries.SortField.ID, True),
    ],
)
def test_large_answers_come_out_of_an_index(where: queries.Condition, order: queries.SortField, follows: bool) -> None:  # noqa: FBT001 parametrised
    assert follows_an_index(RecordQuery(where, queries.Order(order))) is follows
