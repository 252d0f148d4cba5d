"""Calendar months in UTC, and arithmetic with them."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Final, Self, TypeVar

import msgspec
from msgspec.structs import replace

from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.query import Window

_WRITTEN: Final = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_MONTHS: Final = 12

M = TypeVar("M", bound="Month")


class Month(msgspec.Struct, frozen=True, order=True):
    """A calendar month. Earlier months compare as smaller; ``str`` returns ``2026-02``.

    Do not add fields: the JSON is part of the digests of data sent to APEL, so every month would be reported again.

    Args:
        year: 1 to 9998, so that every month has a next one.
        month: 1 to 12.
    """

    year: int
    month: int

    def __post_init__(self) -> None:
        if not (1 <= self.year <= 9_998 and 1 <= self.month <= _MONTHS):  # noqa: PLR2004 the years of datetime
            raise ValueError(f"{self.year}-{self.month} is not a month: write it as 2026-02")

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"

    @classmethod
    def of(cls, moment: datetime) -> "Month":
        """Return the UTC month that contains an aware instant."""
        if moment.tzinfo is None:
            raise ValueError("an instant needs a zone")
        utc = moment.astimezone(UTC)
        return Month(utc.year, utc.month)

    @classmethod
    def parse(cls, text: str) -> "Month":
        """Parse ``2026-02``.

        Raises:
            ValueError: the text is not a month.
        """
        if (match := _WRITTEN.fullmatch(text.strip())) is None:
            raise ValueError(f"{text!r} is not a month: write it as 2026-02")
        return Month(int(match[1]), int(match[2]))

    @property
    def first_day(self) -> date:
        """The first day of the month."""
        return date(self.year, self.month, 1)

    @property
    def start(self) -> datetime:
        """The first instant of the month."""
        return datetime(self.year, self.month, 1, tzinfo=UTC)

    @property
    def window(self) -> Window:
        """The period from the month's first instant to that of the next month. Consecutive months leave no gap."""
        return Window(self.start, self.next.start)

    @property
    def next(self) -> Self:
        """The next month."""
        return self.plus(1)

    @property
    def previous(self) -> Self:
        """The previous month."""
        return self.plus(-1)

    def plus(self, months: int) -> Self:
        """Return the month ``months`` later."""
        year, month = divmod(self.year * _MONTHS + self.month - 1 + months, _MONTHS)
        return replace(self, year=year, month=month + 1)


def months_from(first: M, last: M) -> Iterator[M]:
    """Yield the months from ``first`` to ``last``, both included."""
    while first.first_day <= last.first_day:
        yield first
        first = first.next


def first_month(since: datetime) -> Month:
    """Return the first month that begins at or after an instant. Reporting half a month would replace a whole one."""
    month = Month.of(since)
    return month if month.start == since else month.next


def whole_months(start: datetime, stop: datetime) -> Sequence[Month]:
    """Return the months that a period overlaps.

    Raises:
        AuditordError: the period is empty.
    """
    if stop <= start:
        raise AuditordError("the period ends before it begins")
    return [month for month in months_from(Month.of(start), Month.of(stop)) if month.start < stop]
