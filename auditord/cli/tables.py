"""Tables on the terminal; in a pipe they are as wide as their contents, so that they can be searched."""

import sys
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table

_WIDE: Final = 10_000  # columns: a pipe has no width, and a line that is cut or folded cannot be searched


def new_table(*titles: str) -> Table:
    """An empty table without lines."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def print_table(table: Table, out: TextIO | None = None) -> None:
    """Print a table that has rows."""
    console = Console(file=out or sys.stdout, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDE
    if table.row_count:
        console.print(table)
