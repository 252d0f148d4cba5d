"""The call of sacct, and the rows in its output.

``sacct --parsable2`` escapes nothing: names and comments can hold newlines, ``
`` and control characters. But sacct separates columns by any given text, and no user can have written a random one into
a job. Cut at that text alone, the output is unambiguous: every row has the same number of separators, and a row ends at
the newline between its last column and the next row's first. Neither of these (``JobIDRaw``, ``JobID``) is free text.
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
from auditord_hookspecs import CollectorContext, CommandFailed, CommandOutput, Window
from auditord_hookspecs.mapping import Row

_LONGEST_CELL = 64 * 1024**2
"""The size limit of a cell in characters. Slurm's own limit for users' texts is far smaller."""

_JOB_ID = re.compile(r"\d+\S*")

ENVIRONMENT: Final[Mapping[str, str]] = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""sacct reads and prints local times without a zone. So its zone is UTC, and it prints seconds since 1970.

A bitmap length of 0 keeps sacct from cutting off the list of an array's tasks.
"""

_ROWS: Final = 5_000
"""Rows that are converted at once, about five megabytes."""

_LONGEST_PART: Final = timedelta(days=32)
"""The longest part of a period. Seven years without a job take some ninety calls."""

_SHORTEST_PART: Final = timedelta(seconds=1)
_FEW: Final = 1_000
_MANY: Final = 20_000
_AFTER_TIMEOUT: Final = 8
"""The divisor of the part after a timeout. Each timeout takes minutes, so there must be few."""

_CAREFUL: Final = 30
"""After an exceeded limit, this many parts are no longer than the last one that succeeded."""


class TableReader:
    """Cuts the output into rows while it arrives. Its columns go from ``JobID`` to ``JobIDRaw``."""

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = columns
        self._delimiter = delimiter
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._begun: list[str] = []  # the complete cells of the current row
        self._rest = ""  # the text after the last delimiter

    def feed(self, printed: bytes) -> Table:
        """Return the rows that are complete. The last one may wait for the next piece.

        Raises:
            CommandFailed: the output has another form.
        """
        text = self._rest + self._decoder.decode(printed)
        *whole, self._rest = text.split(self._delimiter)
        if len(self._rest) > _LONGEST_CELL:
            raise CommandFailed(f"sacct: the output is no table: {_LONGEST_CELL} characters without a separator")
        return self._cut(whole)

    def finish(self) -> Table:
        """Return the last row, after all pieces.

        Raises:
            CommandFailed: the output is truncated, or has another form.
        """
        rest = self._rest + self._decoder.decode(b"", final=True)
        if not self._begun and not rest:
            return Table((), ())
        if len(self._begun) != len(self._columns) - 1 or not rest.endswith("\n"):
            end = "|".join((*self._begun, rest))[-80:]  # do not show the separator to people
            raise CommandFailed(f"sacct: the output is cut off or is no table: it ends in {end!r}")
        return self._cut([rest])

    def _cut(self, cells: list[str]) -> Table:
        """Cut complete cells into rows. A row's last cell also has the next row's first cell, after a newline."""
        unreadable: list[str] = []
        if not self._begun and cells:  # the very first one
            *unreadable, cells[0] = cells[0].split("\n")
        cells = self._begun + cells
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
        self._begun = cells[begin:]
        return Table(rows, unreadable)


def _check(job_id: str) -> None:
    if _JOB_ID.fullmatch(job_id) is None:
        raise CommandFailed(f"sacct: the output is no table of jobs: {job_id[:80]!r} stands where a job id belongs")


class Query(msgspec.Struct, frozen=True):
    """One call of sacct.

    Args:
        window: the period; sacct takes whole seconds and includes both ends.
        states: short names of states. Prints jobs that entered one of them within the period, or were running within
            it. Empty: all jobs that were eligible before its end and not over before its start.
        steps: also print steps.
        jobs: print only the jobs with these ids, such as ``7``, ``7_4`` or ``13+0``; empty: all.
    """

    window: Window
    states: Sequence[str]
    steps: bool
    jobs: Sequence[str] = ()


