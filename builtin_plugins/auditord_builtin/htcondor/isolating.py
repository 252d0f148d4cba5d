"""Reading around the ads that end ``condor_history``.

It evaluates what users wrote while it prints the columns, and some expressions end it or take all its time
(``VoName = evalInEachContext(VoName, {[a = 1]})``). It never evaluates anything while it prints whole ads. So these
are asked for, and the columns again: of the ads that are nothing but literals at once, of the others in halves, until
the ads that do the harm stand alone. These are refused and kept whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from auditord_builtin.htcondor.ads import Attributes, JobAd, parse_ad, reached, references
from auditord_builtin.htcondor.evaluation import literals
from auditord_builtin.htcondor.history_output import Printed
from auditord_builtin.htcondor.query import Query, Source, run_query, separated, wanted_columns, whole_ads
from auditord_hookspecs import CommandFailed, InvalidRecord
from auditord_hookspecs.mapping import Row
from auditord_hookspecs.wording import counted

_CRASHES: Final = frozenset({132, 134, 135, 136, 137, 139})
"""Exit codes of a shell, also behind ssh, for SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL and SIGSEGV."""

_MOST: Final = 1_000
"""Jobs that are named in one call: an argument has at most 131,071 characters."""

_CHANGED: Final = "the history changed while the ads that end condor_history were looked for; the next run goes on"


@dataclass(frozen=True, slots=True)
class WholeAd:
    """An ad as it is; harmless if all that the columns refer to is literals, and lists of such."""

    text: str
    row: Row
    harmless: bool

    @property
    def job(self) -> str:
        """The expression that is true for this job, whose two attributes nobody can change; empty for none."""
        cluster, process = self.row.get("ClusterId", ""), self.row.get("ProcId", "")
        named = cluster.isdecimal() and process.isdecimal()
        return f"(ClusterId =?= {cluster} && ProcId =?= {process})" if named else ""


async def run_query_around(source: Source, query: Query) -> Printed:
    """Ask condor_history; ads that end it are refused, and the others read.

    Raises:
        CommandFailed: as :func:`run_query`; it fails for another reason, or too many ads may be what ends it.
    """
    try:
        return await run_query(source, query)
    except CommandFailed as error:
        if source.config.output != "separated" or not _may_be_an_ads_fault(error):
            raise
        ads = await _whole_ads(source, query, error)
        return Printed(await _Isolation(source, query, error, ads).read())


def _may_be_an_ads_fault(error: CommandFailed) -> bool:
    """True if it was ended by a signal, or by us since it took too long or printed too much."""
    code = error.exit_code or 0
    return error.timed_out or error.printed_too_much or code < 0 or code in _CRASHES


async def _whole_ads(source: Source, query: Query, cause: CommandFailed) -> list[WholeAd]:
    """The ads of the answer. The expression at which it stops is evaluated for each, and may be what does the harm."""
    columns = wanted_columns(source.config)
    for each in dict.fromkeys((query, replace(query, stop_at=None))):
        try:
            return [_read_literals(text, columns) for text in await whole_ads(source, each)]
        except CommandFailed as error:
            source.context.log.warning("condor_history cannot print whole ads either: %s", error)
    raise cause


def _read_literals(text: str, columns: Sequence[str]) -> WholeAd:
    try:
        attributes = parse_ad(text)
    except InvalidRecord:
        return WholeAd(text, {}, harmless=False)
    return WholeAd(text, literals(attributes, columns), _is_harmless(attributes, columns))


def _is_harmless(attributes: Attributes, columns: Sequence[str]) -> bool:
    """True if all are literals, or lists (such as benchmarks) without a call or a look at another attribute."""
    for attribute in (attributes[name] for name in reached(attributes, columns) if name in attributes):
        expression = attribute.refers
        names = any(name.lower() in attributes for name in references([expression]))
        if attribute.text is None and (expression[0] not in "[{" or "(" in expression or names):
            return False
    return True


class _Isolation:
    """The ads of a query that failed, by their jobs."""

    def __init__(self, source: Source, query: Query, cause: CommandFailed, ads: Sequence[WholeAd]) -> None:
        self._source = source
        self._query = query
        self._cause = cause
        self._ads = ads
        self._places: dict[str, list[int]] = {}
        for place, ad in enumerate(ads):
            self._places.setdefault(ad.job, []).append(place)

    async def read(self) -> list[JobAd]:
        """The ads in the order of the answer.

        Raises:
            CommandFailed: it is no ad's fault, or too many may be at fault.
        """
        nameless = self._refused([""], "it does not say which job it is") if "" in self._places else {}
        suspects = [job for job in self._places if job and not all(self._ads[n].harmless for n in self._places[job])]
        self._check(suspects)
        others = [job for job in self._places if job and job not in set(suspects)]
        if len(others) <= _MOST:
            harmless = await self._read(others, " || ".join(others), limit=None) if others else {}
        else:
            harmless = await self._read(others, " && ".join(f"!{job}" for job in suspects), limit=self._query.limit)
        found = {**nameless, **harmless, **await self._read_halves(suspects)}
        return [found[place] for place in range(len(self._ads))]

    def _check(self, suspects: Sequence[str]) -> None:
        if not suspects:
            raise self._cause
        if len(suspects) > _MOST:
            raise CommandFailed(
                f"{self._cause}; {counted(len(suspects), 'job')} with expressions may be the reason: use output: jsonl "
                "or history_paths (pip install 'auditord[htcondor]')"
            )
        self._source.context.log.warning("%s; asking again around %s", self._cause, counted(len(suspects), "job"))

    async def _read_halves(self, jobs: Sequence[str]) -> dict[int, JobAd]:
        try:
            return await self._read(jobs, " || ".join(jobs), limit=None)
        except CommandFailed as error:
            if not _may_be_an_ads_fault(error):
                raise
            if len(jobs) == 1:
                return self._refused(jobs, f"condor_history cannot evaluate this ad: {error}")
        middle = len(jobs) // 2
        return {**await self._read_halves(jobs[:middle]), **await self._read_halves(jobs[middle:])}

    def _refused(self, jobs: Sequence[str], reason: str) -> dict[int, JobAd]:
        places = chain.from_iterable(self._places[job] for job in jobs)
        return {place: JobAd(self._ads[place].row, self._ads[place].text, reason) for place in places}

    async def _read(self, jobs: Sequence[str], only: str, limit: int | None) -> dict[int, JobAd]:
        """The ads of the jobs by place. What has come into the history meanwhile is newer than all of them."""
        places = sorted(chain.from_iterable(self._places[job] for job in jobs))
        found = (await separated(self._source, replace(self._query, only=only, limit=limit))).ads
        rows = found[: len(places)] if self._query.oldest_first else found[len(found) - len(places) :]
        if len(found) < len(places) or any(
            _name(ad.row) != _name(self._ads[place].row) for place, ad in zip(places, rows, strict=True)
        ):
            raise CommandFailed(_CHANGED)
        return dict(zip(places, rows, strict=True))


def _name(row: Mapping[str, str]) -> tuple[str | None, str | None]:
    return row.get("ClusterId"), row.get("ProcId")
