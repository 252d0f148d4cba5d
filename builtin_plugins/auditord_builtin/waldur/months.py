"""Billing months: those of a zone, those that a report covers, and the instants that go with their amounts."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from auditord_hookspecs.months import Month

MADE_UP_FOR: Final = timedelta(days=1)
"""A month that has ended is reported again for so long, whatever is configured."""

CLOCKS_APART: Final = timedelta(minutes=5)
"""So far may the server's clock be behind ours."""


@dataclass(frozen=True, slots=True)
class BillingMonth(Month):
    """A month of a zone: it begins and ends at that zone's midnights."""

    zone: ZoneInfo

    @property
    def start(self) -> datetime:
        """The first instant of the month, in UTC."""
        # A midnight that clocks leave out is the instant of the change, one that comes twice is the first of the two.
        return datetime(self.year, self.month, 1, tzinfo=self.zone).astimezone(UTC)


def month_at(moment: datetime, zone: ZoneInfo) -> BillingMonth:
    """The month that an aware instant lies in."""
    local = moment.astimezone(zone)
    found = BillingMonth(local.year, local.month, zone)
    # Where clocks are set back over the midnight of a first day, the last hour of a month comes twice.
    return found.next if moment >= found.next.start else found


def reported_months(now: datetime, zone: ZoneInfo, periods: int) -> list[BillingMonth]:
    """The present month and those before it, the oldest first: older Waldurs show what came last as the present usage.

    There are ``periods``; for a day the month that has ended is among them in any case: its last minutes were not known
    before.
    """
    months = [month_at(now, zone)]
    ended = month_at(now - MADE_UP_FOR, zone)
    while len(months) < periods or ended.first_day < months[0].first_day:
        months.insert(0, months[0].previous)
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
