"""Call sacct and split its output into rows.

``sacct --parsable2`` escapes nothing: names and comments can contain newlines, separators and control characters. But
sacct accepts any text as separator, and no user can have written a random one into a job. Split at a random separator,
the output is unambiguous: every row has the same number of separators, and ends at the newline between its last column
and the first one of the next row. Neither of these columns (``JobIDRaw``, ``JobID``) is free text.
"""

import re
import secrets
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from anyio import to_thread

from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.runs import Found, Table, find_runs, whole_runs
from auditord_hookspecs import CollectorContext, CommandFailed, Window
from auditord_hookspecs.mapping import Row

_LONGEST_CELL = 64 * 1024**2
"""The maximum length of a cell in characters. Slurm's own limit for users' texts is far smaller."""

_JOB_ID = re.compile(r"\d+\S*")

ENVIRONMENT: Final[Mapping[str, str]] = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""sacct reads and prints local times without a zone, so it runs in UTC and prints seconds since 1970.

A bitmap length of 0 keeps sacct from truncating the list of an array's tasks.
"""

_ROWS: Final = 5_000
"""Rows are passed on once this many, about five megabytes, have accumulated."""

_LONGEST_PART: Final = timedelta(days=32)
"""The longest part of a period. Reading seven years without jobs takes about ninety calls."""

_SHORTEST_PART: Final = timedelta(seconds=1)
_FEW: Final = 1_000
_MANY: Final = 20_000
_AFTER_TIMEOUT: Final = 8
"""The divisor of the part's length after a timeout. Each timeout costs minutes, so there should be few."""

_CAREFUL: Final = 30
"""The number of parts after an exceeded limit that are not lengthened."""


class TableReader:
    """Splits the output into rows while it arrives. The first column is ``JobID``, the last one ``JobIDRaw``."""

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = columns
        self._delimiter = delimiter
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._cells: list[str] = []  # the complete cells of the current row
        self._rest = ""  # the text after the last delimiter

    def feed(self, printed: bytes) -> Table:
        """Return the rows that are complete. An incomplete last row is kept for the next call.

        Raises:
            CommandFailed: the output is not a table of jobs.
        """
        text = self._rest + self._decoder.decode(printed)
        *whole, self._rest = text.split(self._delimiter)
        if len(self._rest) > _LONGEST_CELL:
            raise CommandFailed(f"sacct: the output is not a table: {_LONGEST_CELL} characters without a separator")
        return self._cut(whole)

    def finish(self, stderr: bytes = b"") -> Table:
        """Return the last row, after all output has been fed. ``stderr`` explains why there was none.

        Raises:
            CommandFailed: the output is truncated, or is not a table of jobs.
        """
        rest = self._rest + self._decoder.decode(b"", final=True)
        if not self._cells and not rest:
            if b"error" in stderr.lower():  # some versions exit with 0 although they did not reach the database
                raise CommandFailed(f"sacct: {stderr.decode(errors='replace').strip()[-400:]}")
            return Table((), ())
        if len(self._cells) != len(self._columns) - 1 or not rest.endswith("\n"):
            end = "|".join((*self._cells, rest))[-80:]  # "|" instead of the random separator, for readability
            raise CommandFailed(f"sacct: the output is cut off or is not a table: it ends in {end!r}")
        return self._cut([rest])

    def _cut(self, cells: list[str]) -> Table:
        """Split cells into rows. A row's last cell also contains, after a newline, the next row's first cell."""
        unreadable: list[str] = []
        if not self._cells and cells:  # the very first cell of the output
            *unreadable, cells[0] = cells[0].split("\n")
        cells = self._cells + cells
        rows: list[Row] = []
        width, begin = len(self._columns) - 1, 0
        for end in range(width, len(cells), width):
            last, *stray, following = cells[end].split("\n") if "\n" in cells[end] else (cells[end], "")
            _check(cells[begin])
            if last != cells[begin]:
                _check(last)
            cells[end] = last
            rows.append(dict(zip(self._columns, cells[begin : end + 1], strict=True)))
            cells[end] = following
            unreadable += stray
            begin = end
        self._cells = cells[begin:]
        return Table(rows, unreadable)


def _check(job_id: str) -> None:
    if _JOB_ID.fullmatch(job_id) is None:
        raise CommandFailed(f"sacct: the output is not a table of jobs: expected a job id, found {job_id[:80]!r}")


class Query(msgspec.Struct, frozen=True):
    """One call of sacct.

    Args:
        window: the period; sacct takes whole seconds and includes both ends.
        states: short names of states. sacct prints the jobs that entered one of these states within the period, or
            were running within it. Empty: all jobs that were eligible before its end and not over before its start.
        steps: also print steps.
        jobs: print only the jobs with these ids, such as ``7``, ``7_4`` or ``13+0``; empty: all.
    """

    window: Window
    states: Sequence[str]
    steps: bool
    jobs: Sequence[str] = ()


