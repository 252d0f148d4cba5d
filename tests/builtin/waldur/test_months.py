"""Billing months tile time exactly, in every zone."""

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_builtin.waldur.usage import BillingMonth, month_at, months_to_report

ZONES: Final = sorted(available_timezones() - {"localtime"})
MONTHS: Final = st.builds(
    BillingMonth, st.integers(1900, 2200), st.integers(1, 12), st.sampled_from(ZONES).map(ZoneInfo)
)


@given(MONTHS)
def test_each_month_ends_where_the_next_one_begins(month: BillingMonth) -> None:
    assert month.window.stop == month.next.window.start
    assert month.window.start == month.previous.window.stop
    assert timedelta(days=27) < month.window.stop - month.window.start < timedelta(days=32)


@given(st.datetimes(datetime(1900, 1, 2), datetime(2200, 1, 1)), st.sampled_from(ZONES))  # noqa: DTZ001 aware below
def test_each_instant_is_in_the_month_that_names_it(naive: datetime, zone: str) -> None:
    moment = naive.replace(tzinfo=UTC)
    window = month_at(moment, ZoneInfo(zone)).window
    assert window.start <= moment < window.stop


@pytest.mark.parametrize(
    ("zone", "name", "start", "stop"),
    [
        ("UTC", "2024-02", "2024-02-01T00:00Z", "2024-03-01T00:00Z"),
        ("Europe/Tallinn", "2025-07", "2025-06-30T21:00Z", "2025-07-31T21:00Z"),  # east: begins on 30 June in UTC
        ("Europe/Tallinn", "2025-10", "2025-09-30T21:00Z", "2025-10-31T22:00Z"),  # the clocks go back in it
        ("America/Los_Angeles", "2025-03", "2025-03-01T08:00Z", "2025-04-01T07:00Z"),  # west: ends in April in UTC
        ("Pacific/Kiritimati", "2025-01", "2024-12-31T10:00Z", "2025-01-31T10:00Z"),
        ("America/Asuncion", "2017-10", "2017-10-01T04:00Z", "2017-11-01T03:00Z"),  # 1 October begins at 01:00
        ("America/Havana", "2015-11", "2015-11-01T04:00Z", "2015-12-01T05:00Z"),  # 1 November: midnight comes twice
    ],
)
def test_months_east_and_west_of_utc(zone: str, name: str, start: str, stop: str) -> None:
    window = BillingMonth(int(name[:4]), int(name[5:]), ZoneInfo(zone)).window
    assert (window.start, window.stop) == (datetime.fromisoformat(start), datetime.fromisoformat(stop))


def test_the_oldest_month_is_reported_first() -> None:
    now = datetime(2025, 1, 1, 0, 30, tzinfo=UTC)
    assert [str(month) for month in months_to_report(now, ZoneInfo("UTC"), 3)] == ["2024-11", "2024-12", "2025-01"]
    assert [str(month) for month in months_to_report(now, ZoneInfo("UTC"), 1)] == ["2024-12", "2025-01"]
    assert [str(month) for month in months_to_report(now + timedelta(days=1), ZoneInfo("UTC"), 1)] == ["2025-01"]
    west = months_to_report(now, ZoneInfo("America/New_York"), 2)
    assert [str(month) for month in west] == ["2024-11", "2024-12"], "there it is still December"
