"""The options that choose records: one meaning of a period, in whichever words."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from auditord.cli.record_listing import listing_options, query_of
from auditord_hookspecs import RecordQuery


def query(*arguments: str) -> RecordQuery:
    asked = list[RecordQuery]()

    @click.command()
    @listing_options
    def command(**chosen: Any) -> None:  # Any: click's values
        asked.append(query_of(**chosen))

    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return asked[0]


@pytest.mark.parametrize(("short", "long"), [("--from", "--stopped-since"), ("--to", "--stopped-before")])
def test_a_period_is_of_stop_times_as_in_reports(short: str, long: str) -> None:
    assert query(short, "2026-11-01") == query(long, "2026-11-01") != query()
