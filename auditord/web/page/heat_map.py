"""A heat map of days: a row for each weekday, a column for each week, in blocks of a year's weeks."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Final

from auditord.web.page.drawing import WIDTH, Mark, Picture, marked, rectangle, text_at
from auditord.web.page.numbers import compact

SHADES: Final = 5

_LEFT: Final = 52
_WEEKS: Final = 53
_STEP: Final = (WIDTH - _LEFT) / _WEEKS
_SIZE: Final = _STEP - 2.5
_TOP: Final = 24
_BLOCK: Final = round(_TOP + 7 * _STEP + 12)
_WEEKDAYS: Final = (0, 2, 4)
_A_MONDAY: Final = date(2024, 1, 1)


def heat_map(title: str, days: Mapping[date, Mark], unit: str = "") -> Picture | None:
    """A square for each day, the darker the larger its value; nothing without values."""
    largest = max((mark.value or 0 for mark in days.values()), default=0)
    if not largest:
        return None
    first = min(days)
    monday = first - timedelta(days=first.weekday())
    foot = ((max(days) - monday).days // 7 // _WEEKS + 1) * _BLOCK
    names = [part for top in range(0, foot, _BLOCK) for part in _names(top)]
    months = _months(sorted(days), monday)
    key = _key(f"{compact(largest)} {unit}".rstrip(), foot)
    return Picture(title, round(foot + _STEP + 8), "".join([*names, *months, *_squares(days, largest, monday), *key]))


def shade(value: float | None, largest: float) -> int:
    """The shade of a value: 0 for nothing, else 1 to 5 in equal steps."""
    return min(SHADES, 1 + int(SHADES * value / largest)) if value else 0


def _names(top: float) -> Iterator[str]:
    for weekday in _WEEKDAYS:
        name = f"{_A_MONDAY + timedelta(days=weekday):%a}"
        yield text_at(_LEFT - 8, top + _TOP + (weekday + 0.7) * _STEP, name, css="end")


def _months(days: Sequence[date], monday: date) -> Iterator[str]:
    """The names of months above their first weeks, with the year where it begins."""
    for day in days:
        if day.day == 1:
            x, top = _place((day - monday).days // 7)
            yield text_at(x, top + 14, f"{day:%Y}" if day.month == 1 else f"{day:%b}", css="begin")


def _place(week: int) -> tuple[float, float]:
    block, column = divmod(week, _WEEKS)
    return _LEFT + column * _STEP, block * _BLOCK


def _squares(days: Mapping[date, Mark], largest: float, monday: date) -> Iterator[str]:
    for day in sorted(days):
        x, top = _place((day - monday).days // 7)
        css = f"heat-{shade(days[day].value, largest)}"
        yield marked(rectangle(x, top + _TOP + day.weekday() * _STEP, _SIZE, _SIZE, css), days[day])


def _key(largest: str, top: float) -> Iterator[str]:
    """The shades, from nothing to the largest value."""
    x = WIDTH - 140 - (SHADES + 1) * _STEP
    yield text_at(x - 8, top + 0.7 * _STEP, "0", css="end")
    for at in range(SHADES + 1):
        yield rectangle(x + at * _STEP, top, _SIZE, _SIZE, f"heat-{at}")
    yield text_at(x + (SHADES + 1) * _STEP + 4, top + 0.7 * _STEP, largest, css="begin")
