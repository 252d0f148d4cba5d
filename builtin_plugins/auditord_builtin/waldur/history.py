"""The part of the past that is to be loaded into Waldur."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from auditord_builtin.waldur.client import WaldurError
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.figure_sources import Source
from auditord_builtin.waldur.months import BillingMonth


class NotLoaded(WaldurError):
    """Waldur does not have everything that was to be loaded."""


@dataclass(frozen=True, slots=True)
class History:
    """The months to be loaded, and how.

    Args:
        start: a day of the first month.
        end: a day of the last month.
        source: where the figures come from.
        accounts: the only ones to load; empty: all.
        delay: a pause between months.
        allow_decrease: figures may fall.
        reconcile_stale: amounts of accounts and users without any usage become zero.
        users: amounts of users are loaded, too.
        staff_check: the token must be one of staff.
    """

    start: date
    end: date
    source: Source = Source.STORE
    accounts: Sequence[str] = ()
    delay: timedelta = timedelta(0)
    allow_decrease: bool = False
    reconcile_stale: bool = False
    users: bool = True
    staff_check: bool = True

    def months(self, config: WaldurConfig, now: datetime) -> Sequence[BillingMonth]:
        """The months, the oldest first; the one that is going on may be the last.

        Raises:
            NotLoaded: they do not follow each other, or have not begun.
        """
        first, last = (BillingMonth(day.year, day.month, config.zone) for day in (self.start, self.end))
        if self.end < self.start:
            raise NotLoaded(f"the end, {self.end}, is before the start, {self.start}")
        if last.window.start > now:
            raise NotLoaded(f"{last.name} has not begun: there is nothing to load of it")
        months = [first]
        while months[-1].first_day < last.first_day:
            months.append(months[-1].next())
        return months
