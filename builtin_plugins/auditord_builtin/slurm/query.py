"""The call of sacct (which columns, which period, which environment), and rows of the bytes that it prints.

``sacct --parsable2`` escapes nothing, whatever users wrote into names and comments: a name may hold newlines, ``|`` and
control characters. But it separates columns by any text that is asked for; no user can have written a random one into a
job. Cut at that text alone, the output is unambiguous: every row has the same number of separators, and the only
newline that ends a row is the one between its last column and the next row's first, neither of which is free text
(``JobIDRaw``, ``JobID``).
"""

import re
import secrets
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from anyio import to_thread

from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.runs import Found, Table, find_runs, whole_runs
from auditord_hookspecs import CollectorContext, CommandFailed, CommandOutput, Window
from auditord_hookspecs.mapping import Row

_LONGEST_CELL = 64 * 1024**2
"""Characters; Slurm's own limit for what users write is far below."""

_JOB_ID = re.compile(r"\d+\S*")

ENVIRONMENT: Final[Mapping[str, str]] = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""sacct reads and prints local times without zone; so its zone is UTC, and it prints seconds since 1970.

It cuts the list of an array's tasks after 64 bytes unless the length is 0.
"""

_ROWS: Final = 5_000
"""From how many rows on they are converted, whatever is still to come: some five megabytes."""

_LONGEST_PART: Final = timedelta(days=32)
"""So seven years without a job are some ninety calls, and no answer is that of a whole year."""

_SHORTEST_PART: Final = timedelta(seconds=1)
_FEW: Final = 1_000
_MANY: Final = 20_000
_AFTER_TIMEOUT: Final = 8
"""Each attempt that runs into the time limit takes minutes, so there must not be many."""

_CAREFUL: Final = 30
"""So many parts after a limit was met are no longer than the one that was not too long."""


class TableReader:
    """Cuts the output into rows while it arrives; its columns go from ``JobID`` to ``JobIDRaw``."""

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = columns
        self._delimiter = delimiter
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._begun: list[str] = []  # the cells of the row under way that are whole
        self._rest = ""  # what follows the last delimiter

    def feed(self, printed: bytes) -> Table:
        """Return the rows that are whole now; one whose end has just arrived may wait for the next piece.

        Raises:
            CommandFailed: this is not what was asked for.
        """
        text = self._rest + self._decoder.decode(printed)
        *whole, self._rest = text.split(self._delimiter)
        if len(self._rest) > _LONGEST_CELL:
            raise CommandFailed(f"sacct: the output is no table: {_LONGEST_CELL} characters without a separator")
        return self._cut(whole)

    def finish(self) -> Table:
        """Return the last row, when everything has been fed.

        Raises:
            CommandFailed: the output is cut off, or not what was asked for.
        """
        rest = self._rest + self._decoder.decode(b"", final=True)
        if not self._begun and not rest:
            return Table((), ())
        if len(self._begun) != len(self._columns) - 1 or not rest.endswith("\n"):
            end = "|".join((*self._begun, rest))[-80:]  # the separator was never meant to be read
            raise CommandFailed(f"sacct: the output is cut off or is no table: it ends in {end!r}")
        return self._cut([rest])

    def _cut(self, cells: list[str]) -> Table:
        """Cut whole cells into rows: with the last cell of each comes, behind a newline, the first of the next one."""
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


@dataclass(frozen=True, slots=True)
class Query:
    """One call of sacct.

    Args:
        window: the period; sacct takes whole seconds and includes both ends.
        states: states by their short names, of jobs that got into them within the period; running jobs were in theirs
            at some time within it. Empty: whatever was eligible before its end and not over before its start.
        steps: whether the steps are printed, too.
        jobs: ids of the only jobs to print, as ``7``, ``7_4`` or ``13+0``; empty: all.
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
    """In UTC and whole seconds; Slurm's times have no fractions, so cutting one off loses no job."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def stream_query(config: JobsConfig, context: CollectorContext, query: Query) -> AsyncGenerator[Table, None]:
    """Ask sacct; yields tables of some thousand rows, cut between runs.

    Raises:
        CommandFailed: it failed, took too long, or printed something else than was asked for; the message names the
            option where the limit is one of ours.
    """
    delimiter = secrets.token_urlsafe(9)  # unknown to all who write into jobs; short: it is printed once per column
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
        # In a thread: a large piece takes a while, in which the daemon has requests to answer.
        table = await to_thread.run_sync(reader.feed, piece)
        rows += table.rows
        cut = whole_runs(rows) if len(rows) >= _ROWS else 0
        if cut or table.unreadable:
            yield Table(rows[:cut], table.unreadable)
            rows = rows[cut:]
    if not printed and b"error" in output.stderr.lower():  # some versions fail to reach the database with exit code 0
        raise CommandFailed(f"sacct: {output.stderr.decode(errors='replace').strip()[-400:]}")
    last = reader.finish()
    yield Table([*rows, *last.rows], last.unreadable)


def naming_option(error: CommandFailed, program: str) -> CommandFailed:
    """Return the error, with the option that a limit is set by."""
    option = "timeout" if error.timed_out else "max_output" if error.printed_too_much else None
    if option is None:
        return error
    text = f"{error} (option {program}_{option})"
    return CommandFailed(text, timed_out=error.timed_out, printed_too_much=error.printed_too_much)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a period's accounting; ``until`` the period has been read with it, None in the middle of a part."""

    found: Found
    until: datetime | None


async def read_period(
    config: JobsConfig, context: CollectorContext, period: Window, states: Sequence[str]
) -> AsyncGenerator[Piece, None]:
    """Read what ended within a period, the oldest part first; where a limit is met, go on with shorter parts.

    Memory holds one piece, whatever a part holds. Nothing is read of an empty or reversed period; without states, jobs
    of all states are read, also of unknown ones.

    Raises:
        CommandFailed: sacct did not do what it should, and would not for a shorter part.
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
            yield Piece(last or Found({}), part.stop)  # only when the whole answer is there
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
        """Take a shorter part next, which begins where this one did.

        Raises:
            CommandFailed: a shorter one would not help.
        """
        length, limited = part.stop - part.start, error.timed_out or error.printed_too_much
        if length > self._usual:  # we made it that long, and a slurmdbd may refuse long periods (MaxQueryTimeRange)
            self._longest = self._longest if limited else self._usual
            self.length = self._usual
        elif limited and length > _SHORTEST_PART:
            self._careful = _CAREFUL
            shorter = length / (_AFTER_TIMEOUT if error.timed_out else 2)
            self.length = max(
                timedelta(seconds=shorter // _SHORTEST_PART), _SHORTEST_PART
            )  # Slurm's times have no fractions
        else:
            raise error
