"""Tables on the terminal; in a pipe they are as wide as their contents, so that they can be searched."""

import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

from rich.console import Console, RenderableType
from rich.table import Table

from auditord_hookspecs.terminal import escaped, say

_LABEL: Final = 10
_WIDE: Final = 10_000  # columns: a pipe has no width, and a line that is cut or folded cannot be searched


class PlainTable(Table):
    """A table whose cells are plain text: nothing in them acts on the terminal."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:  # Any: rich's own
        """Add a row."""
        super().add_row(*(escaped(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def new_table(*titles: str) -> Table:
    """An empty table without lines."""
    table = PlainTable(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def print_labelled(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines behind their labels; on a terminal, one that is too long goes on below its text."""
    if not sys.stdout.isatty():
        for label, text in lines:
            say(f"{label:<{_LABEL}}  {text}")
        return
    table = PlainTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(min_width=_LABEL, no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(label, text)
    print_table(table)


def print_table(table: Table, out: TextIO | None = None) -> None:
    """Print a table that has rows."""
    console = Console(file=out or sys.stdout, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDE
    if table.row_count:
        console.print(table)
