"""Numbers, lists and durations in sentences for people: ``1 record``, ``2 entries are``, ``5 min``.

No message says ``1 records``: a test checks that all numbers are formatted by :func:`counted`.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

_UNITS: Final[tuple[tuple[int, str], ...]] = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return a number, with thousands separators, and the matching word.

    Args:
        number: the number.
        one: the words after 1, such as ``record`` or ``record is``.
        several: the words after any other number; by default the regular plural of ``one``.
    """
    if several is None:
        several = f"{one[:-1]}ies" if one.endswith("y") and one[-2:-1] not in "aeou" else f"{one}s"
    return f"{number:,} {one if number == 1 else several}"


def format_list(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return up to ``most`` of the texts, and the number of the others."""
    rest = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *rest])


def span(length: timedelta) -> str:
    """Return a duration in whole numbers of its largest unit, such as ``5 min``, without its sign."""
    seconds = abs(length.total_seconds())
    size, unit = next(each for each in _UNITS if seconds >= each[0] or each[0] == 1)
    return f"{seconds // size:.0f} {unit}"
