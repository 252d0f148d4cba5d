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
from datetime import UTC, datetime
from typing import Final

from anyio import to_thread

from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.conversion import ID_COLUMNS, extra_columns
from auditord_builtin.slurm.runs import FIRST_COLUMN, LAST_COLUMN, whole_runs
from auditord_hookspecs import CollectorContext, CommandFailed, CommandOutput, Window
from auditord_hookspecs.mapping import Row

_LONGEST_CELL = 64 * 1024**2
"""Characters; Slurm's own limit for what users write is far below."""

_JOB_ID = re.compile(r"\d+\S*")

ENVIRONMENT: Final[Mapping[str, str]] = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
"""sacct reads and prints local times without zone; so its zone is UTC, and it prints seconds since 1970."""

_ROWS: Final = 10_000
"""From how many rows on they are converted, whatever is still to come: some ten megabytes."""


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


def wanted_columns(config: JobsConfig) -> list[str]:
    """The columns to ask for, each once, between the two ids that delimit a row."""
    wanted = dict.fromkeys((*ID_COLUMNS, *config.columns, *extra_columns(config.columns)))
    return [FIRST_COLUMN, *(column for column in wanted if column not in {FIRST_COLUMN, LAST_COLUMN}), LAST_COLUMN]


def build_argv(config: JobsConfig, query: Query, delimiter: str) -> list[str]:
    """The argument vector: all users, all runs of a job id, plain numbers, UTC."""
    return [
        *(*config.sacct, "--allusers", "--duplicates", "--noheader", "--noconvert", "--parsable2"),
        f"--delimiter={delimiter}",
        f"--format={','.join(wanted_columns(config))}",
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
    reader = TableReader(wanted_columns(config), delimiter)
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
    """The error, with the option that a limit is set by."""
    option = "timeout" if error.timed_out else "max_output" if error.printed_too_much else None
    if option is None:
        return error
    text = f"{error} (option {program}_{option})"
    return CommandFailed(text, timed_out=error.timed_out, printed_too_much=error.printed_too_much)
