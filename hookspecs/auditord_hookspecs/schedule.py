"""Five-field cron lines, validated and normalised so that every scheduler reads them the same way.

Schedulers disagree about two things. Numbers for the day of the week (0 is Sunday for cron, Monday for others) are
replaced with names. A day of the month together with a day of the week (cron requires either, others require both) is
refused.
"""

import re
from typing import Annotated

import msgspec
from pydantic import AfterValidator

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(\*|[a-z]+|\d+)(?:-([a-z]+|\d+))?(?:/(\d+))?", re.ASCII)


class _Field(msgspec.Struct, frozen=True):
    """One field of a cron line: its name, its range, and names for the numbers from ``least`` on."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def values(self, text: str) -> set[int]:
        """Return the numbers that the field's text stands for.

        Raises:
            ValueError: the text breaks the grammar or leaves the range.
        """
        values: set[int] = set()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None or (match[1] == "*" and match[2]):
                raise ValueError(f"'{part}' is not a valid {self.name}")
            first = self.least if match[1] == "*" else self._number(match[1])
            open_ended = match[1] == "*" or (match[3] and not match[2])
            last = self.most if open_ended else self._number(match[2] or match[1])
            if first and last == 0 and self.names == _DAYS:  # a week that ends on Sunday (``mon-sun``) ends on day 7
                last = 7
            step = int(match[3] or 1)
            if first > last or not 0 < step <= self.most - self.least:
                raise ValueError(f"'{part}' is not a range of {self.name}s")
            values.update(range(first, last + 1, step))
        return values

    def _number(self, text: str) -> int:
        value = self.names.index(text) + self.least if text in self.names else -1
        value = int(text) if text.isdigit() else value
        if not self.least <= value <= self.most:
            raise ValueError(f"'{text}' is not a valid {self.name} ({self.least} to {self.most})")
        return value


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


def parse_schedule(text: str) -> str:
    """Return a cron line in UTC in lower case, with names for the days of the week.

    Raises:
        ValueError: the line does not have five fields, a field is invalid, or no date ever matches.
    """
    texts = text.lower().split()
    if len(texts) != len(_FIELDS):
        raise ValueError(f"'{text}' has {len(texts)} fields, not 5: minute, hour, day of the month, month, weekday")
    _, _, days, months, weekdays = (field.values(each) for field, each in zip(_FIELDS, texts, strict=True))
    if texts[2] != "*" and texts[4] != "*":
        raise ValueError(f"'{text}' names days of the month and of the week: keep one of them")
    if min(days) > max(_LONGEST[month - 1] for month in months):
        raise ValueError(f"'{text}' never occurs: no such month has a day {min(days)}")
    names = "*" if texts[4] == "*" else ",".join(_DAYS[day] for day in sorted({day % 7 for day in weekdays}))
    return " ".join([*texts[:4], names])


Schedule = Annotated[str, AfterValidator(parse_schedule)]
