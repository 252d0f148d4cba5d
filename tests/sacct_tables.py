"""Whole outputs of sacct as tables."""

from collections.abc import Sequence

from auditord_builtin.slurm.query import TableReader
from auditord_builtin.slurm.runs import Table


def parse_table(printed: bytes, columns: Sequence[str], delimiter: str) -> Table:
    """Cut all of the output into rows."""
    reader = TableReader(columns, delimiter)
    first, last = reader.feed(printed), reader.finish()
    return Table([*first.rows, *last.rows], [*first.unreadable, *last.unreadable])
