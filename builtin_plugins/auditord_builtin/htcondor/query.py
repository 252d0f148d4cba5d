"""Call ``condor_history`` for the jobs of a schedd, and skip ads that make it crash."""

import secrets
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from auditord_builtin.htcondor.ads import (
    ID_COLUMNS,
    MAX_HOSTS,
    MEMORY,
    OUTCOME_COLUMNS,
    Attributes,
    JobAd,
    expression_of,
    follow_references,
    parse_ad,
    references,
    select_used_columns,
    since,
)
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.evaluation import Evaluator, literals, read_ad
from auditord_builtin.htcondor.output import Printed, cut_json, cut_json_lines, parse_separated
from auditord_hookspecs import CollectorContext, CommandFailed, InvalidRecord
from auditord_hookspecs.mapping import Row
from auditord_hookspecs.wording import counted

ENVIRONMENT: Final = {"TZ": "UTC"}

CHOSEN: Final = "({}) =?= true"
"""The constraint as a column. As a filter, it would hide ads, and a gap would go unnoticed."""

_ROUNDS: Final = 4
"""The maximum number of calls to follow references between attributes, which users control. Then read whole ads."""

_MAX_NAMES: Final = 100_000
"""The maximum length of an argument in characters. The system's limit is 131,071."""

_EXPRESSION: Final = b'"\\/Expr('


class Query(msgspec.Struct, frozen=True):
    """One call. Ads are printed newest first, in the order in which jobs left the queue.

    Args:
        schedd: the schedd to query; empty: the local history.
        stop_at: the name of the ad before which to stop.
        limit: the maximum number of ads.
        oldest_first: reverse the order. Older remote schedds ignore this.
        job: only this job, ``CLUSTER`` or ``CLUSTER.PROC``.
        only: an expression that selects ads. It must not use attributes that users can set.
    """

    schedd: str
    stop_at: str | None = None
    limit: int | None = None
    oldest_first: bool = False
    job: str | None = None
    only: str | None = None


class Source(msgspec.Struct, frozen=True):
    """The inputs of a run. The evaluator handles expressions that condor_history does not evaluate itself."""

    config: HTCondorConfig
    context: CollectorContext
    evaluator: Evaluator

    @property
    def again(self) -> bool:
        """True if a job or a window is being collected again."""
        return self.context.window is not None or self.context.job is not None


def list_columns(config: HTCondorConfig) -> list[str]:
    """Return the attributes and expressions to query, each once."""
    chosen = [CHOSEN.format(config.constraint)] if config.constraint else []
    of_cpu_time = [MEMORY] if config.cpu_times else []
    requests = [*config.requests.values(), MAX_HOSTS] if config.requests else []
    return list(dict.fromkeys((*ID_COLUMNS, *OUTCOME_COLUMNS, *config.columns, *requests, *chosen, *of_cpu_time)))


def build_argv(config: HTCondorConfig, query: Query, output: Sequence[str]) -> list[str]:
    """Return the command line. The output option comes last, since ``-af`` takes all arguments up to the next dash."""
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
        *([] if query.job is None else [query.job]),
        *([] if query.only is None else ["-constraint", query.only]),
        *output,
    ]


async def run_query(source: Source, query: Query) -> Printed:
    """Call condor_history.

    Raises:
        CommandFailed: the call failed, exceeded a limit, or its output has an unexpected form.
        AuditordError: an expression must be evaluated, but HTCondor's library is not installed.
    """
    if source.config.output == "separated":
        return await query_separated(source, query)
    columns, texts = list_columns(source.config), list[str]()
    names = more = references(columns)
    for _ in range(_ROUNDS):
        # Unevaluated expressions, and all attributes that the columns refer to.
        texts, output = await _json(source, query, ["-attributes", ",".join(names)])
        more = [] if _EXPRESSION not in output else await to_thread.run_sync(_missing_names, texts, columns, names)
        names = [*names, *more]
        if not more or sum(map(len, names)) + len(names) > _MAX_NAMES:
            break
    if more:
        texts, _ = await _json(source, query, [])

    def read() -> Printed:
        return Printed([read_ad(source.evaluator, text, columns) for text in texts])

    return await to_thread.run_sync(read, abandon_on_cancel=True)


