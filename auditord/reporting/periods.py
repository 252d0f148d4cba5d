"""Named calendar periods, and the periods before them.

Periods are in the time zone of the instant for which they are computed. Their days begin at midnight by the zone's
clocks, so a day may last 23 or 25 hours.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Final

from auditord_hookspecs.query import Window

_DAY: Final = timedelta(days=1)

FIRST_DAY: Final = date(1900, 1, 1)
LAST_DAY: Final = date(2999, 12, 31)
"""The first and last day of a period. Days of the periods before and after it stay within Python's calendar."""


def check_day(moment: datetime) -> datetime:
    """Return the instant if a period may begin or end on its day.

    Raises:
        ValueError: it is too close to an end of the calendar.
    """
    if not FIRST_DAY <= moment.date() <= LAST_DAY:
        raise ValueError(f"{moment.date()} is not between {FIRST_DAY} and {LAST_DAY}")
    return moment


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def month_of(moment: datetime, back: int = 0) -> Window:
    """Return the calendar month of an instant, or an earlier one."""
    first = _midnight(moment).replace(day=1)
    for _ in range(back):
        first = (first - _DAY).replace(day=1)
    return Window(first, (first + timedelta(days=32)).replace(day=1))


def quarter_of(moment: datetime, back: int = 0) -> Window:
    """Return the calendar quarter of an instant, or an earlier one."""
    first = month_of(moment, (moment.month - 1) % 3 + 3 * back).start
    return Window(first, month_of(first + timedelta(days=80)).stop)


def days_until(moment: datetime, count: int) -> Window:
    """Return the window of ``count`` days that ends with the day of an instant."""
    tomorrow = _midnight(moment) + _DAY
    return Window(tomorrow - timedelta(days=count), tomorrow)


def year_of(moment: datetime, back: int = 0) -> Window:
    """Return the calendar year of an instant, or an earlier one."""
    first = _midnight(moment).replace(year=moment.year - back, month=1, day=1)
    return Window(first, first.replace(year=first.year + 1))


def previous_period(window: Window) -> Window:
    """Return the previous period of the same length; for whole months, of the same number of months."""
    if (months := _whole_months(window)) is not None:
        return Window(month_of(window.start, months).start, window.start)
    return Window(window.start - (window.stop - window.start), window.start)


def next_period(window: Window) -> Window:
    """Return the next period of the same length; for whole months, of the same number of months."""
    if (months := _whole_months(window)) is not None:
        years, month = divmod(window.stop.month - 1 + months, 12)
        return Window(window.stop, window.stop.replace(year=window.stop.year + years, month=month + 1))
    return Window(window.stop, window.stop + (window.stop - window.start))


def _whole_months(window: Window) -> int | None:
    """Return the number of months in a window; None if it does not consist of whole months."""
    if not window.start.day == window.stop.day == 1 or window.start.time() != window.stop.time():
        return None
    return (window.stop.year - window.start.year) * 12 + window.stop.month - window.start.month


def year_before(window: Window) -> Window:
    """Return the same days of the previous year."""
    return Window(_year_before(window.start), _year_before(window.stop))


def _year_before(moment: datetime) -> datetime:
    last_of_february = moment.month == 2 and moment.day == 29  # noqa: PLR2004 a day that few years have
    return moment.replace(year=moment.year - 1, day=28 if last_of_february else moment.day)


def up_to_same_day(former: Window, window: Window, now: datetime) -> Window:
    """If ``window`` is still running, return only as many days of ``former`` as have begun in ``window``."""
    elapsed = now.date() + _DAY - window.start.date()
    if now >= window.stop or elapsed <= timedelta(0):
        return former
    return Window(former.start, min(former.start + elapsed, former.stop))


PERIODS: Final[Mapping[str, Callable[[datetime], Window]]] = {
    "7-days": lambda now: days_until(now, 7),
    "30-days": lambda now: days_until(now, 30),
    "90-days": lambda now: days_until(now, 90),
    "this-month": month_of,
    "last-month": lambda now: month_of(now, 1),
    "this-quarter": quarter_of,
    "last-quarter": lambda now: quarter_of(now, 1),
    "12-months": lambda now: Window(month_of(now, 11).start, month_of(now).stop),
    "this-year": year_of,
    "last-year": lambda now: year_of(now, 1),
}
"""The named periods, each computed for an instant."""
