"""The call of sacct: which columns, which period, which environment."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from anyio import to_thread

from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.conversion import ID_COLUMNS
from auditord_builtin.slurm.merge import extra_columns, reads_steps
from auditord_builtin.slurm.states import RUNNING
from auditord_builtin.slurm.table import FIRST_COLUMN, LAST_COLUMN, Table, parse_table
from auditord_hookspecs import CollectorContext, CommandFailed, CommandResult, Window

ENVIRONMENT: Final[Mapping[str, str]] = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
"""sacct reads and prints local times without zone; so its zone is UTC, and it prints seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Query:
    """One call of sacct.

    Args:
        window: which period; sacct takes whole seconds and includes both ends.
        states: states by their short names, of jobs that got into them within the period; running jobs were in theirs
            at some time within it. Empty: whatever was eligible before its end and not over before its start.
        steps: whether the steps are printed, too.
        jobs: ids of the only jobs to print, as ``7``, ``7_4`` or ``13+0``; empty: all.
    """

    window: Window
    states: Sequence[str]
    steps: bool
    jobs: Sequence[str] = ()


def new_delimiter() -> str:
    """Text that nobody can have written into a job, since nobody knew it: 72 random bits (see the module ``table``)."""
    return secrets.token_urlsafe(9)  # short: it is printed once per column


def ended_jobs(config: JobsConfig, window: Window) -> Query:
    """The jobs that ended within the window."""
    return Query(window, config.sacct_states, reads_steps(config))


def jobs_of_all_states(config: JobsConfig, window: Window) -> Query:
    """Whatever may have ended within the window, also in a state that this version does not know."""
    return Query(window, (), reads_steps(config))


def running_jobs(window: Window) -> Query:
    """The jobs that hold resources in the window; what their steps measure is not final, so it is not asked for."""
    return Query(window, tuple(RUNNING), steps=False)


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
        f"--starttime={_written(query.window.start)}",
        f"--endtime={_written(query.window.stop)}",
        *([f"--state={','.join(query.states)}"] if query.states else []),
        *([] if query.steps else ["--allocations"]),
        *([f"--jobs={','.join(query.jobs)}"] if query.jobs else []),
        *config.cluster_options,
    ]


def _written(moment: datetime) -> str:
    """In UTC and whole seconds; Slurm's times have no fractions, so cutting one off loses no job."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def run_query(config: JobsConfig, context: CollectorContext, query: Query) -> Table:
    """Ask sacct.

    Raises:
        CommandFailed: it failed, took too long, or printed something else than was asked for.
    """
    delimiter = new_delimiter()
    result = await context.run_command(
        build_argv(config, query, delimiter),
        timeout=config.sacct_timeout,
        environment=ENVIRONMENT,
        through=config.through,
        max_output=config.sacct_max_output,
    )
    _check_silence(result)
    # In a thread: a page of a large cluster takes seconds, in which the daemon has requests to answer.
    return await to_thread.run_sync(parse_table, result.stdout, wanted_columns(config), delimiter)


def _check_silence(result: CommandResult) -> None:
    """Refuse "no jobs" from an sacct that complains: some versions fail to reach the database with exit code 0."""
    if not result.stdout and b"error" in result.stderr.lower():
        raise CommandFailed(f"sacct: {result.stderr.decode(errors='replace').strip()[-400:]}")