async def query_separated(source: Source, query: Query) -> Printed:
    """Return the columns as evaluated by condor_history.

    Raises:
        CommandFailed: as :func:`run_query`. Some ads crash the program.
    """
    word = f"_{secrets.token_hex(8)}_"  # random, so that users cannot write it into jobs
    columns = list_columns(source.config)
    quoted = f'"{word}"'
    output = ["-af", quoted, *(part for column in columns for part in (expression_of(column), quoted))]
    printed = await _run(source, query, output)
    return await to_thread.run_sync(parse_separated, printed, columns, word)


async def whole_ads(source: Source, query: Query) -> list[str]:
    """Return the unevaluated ads in the format of history files.

    Raises:
        CommandFailed: as :func:`run_query`.
    """
    printed = (await _run(source, query, ["-long"])).decode(errors="replace")
    if printed and not printed.endswith("\n"):
        raise CommandFailed(f"condor_history: the output is cut off: it ends in {printed[-80:]!r}")
    return [ad.strip("\n") + "\n" for ad in printed.split("\n\n") if ad.strip()]


async def _json(source: Source, query: Query, attributes: Sequence[str]) -> tuple[list[str], bytes]:
    output = await _run(source, query, [f"-{source.config.output}", *attributes])
    cut = cut_json if source.config.output == "json" else cut_json_lines
    return await to_thread.run_sync(cut, output), output


def _missing_names(texts: Sequence[str], columns: Sequence[str], queried: Sequence[str]) -> list[str]:
    """Return the attributes that the ads' expressions refer to but that were not queried."""
    known = {name.lower() for name in queried}
    found: dict[str, None] = {}
    for text in texts:
        try:
            attributes = parse_ad(text)
            found.update(dict.fromkeys(follow_references(attributes, select_used_columns(attributes, columns))))
        except InvalidRecord:  # the ad is refused later
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
        )
    except CommandFailed as error:
        # HTCondor creates the file when the first job leaves the queue.
        absent = "opening history file" in str(error) and "No such file or directory" in str(error)
        if config.history_file is None or not absent:
            if not (error.timed_out or error.printed_too_much):
                raise
            remedy = "option query_timeout" if error.timed_out else "read the files of the history with history_paths"
            raise CommandFailed(
                f"{error} ({remedy})", timed_out=error.timed_out, printed_too_much=error.printed_too_much
            ) from error
        source.context.log.warning(
            "%s does not exist yet: no job has left the queue, or the path is wrong", config.history_file
        )
        return b"[]" if config.output == "json" else b""
    complaint = result.stderr.decode(errors="replace").strip()
    if not result.stdout and any(word in complaint.lower() for word in ("error", "fail", "unable")):
        raise CommandFailed(f"condor_history: {complaint[-400:]}")  # no output means "no jobs" only without an error
    return result.stdout


_CRASHES: Final = frozenset({132, 134, 135, 136, 137, 139})
"""Exit codes of shells and ssh for SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL and SIGSEGV."""

_MOST: Final = 1_000
"""The maximum number of jobs in one call, since an argument has at most 131,071 characters."""

_CHANGED: Final = "the history changed during the search for ads that crash condor_history; the next run continues"


class WholeAd(msgspec.Struct, frozen=True):
    """An unevaluated ad. It is harmless if the columns refer only to literals and lists of literals."""

    text: str
    row: Row
    harmless: bool

    @property
    def job(self) -> str:
        """An expression that selects the job by two attributes that users cannot change; empty if either is missing."""
        cluster, process = self.row.get("ClusterId", ""), self.row.get("ProcId", "")
        named = cluster.isdecimal() and process.isdecimal()
        return f"(ClusterId =?= {cluster} && ProcId =?= {process})" if named else ""


async def run_query_around(source: Source, query: Query) -> Printed:
    """Call condor_history. If some ads crash it, refuse those and read the others.

    Raises:
        CommandFailed: as :func:`run_query`, unless single ads cause the failure. Also if too many ads are suspicious.
    """
    try:
        return await run_query(source, query)
    except CommandFailed as error:
        if source.config.output != "separated" or not _may_be_an_ads_fault(error):
            raise
        ads = await _whole_ads(source, query, error)
        return Printed(await _Isolation(source, query, error, ads).read())


def _may_be_an_ads_fault(error: CommandFailed) -> bool:
    """Return True if condor_history was killed by a signal, or because it exceeded a limit."""
    code = error.exit_code or 0
    return error.timed_out or error.printed_too_much or code < 0 or code in _CRASHES


