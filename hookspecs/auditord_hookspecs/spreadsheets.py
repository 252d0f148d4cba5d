"""CSV that people open in a spreadsheet: no text in it becomes a formula."""

from typing import Final, TypeVar

T = TypeVar("T")

_BEGINNINGS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that spreadsheets take for the beginning of a formula, or strip before they look; also in full width."""


def no_formula(value: T) -> T | str:
    """Return the value of a cell; text that would be a formula gets an apostrophe, which spreadsheets do not show.

    Numbers stay: -5 is no formula. Not for files that programs read: they would have to take the apostrophe away.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_BEGINNINGS) else value
