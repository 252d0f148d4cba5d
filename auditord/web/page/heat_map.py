"""A heat map of days: a row for each weekday, a column for each week, a block for each year."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import groupby
from typing import Final

from auditord.web.page.drawing import WIDTH, Mark, marked, picture, rectangle, text_at
from auditord.web.page.numbers import compact

SHADES: Final = 5

_LEFT: Final = 52
_STEP: Final = (WIDTH - _LEFT) / 54
_SIZE: Final = _STEP - 2.5
_TOP: Final = 24
_BLOCK: Final = _TOP + 7 * _STEP + 12
_WEEKDAYS: Final = (0, 2, 4)
_A_MONDAY: Final = date(2024, 1, 1)


def heat_map(title: str, days: Mapping[date, Mark]) -> str:
    """A square for each day, the darker the larger its value; nothing without values."""
    largest = max((mark.value or 0 for mark in days.values()), default=0)
    if not largest:
        return ""
    parts: list[str] = []
    years = [list(each) for _, each in groupby(sorted(days), key=lambda day: day.year)]
    for at, year in enumerate(years):
        parts += _year(year, days, largest, at * _BLOCK)
    foot = len(years) * _BLOCK
    return picture(title, round(foot + _STEP + 8), [*parts, *_key(largest, foot)])


def shade(value: float | None, largest: float) -> int:
    """The shade of a value: 0 for nothing, else 1 to 5 in equal steps."""
    return min(SHADES, 1 + int(SHADES * value / largest)) if value else 0


def _year(year: Sequence[date], days: Mapping[date, Mark], largest: float, top: float) -> Iterator[str]:
    yield text_at(0, top + 14, str(year[0].year), css="begin strong")
    for weekday in _WEEKDAYS:
        name = f"{_A_MONDAY + timedelta(days=weekday):%a}"
        yield text_at(_LEFT - 8, top + _TOP + (weekday + 0.7) * _STEP, name, css="end")
    first_week = date(year[0].year, 1, 1) - timedelta(days=date(year[0].year, 1, 1).weekday())
    for day in year:
        x, y = _LEFT + (day - first_week).days // 7 * _STEP, top + _TOP + day.weekday() * _STEP
        if day.day == 1:
            yield text_at(x, top + 14, f"{day:%b}", css="begin")
        square = rectangle(x, y, _SIZE, _SIZE, f"heat-{shade(days[day].value, largest)}")
        yield marked(square, days[day])


def _key(largest: float, top: float) -> Iterator[str]:
    """The shades, from nothing to the largest value."""
    x = WIDTH - 80 - (SHADES + 1) * _STEP
    yield text_at(x - 8, top + 0.7 * _STEP, "0", css="end")
    for at in range(SHADES + 1):
        yield rectangle(x + at * _STEP, top, _SIZE, _SIZE, f"heat-{at}")
    yield text_at(x + (SHADES + 1) * _STEP + 4, top + 0.7 * _STEP, compact(largest), css="begin")
