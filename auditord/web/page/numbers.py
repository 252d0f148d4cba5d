"""Numbers and times as people read them."""

from datetime import UTC, date, datetime, timedelta, tzinfo
from fractions import Fraction
from typing import Final

from auditord.reporting import Figure
from auditord.reporting.writing import text
from auditord_hookspecs.aggregates import CalendarUnit

NOTHING: Final = "\N{EN DASH}"
_WITHOUT_DIGITS: Final = 1_000
_MANY_TIMES: Final = 900
_STEPS: Final = ((Fraction(10**9), "G"), (Fraction(10**6), "M"), (Fraction(10**3), "k"))
_AGES: Final = (
    (timedelta(days=2), timedelta(days=1), "d"),
    (timedelta(hours=2), timedelta(hours=1), "h"),
    (timedelta(minutes=2), timedelta(minutes=1), "min"),
)


def format_figure(figure: Figure, unit: str = "", like: Figure | None = None) -> str:
    """Return a figure with few digits. Without a unit it is a count.

    ``like`` is the largest figure of a table, which determines the digits of all its figures.
    """
    if (value := figure.value) is None:
        return NOTHING
    digits = digits_of((like or figure).value or value, unit)
    least = Fraction(1, 10**digits)
    return f"< {text(least, digits)}" if 0 < value < least / 2 else text(value, digits)


def with_unit(value: str, unit: str) -> str:
    """Return a shown figure with its unit, if it has a unit and a value."""
    return f"{value} {unit}" if unit and value != NOTHING else value


def digits_of(value: Fraction, unit: str) -> int:
    """Return the number of decimals for a value of this size."""
    if not unit or abs(value) >= _WITHOUT_DIGITS or not value:
        return 0
    return 1 if abs(value) >= 1 else 3


def format_change(change: Fraction | None) -> str | None:
    """Return a change in percent as a signed whole number, or as a factor if it is large; None for None."""
    if change is None:
        return None
    if change >= _MANY_TIMES:
        return f"\N{MULTIPLICATION SIGN} {round(1 + change / 100):,}"
    rounded = round(change)
    sign = "\N{MINUS SIGN}" if rounded < 0 else "+" if rounded else "\N{PLUS-MINUS SIGN}"
    return f"{sign}{abs(rounded)} %"


def percent(value: Fraction | None) -> str:
    """Return a percentage with one decimal, without the percent sign; a small one is not shown as zero."""
    if value is None:
        return NOTHING
    return "< 0.1" if 0 < value <= Fraction(1, 20) else text(value, 1)


def compact(value: float) -> str:
    """Return a number in few characters, for axes: 12.5 k."""
    exact = Fraction(value).limit_denominator(10**6)
    for size, letter in _STEPS:
        if abs(exact) >= size:
            return f"{float(exact / size):.3g} {letter}"
    return f"{float(exact):.3g}"


def begin_of_bin(begin: date, unit: CalendarUnit) -> str:
    """Return the name of a bin on an axis: 3 Nov, 2026-W45, Nov 2026, 2026 Q4 or 2026."""
    match unit:
        case CalendarUnit.DAY:
            return f"{begin.day} {begin:%b}"
        case CalendarUnit.WEEK:
            year, week, _ = begin.isocalendar()
            return f"{year}-W{week:02}"
        case CalendarUnit.MONTH:
            return f"{begin:%b %Y}"
        case CalendarUnit.QUARTER:
            return f"{begin.year} Q{(begin.month + 2) // 3}"
        case CalendarUnit.YEAR:
            return str(begin.year)


def ago(moment: datetime | None, now: datetime) -> str:
    """Return an instant relative to ``now``: 5 min ago, in 3 h."""
    if moment is None:
        return NOTHING
    distance = now - moment
    known = ((size, letters) for least, size, letters in _AGES if abs(distance) >= least)
    size, letters = next(known, (timedelta(seconds=1), "s"))
    words = f"{abs(distance) // size} {letters}"
    return f"{words} ago" if distance >= timedelta(0) else f"in {words}"


def instant(moment: datetime | None, zone: tzinfo = UTC) -> str:
    """Return an instant to the second, in a time zone; in UTC if the zone has it in year 0 or 10000."""
    if moment is None:
        return NOTHING
    try:
        return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: int | None) -> str:
    """Return a length of time: 3 d 04:05:06."""
    if seconds is None:
        return NOTHING
    days, rest = divmod(abs(seconds), 86_400)
    clock = f"{rest // 3_600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return ("-" if seconds < 0 else "") + (f"{days} d {clock}" if days else clock)
