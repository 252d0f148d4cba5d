"""Tables that fit the terminal. In a pipe, lines break only at spaces, so that words stay searchable."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from textwrap import wrap
from typing import Final, TextIO
from unicodedata import category, east_asian_width

from auditord_hookspecs.terminal import escape, say

_LABEL: Final = 10
_GAP: Final = "  "
_LONG: Final = 100
"""The width of a cell in a pipe; longer words stay whole."""


@dataclass(slots=True)
class Column:
    """A column of a table.

    Args:
        right: whether cells are right-aligned, like numbers.
        whole: whether cells stay on one line while other columns shrink.
    """

    title: str
    right: bool = False
    whole: bool = False


@dataclass(slots=True)
class Table:
    """A table without rules. Control characters in its cells are escaped."""

    columns: Sequence[Column]
    _rows: list[tuple[tuple[str, ...], bool]] = field(default_factory=list[tuple[tuple[str, ...], bool]])

    def add_row(self, *cells: str, bold: bool = False) -> None:
        self._rows.append((tuple(map(escape, cells)), bold))

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def lines(self, most: int | None) -> Iterator[tuple[str, bool]]:
        """Yield the lines and whether they are bold.

        Args:
            most: the width of the terminal; None in a pipe.
        """
        rows = [(tuple(escape(each.title) for each in self.columns), True), *self._rows]
        widths = [max(_width(cells[at]) for cells, _ in rows) for at in range(len(self.columns))]
        if most is None:
            limits = [min(each, _LONG) for each in widths]
        else:
            limits = list(widths)
            yielding = [at for at, column in enumerate(self.columns) if not column.whole]
            while sum(limits) + len(_GAP) * (len(limits) - 1) > most and yielding:
                widest = max(yielding, key=limits.__getitem__)
                if limits[widest] == 1:
                    break
                limits[widest] -= 1
        for cells, bold in rows:
            folded = [_fold(cell, limit, most is not None) for cell, limit in zip(cells, limits, strict=True)]
            for parts in zip_longest(*folded, fillvalue=""):
                aligned: list[str] = []
                for part, limit, column in zip(parts, limits, self.columns, strict=True):
                    blanks = " " * (limit - _width(part))
                    aligned.append(blanks + part if column.right else part + blanks)
                yield _GAP.join(aligned).rstrip(), bold


def new_table(*titles: str) -> Table:
    return Table([Column(title) for title in titles])


def print_labelled(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines after their labels; on a terminal, long lines wrap below their text."""
    for label, text in lines:
        head, room = f"{label:<{_LABEL}}{_GAP}", shutil.get_terminal_size().columns - _LABEL - len(_GAP)
        for at, part in enumerate(_fold(escape(text), room, whole=True) if sys.stdout.isatty() else [text]):
            say((" " * len(head) if at else head) + part)


def print_table(table: Table, out: TextIO | None = None) -> None:
    """Print a table unless it is empty."""
    if not table.row_count:
        return
    most = shutil.get_terminal_size().columns if (out or sys.stdout).isatty() else None
    for line, bold in table.lines(most):
        say(line, bold=bold, out=out)


def _fold(text: str, limit: int, whole: bool) -> Sequence[str]:  # noqa: FBT001 whether to break words
    """Break a text into lines of at most ``limit`` columns."""
    if _width(text) <= limit:
        return [text]
    narrow = limit if len(text) == _width(text) else max(limit // 2, 1)  # a letter may take two columns
    return wrap(text, max(narrow, 1), break_long_words=whole, break_on_hyphens=False) or [""]


def _width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(each) in {"Mn", "Me", "Cf"} else 2 if east_asian_width(each) in {"W", "F"} else 1 for each in text
    )
