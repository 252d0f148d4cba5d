"""A report: rows of totals, and notes that a reader must know."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import anyio.to_thread

from auditord_builtin.utilisation.config import Level, UtilisationConfig
from auditord_builtin.utilisation.energy import Estimator, read_intensity
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.question import Question, Usages, Who
from auditord_builtin.utilisation.usage import Totals, Usage, totals_of
from auditord_hookspecs import AggregateQuery, MetaValue, Records
from auditord_hookspecs.query import Comparison, TimeCompares, TimeField
from auditord_hookspecs.wording import counted

TOTALS: Final[Mapping[Level | None, Level]] = {Level.GROUP_TOTAL: Level.GROUP, Level.USER_TOTAL: Level.USER}
"""Levels over all sites, and the level of one site that each adds up."""

TOO_EFFICIENT: Final = 2
"""Above so much CPU time per core time, milliseconds were taken for seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """The totals of the jobs of a site, group or user; of all jobs of the report if the level is None."""

    level: Level | None
    who: Who
    totals: Totals


@dataclass(frozen=True, slots=True)
class Report:
    """A report on a period.

    Args:
        title: of the report.
        period: the month or week.
        benchmark: the score that ``khs23h`` is about.
        complete: whether the period was over.
        total: all of it.
        rows: the sites, then groups, then users, then totals of groups and of users over all sites, each as far as
            they were asked for; those with most core hours first.
        notes: for the reader.
    """

    title: str
    period: Period
    benchmark: str
    complete: bool
    total: Row
    rows: Sequence[Row]
    notes: Sequence[str]

    def of(self, level: Level, site: str | None) -> Sequence[Row]:
        """The rows about a site's groups or users (or about the site itself)."""
        return [row for row in self.rows if row.level is level and row.who.site == site]

    @property
    def sites(self) -> Sequence[str | None]:
        """All sites, in the order of their rows."""
        return list(dict.fromkeys(row.who.site for row in self.rows if row.level not in TOTALS))

    def totals(self, level: Level) -> Sequence[Row]:
        """The totals over all sites; none where each would only repeat a row of the one site."""
        rows = [row for row in self.rows if row.level is level]
        single = [row for row in self.rows if row.level is TOTALS[level]]
        return rows if len(self.sites) > 1 or len(rows) != len(single) else []


async def ask(config: UtilisationConfig, records: Records, period: Period) -> Usages:
    """Ask the store for the usage of a period, by site, group and user.

    Raises:
        BadIntensity: the file of the grid's CO2 cannot be used.
    """
    options = config.energy.grid_intensity
    intensity = None if options is None else await anyio.to_thread.run_sync(read_intensity, options)
    question = Question(config, Estimator(config.energy, intensity))
    return question.usages(await records.aggregate(question.query(period)))


async def silent_sites(usages: Usages, config: UtilisationConfig, records: Records, period: Period) -> Sequence[str]:
    """The sites of a period of which no later job is known, so that perhaps not all of the period is known either.

    If nothing at all is known, of the period and later, this is said of ``any site``.
    """
    query = AggregateQuery(TimeCompares(TimeField.STOP, Comparison.GTE, period.stop), (MetaValue(*config.site_keys),))
    later = {group.key[0] for group in (await records.aggregate(query)).groups}
    if not usages and not later:
        return ["any site"]
    return sorted({who.site for who in usages if who.site is not None and who.site not in later})


def report_on(
    usages: Usages,
    config: UtilisationConfig,
    period: Period,
    *,
    complete: bool = True,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """The report on a period; ``title`` if it is not the configured one, ``notes`` before its own."""
    total = totals_of(sum(usages.values(), Usage()))
    return Report(
        title=title or config.title,
        period=period,
        benchmark=config.benchmark,
        complete=complete,
        total=Row(None, Who(None, None, None), total),
        rows=[row for level in Level if level in config.levels for row in _rows(usages, level)],
        notes=[*notes, *_savings(total), *_notes(usages, total, config.benchmark)],
    )


_WHO: Final[Mapping[Level, Callable[[Who], Who]]] = {
    Level.SITE: lambda who: Who(who.site, None, None),
    Level.GROUP: lambda who: Who(who.site, who.group, None),
    Level.USER: lambda who: who,
    Level.GROUP_TOTAL: lambda who: Who(None, who.group, None),
    Level.USER_TOTAL: lambda who: Who(None, None, who.user),
}


def _rows(usages: Usages, level: Level) -> Sequence[Row]:
    sums: defaultdict[Who, Usage] = defaultdict(Usage)
    for who, usage in usages.items():
        sums[_WHO[level](who)] += usage
    rows = [Row(level, who, totals_of(usage)) for who, usage in sums.items()]
    return sorted(rows, key=lambda row: (-row.totals.core_hours, _in_order(row.who)))


def _in_order(who: Who) -> list[str]:
    return [part or "" for part in (who.site, who.group, who.user)]


def _savings(total: Totals) -> Iterator[str]:
    if total.idle_core_hours and total.cpu_hours is not None:
        held = total.core_hours - total.untimed_core_hours
        yield f"Possible savings: {_count(total.idle_core_hours)} of {_count(held)} core hours were held and not used."
    if total.idle_memory and total.memory_requested:
        asked = _count(total.memory_requested)
        yield f"Possible savings: {_count(total.idle_memory)} of {asked} GiB hours of memory were never used."


def _notes(usages: Usages, total: Totals, benchmark: str) -> Iterator[str]:
    left_out = {
        f"have no {benchmark} score and are not in the benchmark hours": total.unscored_core_hours,
        "belong to jobs without CPU time and are not in the CPU efficiency": total.untimed_core_hours,
    }
    if total.energy is not None:
        left_out["are not in the energy: nobody measured or estimated them"] = total.core_hours_without_energy
        if total.co2 is not None:
            left_out["are not in the CO2"] = total.core_hours_without_co2
    for what, hours in left_out.items():
        if hours > 0:
            yield f"{_count(hours)} of {_count(total.core_hours)} core hours {what}."
    for missing in ("site", "group", "user"):
        jobs = sum(usage.jobs for who, usage in usages.items() if getattr(who, missing) is None)
        if jobs:
            yield f"{jobs:,} of {counted(total.jobs, 'job')} {'names' if jobs == 1 else 'name'} no {missing}."
    if total.cpu_efficiency is not None and total.cpu_efficiency > TOO_EFFICIENT:
        yield "The CPU time is more than twice that of the cores: is it in milliseconds (components.cpu_time_unit: ms)?"


def _count(hours: Fraction) -> str:
    return f"{float(hours):,.1f}"
