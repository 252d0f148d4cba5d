"""CSV for spreadsheets, in which no text becomes a formula or a line of its own.

A spreadsheet may expect semicolons or tabs between cells: Excel does so in many countries, and LibreOffice takes all
three at once. Then a quotation mark within what it takes for a cell does not protect, so texts that would begin a cell
there are escaped as well.
"""

import csv
import io
import re
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_QUOTED: Final = ";\t\r\n"
"""Characters whose cells are quoted, because readers take them for the end of a cell or line."""

_formula: Final = re.compile(rf"\A(?=[\t\r\n])|(?:\A|(?<=[{_QUOTED}]))(?=[\" ]*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""The places in a text at which a formula would begin (some characters also in full width).

Spreadsheets may strip tabs and line breaks at the beginning before they look for one."""


def no_formula(value: T) -> T | str:
    """Return the value of a cell. A text that would be a formula gets an apostrophe, which spreadsheets do not show.

    So does the rest of a text after a semicolon, tab or line break. Numbers stay: -5 is not a formula. Not for files
    that programs read, which would have to remove the apostrophes.
    """
    return _formula.sub("'", value) if isinstance(value, str) else value


def csv_line(cells: Iterable[object]) -> str:
    """Return a line of CSV that ends in a newline. Cells with a line break, a semicolon or a tab are quoted."""
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator=_QUOTED).writerow(cells)  # it quotes the characters of its lines' ends
    return f"{line.getvalue().removesuffix(_QUOTED)}\n"
