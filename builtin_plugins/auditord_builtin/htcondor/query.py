"""The call of ``condor_history`` for jobs of a schedd."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import parse_ad, reached, references
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.evaluation import Evaluator, read_ad
from auditord_builtin.htcondor.history_output import Printed, cut_json, cut_json_lines, parse_separated
from auditord_builtin.htcondor.identity import ID_COLUMNS, MEMORY, since
from auditord_hookspecs import CollectorContext, CommandFailed, InvalidRecord

ENVIRONMENT: Final = {"TZ": "UTC"}

CHOSEN: Final = "({}) =?= true"
"""The constraint is a column and not a filter: so every ad that was read is seen, and a gap can be noticed."""

_ROUNDS: Final = 4
"""Calls after which whole ads are asked for: users write what refers to what."""

_MAX_NAMES: Final = 100_000
"""Characters of an argument; the system takes 131,071."""

_EXPRESSION: Final = b'"\\/Expr('


@dataclass(frozen=True, slots=True)
class Query:
    """One call; ads come newest first, in the order in which jobs left the queue.

    Args:
        schedd: the one to ask; the empty text is the local history.
        stop_at: the name of the ad before which to stop.
        limit: how many ads at most.
        oldest_first: the other way round (older remote schedds ignore this).
        job: only this job, ``CLUSTER`` or ``CLUSTER.PROC``.
        only: an expression; no other ads. It must look at nothing that users write.
    """

    schedd: str
    stop_at: str | None = None
    limit: int | None = None
    oldest_first: bool = False
    job: str | None = None
    only: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a run; the evaluator is for expressions that condor_history does not evaluate itself."""

    config: HTCondorConfig
    context: CollectorContext
    evaluator: Evaluator

    @property
    def again(self) -> bool:
        """True if a period or a job is collected again."""
        return self.context.window is not None or self.context.job is not None


def wanted_columns(config: HTCondorConfig) -> list[str]:
    """The attributes and expressions to ask for, each once."""
    chosen = [CHOSEN.format(config.constraint)] if config.constraint else []
    of_cpu_time = [MEMORY] if config.cpu_times else []
    return list(dict.fromkeys((*ID_COLUMNS, *config.columns, *chosen, *of_cpu_time)))


def build_argv(config: HTCondorConfig, query: Query, output: Sequence[str]) -> list[str]:
    """The argument vector. The output comes last: ``-af`` takes all that follows up to the next dash."""
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
        *([] if query.only is None else ["-constraint", query.only]),
        *output,
    ]


async def run_query(source: Source, query: Query) -> Printed:
    """Ask condor_history.

    Raises:
        CommandFailed: it failed, took too long, or printed something else than was asked for.
        AuditordError: an expression must be evaluated, and HTCondor's library is not installed.
    """
    if source.config.output == "separated":
        return await separated(source, query)
    texts = await _objects(source, query)
    columns = wanted_columns(source.config)

    def read() -> Printed:
        return Printed([read_ad(source.evaluator, text, columns) for text in texts])

    return await to_thread.run_sync(read, abandon_on_cancel=True)


async def separated(source: Source, query: Query) -> Printed:
    """Ask for the columns, which condor_history evaluates.

    Raises:
        CommandFailed: as :func:`run_query`; some ads end the program.
    """
    word = f"_{secrets.token_hex(8)}_"  # unknown to all who write into jobs
    columns = wanted_columns(source.config)
    quoted = f'"{word}"'
    output = ["-af", quoted, *(part for column in columns for part in (column, quoted))]
    printed = await _run(source, query, output)
    return await to_thread.run_sync(parse_separated, printed, columns, word)


async def whole_ads(source: Source, query: Query) -> list[str]:
    """The ads as they are, in the form of history files; nothing is evaluated for this.

    Raises:
        CommandFailed: as :func:`run_query`.
    """
    printed = (await _run(source, query, ["-long"])).decode(errors="replace")
    if printed and not printed.endswith("\n"):
        raise CommandFailed(f"condor_history: the output is cut off: it ends in {printed[-80:]!r}")
    return [ad.strip("\n") + "\n" for ad in printed.split("\n\n") if ad.strip()]


async def _objects(source: Source, query: Query) -> list[str]:
    """The ads as JSON, with all that the columns refer to: it has expressions as they are."""
    columns = wanted_columns(source.config)
    names = references(columns)
    for _ in range(_ROUNDS):
        texts, output = await _json(source, query, ["-attributes", ",".join(names)])
        more = [] if _EXPRESSION not in output else await to_thread.run_sync(_not_asked_for, texts, columns, names)
        if not more:
            return texts
        names = [*names, *more]
        if sum(map(len, names)) + len(names) > _MAX_NAMES:
            break
    return (await _json(source, query, []))[0]


async def _json(source: Source, query: Query, attributes: Sequence[str]) -> tuple[list[str], bytes]:
    output = await _run(source, query, [f"-{source.config.output}", *attributes])
    cut = cut_json if source.config.output == "json" else cut_json_lines
    return await to_thread.run_sync(cut, output), output


def _not_asked_for(texts: Sequence[str], columns: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The names that the ads' expressions refer to and that were not asked for."""
    known = {name.lower() for name in asked}
    found: dict[str, None] = {}
    for text in texts:
        try:
            found.update(dict.fromkeys(reached(parse_ad(text), columns)))
        except InvalidRecord:  # it will be refused
            continue
    return [name for name in found if name not in known]


async def _run(source: Source, query: Query, output: Sequence[str]) -> bytes:
    config = source.config
    try:
        result = await source.context.run_command(
            build_argv(config, query, output),
            timeout=config.query_timeout,
            environment=ENVIRONMENT,
            through=config.through,
            max_output=config.query_max_output,
        )
    except CommandFailed as error:
        # HTCondor makes the one file for the first job that ends.
        absent = "opening history file" in str(error) and "No such file or directory" in str(error)
        if config.history_file is None or not absent:
            raise
        source.context.log.warning(
            "%s does not exist yet: no job has left the queue, or the path is wrong", config.history_file
        )
        return b"[]" if config.output == "json" else b""
    complaint = result.stderr.decode(errors="replace").strip()
    if not result.stdout and any(word in complaint.lower() for word in ("error", "fail", "unable")):
        raise CommandFailed(f"condor_history: {complaint[-400:]}")  # "no jobs" from a program that complains
    return result.stdout
