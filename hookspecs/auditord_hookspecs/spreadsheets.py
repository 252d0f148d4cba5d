"""CSV for spreadsheets, in which no text becomes a formula."""

from typing import Final, TypeVar

T = TypeVar("T")

_BEGINNINGS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in spreadsheets, or that they strip before looking for one; also in full width."""


def no_formula(value: T) -> T | str:
    """Return the value of a cell. A text that would be a formula gets an apostrophe, which spreadsheets do not show.

    Numbers stay: -5 is not a formula. Not for files that programs read, which would have to remove the apostrophe.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_BEGINNINGS) else value
