"""Months and weeks, and which of them are due."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_builtin.utilisation.periods import PeriodKind, due, last_complete, parse_period, period_at

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def test_months_and_weeks_are_of_utc() -> None:
    east = datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    assert period_at(PeriodKind.MONTH, east).name == "2025-12"
    week = period_at(PeriodKind.WEEK, datetime(2027, 1, 1, tzinfo=UTC))
    assert (week.name, week.start, week.stop) == (
        "2026-W53",
        datetime(2026, 12, 28, tzinfo=UTC),
        datetime(2027, 1, 4, tzinfo=UTC),
    )


MOMENTS = st.floats(1e5, 7e9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@given(MOMENTS, st.sampled_from(PeriodKind))
def test_a_period_holds_its_moment_and_is_read_back_from_its_name(moment: datetime, kind: PeriodKind) -> None:
    period = period_at(kind, moment)
    assert period.start <= moment < period.stop
    assert parse_period(period.name) == period
    assert period_at(kind, period.stop).start == period.stop


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-00", "2025-W53", "2026-1", "January", "2026-W00", "0000-01", "٢٠٢٦-01"]
)
def test_other_texts_are_no_periods(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_period(text)


def test_without_state_only_the_last_period_is_due() -> None:
    assert [period.name for period in due(PeriodKind.MONTH, None, NOW)] == ["2026-02"]
    assert [period.name for period in due(PeriodKind.WEEK, None, NOW)] == ["2026-W10"]
    assert last_complete(PeriodKind.MONTH, datetime(2026, 3, 1, tzinfo=UTC)).name == "2026-02"


def test_all_that_an_outage_left_is_due_and_nothing_twice() -> None:
    until = datetime(2025, 12, 1, tzinfo=UTC)
    assert [period.name for period in due(PeriodKind.MONTH, until, NOW)] == ["2025-12", "2026-01", "2026-02"]
    assert list(due(PeriodKind.MONTH, datetime(2026, 3, 1, tzinfo=UTC), NOW)) == []


def test_a_month_of_which_weeks_were_reported_is_not_reported_again() -> None:
    until = datetime(2026, 1, 12, tzinfo=UTC)
    assert [period.name for period in due(PeriodKind.MONTH, until, NOW)] == ["2026-02"]