def build_argv(config: JobsConfig, query: Query, delimiter: str) -> list[str]:
    """Return the argument vector: all users, all runs of a job id, plain numbers, UTC."""
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
    """Return a time in UTC and whole seconds. Slurm's times have no fractions, so the cut loses no job."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def stream_query(config: JobsConfig, context: CollectorContext, query: Query) -> AsyncGenerator[Table, None]:
    """Call sacct, and yield tables of some thousand rows, cut between runs.

    Raises:
        CommandFailed: sacct failed, took too long, or its output has another form. The message names the option of an
            exceeded limit.
    """
    # Random, so that users cannot write it into jobs; short, since it is printed per column.
    delimiter = secrets.token_urlsafe(9)
    reader = TableReader(config.wanted_columns, delimiter)
    call = context.stream_command(
        build_argv(config, query, delimiter),
        timeout=config.sacct_timeout,
        environment=ENVIRONMENT,
        through=config.through,
        max_output=config.sacct_max_output,
    )
    try:
        async with call as output, aclosing(_tables(reader, output)) as tables:
            async for table in tables:
                yield table
    except CommandFailed as error:
        raise naming_option(error, "sacct") from error


async def _tables(reader: TableReader, output: CommandOutput) -> AsyncGenerator[Table, None]:
    rows: list[Row] = []
    printed = False
    async for piece in output:
        printed = True
        # In a thread, since a large piece takes long, and the daemon must answer requests meanwhile.
        table = await to_thread.run_sync(reader.feed, piece)
        rows += table.rows
        cut = whole_runs(rows) if len(rows) >= _ROWS else 0
        if cut or table.unreadable:
            yield Table(rows[:cut], table.unreadable)
            rows = rows[cut:]
    # Some versions exit with 0 although they did not reach the database.
    if not printed and b"error" in output.stderr.lower():
        raise CommandFailed(f"sacct: {output.stderr.decode(errors='replace').strip()[-400:]}")
    last = reader.finish()
    yield Table([*rows, *last.rows], last.unreadable)


def naming_option(error: CommandFailed, program: str) -> CommandFailed:
    """Return the error, with the option that sets the exceeded limit."""
    option = "timeout" if error.timed_out else "max_output" if error.printed_too_much else None
    if option is None:
        return error
    text = f"{error} (option {program}_{option})"
    return CommandFailed(text, timed_out=error.timed_out, printed_too_much=error.printed_too_much)


class Piece(msgspec.Struct, frozen=True):
    """A piece of a period's accounting. After it, the period has been read up to ``until``; None within a part."""

    found: Found
    until: datetime | None


async def read_period(
    config: JobsConfig, context: CollectorContext, period: Window, states: Sequence[str]
) -> AsyncGenerator[Piece, None]:
    """Read the jobs that ended within a period, the oldest part first. After an exceeded limit, read shorter parts.

    Memory holds one piece at a time. An empty or reversed period yields nothing. Without states, jobs of all states are
    read, also of unknown ones.

    Raises:
        CommandFailed: sacct failed, and would fail for a shorter part.
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
            pace.failed(part, error)
            context.log.warning("%s; from %s on sacct is asked for %s at a time", error, start, pace.length)
        else:
            pace.went_well(rows)
            yield Piece(last or Found({}), part.stop)  # only after the whole answer
            start = part.stop


class _Pace:
    """Chooses the next part's length, ``usual`` at first."""

    def __init__(self, usual: timedelta) -> None:
        self._usual = usual
        self._longest = max(usual, _LONGEST_PART)
        self._careful = 0
        self.length = usual

    def went_well(self, rows: int) -> None:
        """Note how many rows the last answer had."""
        self._careful = max(self._careful - 1, 0)
        if rows <= _FEW and not self._careful:
            self.length = min(self.length * 2, self._longest)
        elif rows > _MANY and self.length > self._usual:
            self.length = max(self.length / 2, self._usual)

    def failed(self, part: Window, error: CommandFailed) -> None:
        """Retry with a shorter part, from the same beginning.

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
