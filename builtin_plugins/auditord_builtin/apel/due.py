"""Which months are to be looked at: the current and the previous one always, all others once a day."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from auditord_builtin.apel.books import SiteBook
from auditord_builtin.apel.months import Month
from auditord_hookspecs import AuditordError


@dataclass(frozen=True, slots=True)
class Due:
    """A month to look at.

    Args:
        month: which.
        always: report it even if nothing has changed since the last report.
    """

    month: Month
    always: bool


def first_month(since: datetime) -> Month:
    """The first month that lies wholly behind an instant: reporting half a month would replace a whole one."""
    month = Month.of(since)
    return month if month.start == since else month.next


def due_months(book: SiteBook, since: datetime, now: datetime, *, all_months: bool) -> Sequence[Due]:
    """The months of one site, the oldest first.

    Args:
        book: what is known of the site.
        since: nothing that stopped before is reported.
        now: the present.
        all_months: whether the older ones are looked at even if they were today.
    """
    first, current = first_month(since), Month.of(now)
    recent = {current, current.previous}
    full = all_months or book.looked != now.date()  # nor may a clock that once went wrong put it off
    waiting = {Month.parse(text) for text, month in book.months.items() if month.outbox is not None}
    looked_at = {*_between(first, current)} if full else recent
    chosen = (looked_at | recent | waiting) & {*_between(first, current), *waiting}
    return [Due(month, month in recent) for month in sorted(chosen)]


def skipped_month(since: datetime, now: datetime) -> Month | None:
    """The month that begins before ``publish_since`` and ends behind it, if it is over or going on."""
    month = Month.of(since)
    return month if month.start < since and month <= Month.of(now) else None


def whole_months(start: datetime, stop: datetime) -> Sequence[Month]:
    """The months that a period touches.

    Raises:
        AuditordError: the period is empty.
    """
    if stop <= start:
        raise AuditordError("the period ends before it begins")
    months = _between(Month.of(start), Month.of(stop))
    return [month for month in months if month.start < stop]


def _between(first: Month, last: Month) -> Iterator[Month]:
    month = first
    while month <= last:
        yield month
        month = month.next
