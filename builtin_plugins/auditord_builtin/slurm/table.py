"""From the bytes that sacct prints to rows, whatever users wrote into names and comments.

``sacct --parsable2`` escapes nothing: a name may hold newlines, ``|`` and control characters. But it separates columns
by any text that is asked for; no user can have written a random one into a job. Cut at that text alone, the
output is unambiguous: every row has the same number of separators, and the only newline that ends a row is the one
between its last column and the next row's first, neither of which is free text (``JobIDRaw``, ``JobID``).
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass

from auditord_hookspecs import CommandFailed
from auditord_hookspecs.mapping import Row

_LONGEST_CELL = 64 * 1024**2
"""Characters; Slurm's own limit for what users write is far below."""

_JOB_ID = re.compile(r"\d+\S*")


@dataclass(frozen=True, slots=True)
class Table:
    """Whole rows, as texts by column, and unreadable lines between them that belong to none."""

    rows: Sequence[Row]
    unreadable: Sequence[str]


class TableReader:
    """Cuts the output into rows while it arrives; its columns go from ``JobID`` to ``JobIDRaw``."""

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = columns
        self._delimiter = delimiter
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._begun: list[str] = []  # the row under way, as far as its cells are whole
        self._rest = ""  # what follows the last delimiter

    def feed(self, printed: bytes) -> Table:
        """The rows that are whole now; one whose end has just arrived may wait for the next piece.

        Raises:
            CommandFailed: this is not what was asked for.
        """
        text = self._rest + self._decoder.decode(printed)
        *whole, self._rest = text.split(self._delimiter)
        if len(self._rest) > _LONGEST_CELL:
            raise CommandFailed(f"sacct: the output is no table: {_LONGEST_CELL} characters without a separator")
        return self._assembled(whole)

    def finish(self) -> Table:
        """The last row, when everything has been fed.

        Raises:
            CommandFailed: the output is cut off, or not what was asked for.
        """
        rest = self._rest + self._decoder.decode(b"", final=True)
        if not self._begun and not rest:
            return Table((), ())
        if len(self._begun) != len(self._columns) - 1 or not rest.endswith("\n"):
            end = "|".join((*self._begun, rest))[-80:]  # the separator was never meant to be read
            raise CommandFailed(f"sacct: the output is cut off or is no table: it ends in {end!r}")
        return self._assembled([rest])

    def _assembled(self, cells: Sequence[str]) -> Table:
        rows: list[Row] = []
        unreadable: list[str] = []
        for cell in cells:
            if not self._begun:  # the very first one
                *stray, first = cell.split("\n")
                self._begun.append(first)
            elif len(self._begun) < len(self._columns) - 1:
                self._begun.append(cell)
                continue
            else:
                last, *stray, following = cell.split("\n") if "\n" in cell else (cell, "")
                rows.append(self._row(last))
                self._begun = [following]
            unreadable += stray
        return Table(rows, unreadable)

    def _row(self, last: str) -> Row:
        first, *others = self._begun
        return dict(zip(self._columns, (_checked(first), *others, _checked(last)), strict=True))


def _checked(job_id: str) -> str:
    if _JOB_ID.fullmatch(job_id) is None:
        raise CommandFailed(f"sacct: the output is no table of jobs: {job_id[:80]!r} stands where a job id belongs")
    return job_id
