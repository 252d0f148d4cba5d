"""Aggregates in PostgreSQL's SQL: every value a parameter, and nothing asked that the database cannot be asked."""

from datetime import UTC, datetime, timedelta

import pytest

from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.postgres.dialect import PostgresDialect, Products
from auditord_hookspecs import (
    AggregateQuery,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    MetaValue,
    ScoreValue,
    Window,
)
from auditord_hookspecs.query import MetaContains

START = datetime(2024, 1, 1, tzinfo=UTC)
SCORE = ScoreValue("o'name", "o'score")
DAY = Window(START, START + timedelta(1))


@pytest.mark.parametrize("products", Products)
def test_everything_that_is_asked_for_is_a_parameter(products: Products) -> None:
    by = (MetaValue("o'key"), MetaValue("%key"), ComponentAmount("o'name"), ComponentPresent("o'name"), SCORE)
    query = AggregateQuery(MetaContains("o'key", "o'value"), by, (ComponentUsage("o'name", ("o'score",)),), DAY, START)
    statement = compile_aggregate(query, PostgresDialect(products, windowed=True)).statement
    assert "o'" not in statement.sql
    assert statement.sql.count("%") == statement.sql.count("%s") == len(statement.parameters)


@pytest.mark.parametrize("text", ["with\0nul", "half \ud800 a character"])
def test_names_that_no_record_can_have_are_not_asked_for(text: str) -> None:
    by = (
        MetaValue(text),
        MetaValue("site_id", text),
        ComponentAmount(text),
        ComponentPresent(text),
        ScoreValue(text, "score"),
    )
    query = AggregateQuery(by=by, usage=(ComponentUsage(text, ("score",)),))
    parameters = compile_aggregate(query, PostgresDialect(Products.LIKELY, windowed=False)).statement.parameters
    assert text not in parameters
