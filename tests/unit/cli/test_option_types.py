"""Instants on the command line."""

from datetime import UTC, datetime

import click
import pytest

from auditord.cli.option_types import INSTANT, PERIOD_INSTANT


@pytest.mark.parametrize("text", ["0001-01-01", "1899-12-31", "3000-01-01", "9999-12-31T23:59:59Z"])
def test_no_period_begins_or_ends_at_the_edge_of_the_calendar(text: str) -> None:
    assert INSTANT.convert(text, None, None).tzinfo is UTC
    with pytest.raises(click.BadParameter, match="is not between 1900-01-01 and 2999-12-31"):
        PERIOD_INSTANT.convert(text, None, None)


def test_the_first_and_the_last_day_of_a_period() -> None:
    for text in ("1900-01-01", "2999-12-31"):
        assert PERIOD_INSTANT.convert(text, None, None) == datetime.fromisoformat(text).replace(tzinfo=UTC)
