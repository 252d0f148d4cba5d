"""Bins that a report covers only in part: its period begins or ends within them, or they are not over yet."""

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta

import msgspec

from auditord.reporting.questions import Question
from auditord.reporting.report import following
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.zones import zone_named

_MOMENT = timedelta(microseconds=1)


class Part(msgspec.Struct, frozen=True):
    """The days of a bin that a report has.

    Args:
        first: None if it has the bin from its beginning.
        last: None if it has the bin to its end.
    """

    first: date | None
    last: date | None

    def __str__(self) -> str:
        return self.text(iso=True)

    def text(self, *, iso: bool = False) -> str:
        """Return the days in words, such as ``from 29 Oct``; in ISO 8601, ``from 2026-10-29``."""
        first, last = (None if day is None else _written(day, iso=iso) for day in (self.first, self.last))
        if first is not None and last is not None:
            return first if first == last else f"{first} to {last}"
        return f"to {last}" if first is None else f"from {first}"


def part_of(question: Question, begin: date) -> Part | None:
    """Return the days that a report has of the bin that begins on a day; None if it has all of them.

    A day is never counted as a part of itself.
    """
    unit, window = question.bin, question.window
    if unit is None or unit is CalendarUnit.DAY or window is None:
        return None
    zone, end = zone_named(question.zone), following(begin, unit)
    start, stop = (moment.astimezone(zone).replace(tzinfo=None) for moment in (window.start, window.stop))
    first = start.date() if start > datetime.combine(begin, time.min) else None
    last = (stop - _MOMENT).date() if stop < datetime.combine(end, time.min) else None
    if question.now is not None:
        today = question.now.astimezone(zone).date()
        if begin <= today < end - timedelta(days=1) and (last is None or today < last):
            last = today
    return None if first is last is None else Part(first, last)


def parts_of(question: Question, bins: Iterable[date]) -> dict[date, Part]:
    """Return the bins that a report covers only in part."""
    found = ((begin, part_of(question, begin)) for begin in bins)
    return {begin: part for begin, part in found if part is not None}


def _written(day: date, *, iso: bool) -> str:
    return day.isoformat() if iso else f"{day.day} {day:%b}"
