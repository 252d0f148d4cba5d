"""The call of ``condor_history``: which jobs of which schedd."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import references
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.identity import ID_COLUMNS, since
from auditord_builtin.htcondor.printed import Printed, parse_json, parse_json_lines, parse_separated
from auditord_hookspecs import CollectorContext, CommandFailed, CommandResult

ENVIRONMENT: Final = {"TZ": "UTC"}

CHOSEN: Final = "({}) =?= true"
"""The constraint is a column and not a filter: so every ad that was read is seen, and a gap can be noticed."""


@dataclass(frozen=True, slots=True)
class Query:
    """One call; ads come newest first, in the order in which jobs left the queue.

    Args:
        schedd: whom to ask; the empty text is the local history.
        stop_at: the identity of the ad before which to stop.
        limit: how many ads at most.
        oldest_first: the other way round (older remote schedds ignore this).
        job: only this job, ``CLUSTER`` or ``CLUSTER.PROC``.
    """

    schedd: str
    stop_at: str | None = None
    limit: int | None = None
    oldest_first: bool = False
    job: str | None = None


def wanted_columns(config: HTCondorConfig) -> list[str]:
    """The attributes and expressions to ask for, each once."""
    chosen = [CHOSEN.format(config.constraint)] if config.constraint else []
    return list(dict.fromkeys((*ID_COLUMNS, *config.columns, *chosen)))


def new_word() -> str:
    """A word that nobody can have written into a job, since nobody knew it: 64 random bits."""
    return f"_{secrets.token_hex(8)}_"


def build_argv(config: HTCondorConfig, query: Query, word: str) -> list[str]:
    """The argument vector. ``-af`` comes last: it takes all that follows up to the next dash."""
    stop = [] if query.stop_at is None else ["-since", since(query.stop_at, epochs=config.epochs)]
    return [
        *config.condor_history,
        *(["-name", query.schedd] if query.schedd else []),
        *(["-pool", config.pool] if config.pool else []),
        *(["-file", config.history_file] if config.history_file else []),
        *(["-epochs"] if config.epochs else []),
        "-forwards" if query.oldest_first else "-backwards",
        *stop,
        *([] if query.limit is None else ["-limit", str(query.limit)]),
        *([] if config.scan_limit is None else ["-scanlimit", str(config.scan_limit)]),
        *([] if query.job is None else [query.job]),
        *_output(config, word),
    ]


def _output(config: HTCondorConfig, word: str) -> Sequence[str]:
    columns = wanted_columns(config)
    if config.output != "separated":
        return [f"-{config.output}", "-attributes", ",".join(references(columns))]
    quoted = f'"{word}"'
    return ["-af", quoted, *(part for column in columns for part in (column, quoted))]


async def run_query(config: HTCondorConfig, context: CollectorContext, query: Query) -> Printed:
    """Ask condor_history.

    Raises:
        CommandFailed: it failed, took too long, or printed something else than was asked for.
    """
    word = new_word()
    result = await context.run_command(
        build_argv(config, query, word),
        timeout=config.query_timeout,
        environment=ENVIRONMENT,
        through=config.through,
        max_output=config.query_max_output,
    )
    _check_silence(result)
    return await to_thread.run_sync(_parse, config, result.stdout, word)


def _parse(config: HTCondorConfig, output: bytes, word: str) -> Printed:
    columns = wanted_columns(config)
    if config.output == "separated":
        return parse_separated(output, columns, word)
    return parse_json(output, columns) if config.output == "json" else parse_json_lines(output, columns)


def _check_silence(result: CommandResult) -> None:
    """Refuse "no jobs" from a program that complains."""
    complaint = result.stderr.decode(errors="replace").strip()
    if not result.stdout and any(word in complaint.lower() for word in ("error", "fail", "unable")):
        raise CommandFailed(f"condor_history: {complaint[-400:]}")
