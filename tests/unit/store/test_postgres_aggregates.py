"""Aggregates in PostgreSQL's SQL: every value a parameter, and nothing asked that the database cannot be asked."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.postgres.dialect import PostgresDialect
from auditord_hookspecs import Window, aggregates
from auditord_hookspecs.query import MetaContains

START = datetime(2024, 1, 1, tzinfo=UTC)
SCORE = aggregates.ScoreValue("o'name", "o'score")
DAY = Window(START, START + timedelta(1))


@pytest.mark.parametrize("is_exact", [False, True])
def test_everything_that_is_asked_for_is_a_parameter(*, is_exact: bool) -> None:
    by = (
        aggregates.MetaValue("o'key"),
        aggregates.MetaValue("%key"),
        aggregates.ComponentAmount("o'name"),
        aggregates.ComponentPresent("o'name"),
        aggregates.ExceedsRuntime("o'name", Decimal("1.5"), "o'other"),
        SCORE,
    )
    query = aggregates.AggregateQuery(
        MetaContains("o'key", "o'value"), by, (aggregates.ComponentUsage("o'name", ("o'score",)),), DAY, START
    )
    statement = compile_aggregate(query, PostgresDialect(is_exact=is_exact, windowed=True)).statement
    assert "o'" not in statement.sql
    assert statement.sql.count("%") == statement.sql.count("%s") == len(statement.parameters)


@pytest.mark.parametrize("text", ["with\0nul", "half \ud800 a character"])
def test_names_that_no_record_can_have_are_not_asked_for(text: str) -> None:
    by = (
        aggregates.MetaValue(text),
        aggregates.MetaValue("site_id", text),
        aggregates.ComponentAmount(text),
        aggregates.ComponentPresent(text),
        aggregates.ExceedsRuntime("Cores", Decimal(1), text),
        aggregates.ScoreValue(text, "score"),
    )
    query = aggregates.AggregateQuery(by=by, usage=(aggregates.ComponentUsage(text, ("score",)),))
    parameters = compile_aggregate(query, PostgresDialect()).statement.parameters
    assert text not in parameters
