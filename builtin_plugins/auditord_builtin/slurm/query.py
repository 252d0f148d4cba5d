"""The call of sacct: which columns, which period, which environment."""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from anyio import to_thread

from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.conversion import ID_COLUMNS
from auditord_builtin.slurm.merge import extra_columns
from auditord_builtin.slurm.runs import FIRST_COLUMN, LAST_COLUMN, whole_runs
from auditord_builtin.slurm.table import Table, TableReader
from auditord_hookspecs import CollectorContext, CommandFailed, CommandOutput, Window
from auditord_hookspecs.mapping import Row

ENVIRONMENT: Final[Mapping[str, str]] = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
"""sacct reads and prints local times without zone; so its zone is UTC, and it prints seconds since 1970."""

_ROWS: Final = 10_000
"""From how many rows on they are converted, whatever is still to come: some ten megabytes."""


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