def build_argv(config: JobsConfig, query: Query, delimiter: str) -> list[str]:
    """Return sacct's argument vector, for all users, all runs of a job id, plain numbers and times in UTC."""
    return [
        *(*config.sacct, "--allusers", "--duplicates", "--noheader", "--noconvert", "--parsable2"),
        f"--delimiter={delimiter}",
        f"--format={','.join(config.wanted_columns)}",
        f"--starttime={_text(query.window.start)}",
        f"--endtime={_text(query.window.stop)}",
        *([f"--state={','.join(query.states)}"] if query.states else []),
        *([] if query.steps else ["--allocations"]),
        *([f"--jobs={','.join(query.jobs)}"] if query.jobs else []),
        *config.cluster_options,
    ]


def _text(moment: datetime) -> str:
    """Format a time in UTC and whole seconds. Slurm's times have no fractions, so truncating loses no job."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def stream_query(config: JobsConfig, context: CollectorContext, query: Query) -> AsyncGenerator[Table, None]:
    """Call sacct and yield tables of a few thousand rows, which never split a run.

    Raises:
        CommandFailed: sacct failed, exceeded a limit, or its output is not a table of jobs. If a limit was exceeded,
            the message names its option.
    """
    # Random, so that no user can have written it into a job. Short, since sacct prints it after every column.
    delimiter = secrets.token_urlsafe(9)
    reader = TableReader(config.wanted_columns, delimiter)
    call = context.stream_command(
        build_argv(config, query, delimiter),
        timeout=config.sacct_timeout,
        environment=ENVIRONMENT,
        through=config.through,
        max_output=config.sacct_max_output,
    )
    rows: list[Row] = []
    try:
        async with call as output:
            async for piece in output:
                # In a thread, since a large piece takes a while, and the daemon must answer requests meanwhile.
                table = await to_thread.run_sync(reader.feed, piece)
                rows += table.rows
                cut = whole_runs(rows) if len(rows) >= _ROWS else 0
                if cut or table.unreadable:
                    yield Table(rows[:cut], table.unreadable)
                    rows = rows[cut:]
            last = reader.finish(output.stderr)
            yield Table([*rows, *last.rows], last.unreadable)
    except CommandFailed as error:
        option = "timeout" if error.timed_out else "max_output" if error.printed_too_much else None
        if option is None:
            raise
        text = f"{error} (option sacct_{option})"
        raise CommandFailed(text, timed_out=error.timed_out, printed_too_much=error.printed_too_much) from error


class Piece(msgspec.Struct, frozen=True):
    """Some of the jobs of a period. The period has then been read up to ``until``; None in the middle of a part."""

    found: Found
    until: datetime | None


async def read_period(
    config: JobsConfig, context: CollectorContext, period: Window, states: Sequence[str]
) -> AsyncGenerator[Piece, None]:
    """Read the jobs that ended within a period, oldest part first. If a limit is exceeded, retry with shorter parts.

    Only one piece is in memory at a time. An empty or reversed period yields nothing. Without ``states``, jobs in all
    states are read, including unknown ones.

    Raises:
        CommandFailed: sacct failed, and would also fail for a shorter part.
    """
    pace, start = _Pace(config.slice), period.start
    while start < period.stop:
        part = Window(start, min(start + pace.length, period.stop))
        rows, last = 0, None
        try:
            async with aclosing(stream_query(config, context, Query(part, states, config.reads_steps))) as tables:
                async for table in tables:
                    if last is not None:
                        yield Piece(last, None)
                    rows, last = rows + len(table.rows), find_runs(table, part)
        except CommandFailed as error:
            pace.shorten(part, error)
            context.log.warning("%s; from %s on, each call of sacct queries %s", error, start, pace.length)
        else:
            pace.adapt(rows)
            yield Piece(last or Found({}), part.stop)  # only now is the part complete
            start = part.stop


class _Pace:
    """Chooses the length of the next part, starting with ``usual``."""

    def __init__(self, usual: timedelta) -> None:
        self._usual = usual
        self._longest = max(usual, _LONGEST_PART)
        self._careful = 0
        self.length = usual

    def adapt(self, rows: int) -> None:
        """Lengthen the parts after few rows, and shorten long ones after many."""
        self._careful = max(self._careful - 1, 0)
        if rows <= _FEW and not self._careful:
            self.length = min(self.length * 2, self._longest)
        elif rows > _MANY and self.length > self._usual:
            self.length = max(self.length / 2, self._usual)

    def shorten(self, part: Window, error: CommandFailed) -> None:
        """Shorten the part for a retry from the same start.

        Raises:
            CommandFailed: a shorter part would not help.
        """
        length, limited = part.stop - part.start, error.timed_out or error.printed_too_much
        if length > self._usual:  # slurmdbd may refuse long periods (MaxQueryTimeRange)
            self._longest = self._longest if limited else self._usual
            self.length = self._usual
        elif limited and length > _SHORTEST_PART:
            self._careful = _CAREFUL
            shorter = length / (_AFTER_TIMEOUT if error.timed_out else 2)
            # Slurm's times have no fractions.
            self.length = max(timedelta(seconds=shorter // _SHORTEST_PART), _SHORTEST_PART)
        else:
            raise error
