"""CSV for spreadsheets, in which no text becomes a formula or a line of its own."""

import csv
import io
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_BEGINNINGS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in spreadsheets, or that they strip before looking for one; also in full width."""


def no_formula(value: T) -> T | str:
    """Return the value of a cell. A text that would be a formula gets an apostrophe, which spreadsheets do not show.

    Numbers stay: -5 is not a formula. Not for files that programs read, which would have to remove the apostrophe.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_BEGINNINGS) else value


def csv_line(cells: Iterable[object]) -> str:
    """Return a line of CSV that ends in a newline.

    Cells with a line break are quoted. The module csv quotes a carriage return only if its own lines end in one, but
    readers always take it for the end of a line.
    """
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    return f"{line.getvalue().removesuffix(csv.excel.lineterminator)}\n"