async def _whole_ads(source: Source, query: Query, cause: CommandFailed) -> list[WholeAd]:
    """Return the unevaluated ads. Retry without ``stop_at``, whose expression is evaluated and may cause the crash."""
    columns = list_columns(source.config)
    for each in dict.fromkeys((query, replace(query, stop_at=None))):
        try:
            texts = await whole_ads(source, each)
        except CommandFailed as error:
            source.context.log.warning("condor_history cannot print whole ads either: %s", error)
            continue
        ads: list[WholeAd] = []
        for text in texts:
            try:
                attributes = parse_ad(text)
            except InvalidRecord:
                ads.append(WholeAd(text, {}, harmless=False))
            else:
                ads.append(WholeAd(text, literals(attributes, columns), is_harmless(attributes, columns)))
        return ads
    raise cause


def is_harmless(attributes: Attributes, columns: Sequence[str]) -> bool:
    """Return True if the columns refer only to literals, and to lists or nested ads without calls or references."""
    used = select_used_columns(attributes, columns)
    for attribute in (attributes[name] for name in follow_references(attributes, used) if name in attributes):
        expression = attribute.refers
        names = any(name.lower() in attributes for name in references([expression]))
        if attribute.text is None and (expression[0] not in "[{" or "(" in expression or names):
            return False
    return True


class _Isolation:
    """Finds the ads that made a query fail, by querying harmless jobs together and halves of the suspicious ones."""

    def __init__(self, source: Source, query: Query, cause: CommandFailed, ads: Sequence[WholeAd]) -> None:
        self._source = source
        self._query = query
        self._cause = cause
        self._ads = ads
        self._places: dict[str, list[int]] = {}
        for place, ad in enumerate(ads):
            self._places.setdefault(ad.job, []).append(place)

    async def read(self) -> list[JobAd]:
        """Return the ads in the order of the answer.

        Raises:
            CommandFailed: no ad caused the failure, or too many ads are suspicious.
        """
        nameless = self._refuse([""], "the ad has no job id") if "" in self._places else {}
        suspects = [job for job in self._places if job and not all(self._ads[n].harmless for n in self._places[job])]
        if not suspects:
            raise self._cause
        if len(suspects) > _MOST:
            raise CommandFailed(
                f"{self._cause}; {counted(len(suspects), 'job')} with expressions may be the reason: use output: jsonl "
                "or history_paths (pip install 'auditord[htcondor]')"
            )
        self._source.context.log.warning("%s; querying again without %s", self._cause, counted(len(suspects), "job"))
        others = [job for job in self._places if job and job not in set(suspects)]
        if len(others) <= _MOST:
            harmless = await self._read(others, " || ".join(others), limit=None) if others else {}
        else:
            harmless = await self._read(others, " && ".join(f"!{job}" for job in suspects), limit=self._query.limit)
        found = {**nameless, **harmless, **await self._read_halves(suspects)}
        return [found[place] for place in range(len(self._ads))]

    async def _read_halves(self, jobs: Sequence[str]) -> dict[int, JobAd]:
        try:
            return await self._read(jobs, " || ".join(jobs), limit=None)
        except CommandFailed as error:
            if not _may_be_an_ads_fault(error):
                raise
            if len(jobs) == 1:
                return self._refuse(jobs, f"condor_history cannot evaluate this ad: {error}")
        middle = len(jobs) // 2
        return {**await self._read_halves(jobs[:middle]), **await self._read_halves(jobs[middle:])}

    def _refuse(self, jobs: Sequence[str], reason: str) -> dict[int, JobAd]:
        places = chain.from_iterable(self._places[job] for job in jobs)
        return {place: JobAd(self._ads[place].row, self._ads[place].text, reason) for place in places}

    async def _read(self, jobs: Sequence[str], only: str, limit: int | None) -> dict[int, JobAd]:
        """Return the ads of the jobs by place. Ads added since the query are newer and are left out."""
        places = sorted(chain.from_iterable(self._places[job] for job in jobs))
        found = (await query_separated(self._source, replace(self._query, only=only, limit=limit))).ads
        rows = found[: len(places)] if self._query.oldest_first else found[len(found) - len(places) :]
        if len(found) < len(places) or any(
            _name(ad.row) != _name(self._ads[place].row) for place, ad in zip(places, rows, strict=True)
        ):
            raise CommandFailed(_CHANGED)
        return dict(zip(places, rows, strict=True))


def _name(row: Mapping[str, str]) -> tuple[str | None, str | None]:
    return row.get("ClusterId"), row.get("ProcId")
