"""From the bytes that sacct prints to rows, whatever users wrote into names and comments.

``sacct --parsable2`` escapes nothing: a name may hold newlines, ``|`` and control characters. But it separates columns
by any text that it is told to; told a random one, nobody can have written it into a job. Cut at that text alone, the
output is unambiguous: every row has the same number of separators, and the only newline that ends a row is the one
between its last column and the next row's first, neither of which is free text (``JobIDRaw``, ``JobID``).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from auditord_hookspecs import CommandFailed
from auditord_hookspecs.mapping import Row

FIRST_COLUMN = "JobID"
LAST_COLUMN = "JobIDRaw"

_JOB_ID = re.compile(r"\d+\S*")


@dataclass(frozen=True, slots=True)
class Table:
    """What sacct printed.

    Args:
        rows: the texts of each row by column.
        unreadable: lines between rows that belong to none.
    """

    rows: Sequence[Row]
    unreadable: Sequence[str]


def parse_table(printed: bytes, columns: Sequence[str], delimiter: str) -> Table:
    """Cut the output into rows.

    Args:
        printed: all that sacct printed, without a header.
        columns: the columns asked for, from ``JobID`` to ``JobIDRaw``.
        delimiter: the text asked for between columns.

    Raises:
        CommandFailed: the output is not whole, or not what was asked for.
    """
    text = printed.decode(errors="replace")
    if not text:
        return Table((), ())
    chunks = text.split(delimiter)
    width = len(columns) - 1
    if (len(chunks) - 1) % width or not text.endswith("\n") or len(chunks) == 1:
        end = "|".join(chunks)[-80:]  # the separator was never meant to be read
        raise CommandFailed(f"sacct: the output is cut off or is no table: it ends in {end!r}")
    return _assembled(chunks, columns)


def _assembled(chunks: Sequence[str], columns: Sequence[str]) -> Table:
    width = len(columns) - 1
    *unreadable, first = chunks[0].split("\n")
    rows: list[Row] = []
    for start in range(0, len(chunks) - 1, width):
        last, *stray, following = chunks[start + width].split("\n")
        texts = (_checked(first), *chunks[start + 1 : start + width], _checked(last))
        rows.append(dict(zip(columns, texts, strict=True)))
        unreadable += stray
        first = following
    return Table(rows, unreadable)


def _checked(job_id: str) -> str:
    if _JOB_ID.fullmatch(job_id) is None:
        raise CommandFailed(f"sacct: the output is no table of jobs: {job_id[:80]!r} stands where a job id belongs")
    return job_id


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job: the row of its allocation and those of its steps."""

    allocation: Row
    steps: Sequence[Row]


def group_runs(rows: Sequence[Row]) -> Iterator[Run | Row]:
    """Put steps to their runs; a step that has none comes out alone.

    A requeued job has several runs with one id; sacct prints each run's steps right after its row, so a step belongs to
    the last allocation before it, if the id agrees. Everything with a dot is a step of the id before the dot
    (``7_4.batch``, ``13+0.0``, ``9.0+1``, ``5.interactive``).
    """
    allocation: Row | None = None
    steps: list[Row] = []
    for row in rows:
        if "." not in row[FIRST_COLUMN]:
            if allocation is not None:
                yield Run(allocation, tuple(steps))
            allocation, steps = row, []
        elif allocation is not None and _owner(row) == (allocation.get("Cluster"), allocation[FIRST_COLUMN]):
            steps.append(row)
        else:
            yield row
    if allocation is not None:
        yield Run(allocation, tuple(steps))


def _owner(step: Row) -> tuple[str | None, str]:
    return step.get("Cluster"), step[FIRST_COLUMN].split(".", 1)[0]
