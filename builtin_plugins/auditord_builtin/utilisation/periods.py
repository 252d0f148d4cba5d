"""The periods of reports: months and ISO weeks in UTC."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Final

import msgspec

_MONTH: Final = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_WEEK: Final = re.compile(r"(\d{4})-W(\d{2})", re.ASCII)


class PeriodKind(Enum):
    """The length of a report's period."""

    WEEK = "week"
    MONTH = "month"


class Period(msgspec.Struct, frozen=True):
    """A month or a week.

    Args:
        name: ``2026-01``, or ``2026-W05``: a week from Monday, in the year of most of its days.
        start: the first instant, in UTC.
        stop: the first instant after the period.
    """

    name: str
    start: datetime
    stop: datetime


def period_at(kind: PeriodKind, moment: datetime) -> Period:
    """Return the month or week of an aware instant."""
    day = moment.astimezone(UTC).date()
    if kind is PeriodKind.MONTH:
        first = day.replace(day=1)
        return Period(f"{first:%Y-%m}", _midnight(first), _midnight((first + timedelta(days=31)).replace(day=1)))
    year, week, weekday = day.isocalendar()
    monday = day - timedelta(days=weekday - 1)
    return Period(f"{year:04}-W{week:02}", _midnight(monday), _midnight(monday + timedelta(days=7)))


def parse_period(text: str) -> Period:
    """Parse a month such as ``2026-01`` or a week such as ``2026-W05``.

    Raises:
        ValueError: the text is neither.
    """
    try:
        if match := _MONTH.fullmatch(text):
            return period_at(PeriodKind.MONTH, datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC))
        if match := _WEEK.fullmatch(text):
            monday = date.fromisocalendar(int(match[1]), int(match[2]), 1)
            return period_at(PeriodKind.WEEK, _midnight(monday))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"'{text}' is not in the calendar") from error
    raise ValueError(f"'{text}' is neither a month (2026-01) nor a week (2026-W05)")


def last_complete(kind: PeriodKind, now: datetime) -> Period:
    """Return the latest period that has ended."""
    return period_at(kind, period_at(kind, now).start - timedelta(microseconds=1))


def due(kind: PeriodKind, reported_until: datetime | None, now: datetime) -> Iterator[Period]:
    """Yield the periods that are over and not reported, the oldest first.

    If all periods before ``reported_until`` have been reported, a period that contains it was partly reported before a
    change from weeks to months, and is not due. Without ``reported_until``, only the latest period is due.
    """
    latest = last_complete(kind, now)
    if reported_until is None:
        yield latest
        return
    period = period_at(kind, reported_until)
    if period.start < reported_until:
        period = period_at(kind, period.stop)
    while period.start <= latest.start:
        yield period
        period = period_at(kind, period.stop)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
