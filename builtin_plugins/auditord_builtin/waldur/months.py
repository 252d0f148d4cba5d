"""Billing periods: calendar months of a time zone, as half-open periods of instants."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from auditord_hookspecs import Window

_WRITTEN: Final = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
_MONTHS: Final = 12

MADE_UP_FOR: Final = timedelta(days=1)
"""A month that has ended is reported again for so long, whatever is configured."""

CLOCKS_APART: Final = timedelta(minutes=5)
"""So far may the server's clock be behind ours."""


@dataclass(frozen=True, slots=True)
class BillingMonth:
    """One month of a zone."""

    year: int
    month: int
    zone: ZoneInfo

    @classmethod
    def of(cls, moment: datetime, zone: ZoneInfo) -> "BillingMonth":
        """The month that an aware instant lies in."""
        local = moment.astimezone(zone)
        found = cls(local.year, local.month, zone)
        # Where clocks are set back over the midnight of a first day, the last hour of a month comes twice.
        return found.next() if moment >= found.window.stop else found

    @classmethod
    def parse(cls, text: str, zone: ZoneInfo) -> "BillingMonth":
        """The month that ``2024-01`` names.

        Raises:
            ValueError: it names none.
        """
        if (match := _WRITTEN.fullmatch(text.strip())) is None or match[1] == "0000":
            raise ValueError(f"{text!r} is no month such as 2024-01")
        return cls(int(match[1]), int(match[2]), zone)

    @property
    def name(self) -> str:
        """As it is written: ``2024-01``."""
        return f"{self.year:04}-{self.month:02}"

    @property
    def first_day(self) -> date:
        """Waldur's name of the period."""
        return date(self.year, self.month, 1)

    @property
    def window(self) -> Window:
        """From its first instant up to the next month's first one, in UTC; months that follow each other tile."""
        return Window(self._begin(), self.next()._begin())  # noqa: SLF001 a month asks another month

    def next(self) -> "BillingMonth":
        """The month after it."""
        return self._moved(1)

    def previous(self) -> "BillingMonth":
        """The month before it."""
        return self._moved(-1)

    def _moved(self, months: int) -> "BillingMonth":
        year, month = divmod(self.year * _MONTHS + self.month - 1 + months, _MONTHS)
        return BillingMonth(year, month + 1, self.zone)

    def _begin(self) -> datetime:
        # A midnight that clocks leave out is the instant of the change, one that comes twice is the first of the two.
        return datetime(self.year, self.month, 1, tzinfo=self.zone).astimezone(UTC)


def reported_months(now: datetime, zone: ZoneInfo, periods: int) -> list[BillingMonth]:
    """The present month and those before it, the oldest first: older Waldurs show what came last as the present usage.

    There are ``periods``; for a day the month that has ended is among them in any case: its last minutes were not known
    before.
    """
    months = [BillingMonth.of(now, zone)]
    ended = BillingMonth.of(now - MADE_UP_FOR, zone)
    while len(months) < periods or ended.first_day < months[0].first_day:
        months.insert(0, months[0].previous())
    return months


def moment_of(month: BillingMonth, now: datetime) -> datetime | None:
    """The instant to send with a month's amounts; None while the server would misunderstand it.

    The server finds the month in a zone of its own, and refuses instants that its clock has not reached. Noon of the
    first day is in the same month everywhere. For the month that is going on only the present will do, and for some
    hours of its first or last day that is another month in UTC: a later run will do.
    """
    if now >= month.window.stop:
        return datetime(month.year, month.month, 1, 12, tzinfo=UTC)
    present = (now - CLOCKS_APART).astimezone(UTC)
    return present if (present.year, present.month) == (month.year, month.month) else None
