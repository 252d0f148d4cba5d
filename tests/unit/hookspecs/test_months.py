"""Months of UTC."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_hookspecs.months import Month


@given(st.builds(Month, st.integers(1900, 2200), st.integers(1, 12)))
def test_its_name_is_read_back_and_years_end(month: Month) -> None:
    assert Month.parse(str(month)) == month
    assert month.next.previous == month
    assert (month.first_day.year, month.first_day.month, month.first_day.day) == (month.year, month.month, 1)


@pytest.mark.parametrize(
    "text", ["2024", "2024-13", "2024-00", "2024-1", "0000-01", "26-Feb", "²024-1", "24-01", "2024-01-01", ""]
)
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 2026-02"):
        Month.parse(text)


def test_a_month_is_that_of_utc() -> None:
    assert Month.of(datetime(2026, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=1)))) == Month(2026, 2)


def test_windows_of_months_that_follow_each_other_touch() -> None:
    december = Month(2025, 12)
    assert december.window.stop == december.next.window.start == datetime(2026, 1, 1, tzinfo=UTC)
    assert december.next.previous == december
    assert Month(2024, 2).plus(-14) == Month(2022, 12)


def test_months_are_in_order() -> None:
    assert sorted([Month(2026, 1), Month(2025, 12), Month(2025, 2)]) == [
        Month(2025, 2),
        Month(2025, 12),
        Month(2026, 1),
    ]


def test_an_instant_without_zone_is_in_no_month() -> None:
    with pytest.raises(ValueError, match="zone"):
        Month.of(datetime(2026, 1, 1))  # noqa: DTZ001 what it is about
