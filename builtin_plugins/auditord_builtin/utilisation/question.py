"""The one question to the store behind a report, and the sums that its answer comes to.

Jobs are counted in the month or week of UTC in which they stopped, with all that they used. What is known of some jobs
only (CPU time, the peak of memory, energy) is kept apart by whether they have the component. Where the grid's CO2 is
known by days, jobs are also kept apart by the days on which they started and stopped: each is charged the mean of its
days.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.utilisation.config import NameRule, TimeUnit, UtilisationConfig
from auditord_builtin.utilisation.energy import Estimator
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.usage import Usage
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    CalendarPeriod,
    CalendarUnit,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    Group,
    MetaValue,
    UsageSums,
    Window,
)
from auditord_hookspecs.query import TimeField, stopped_within

_DAYS: Final = (CalendarPeriod(CalendarUnit.DAY, TimeField.START), CalendarPeriod(CalendarUnit.DAY, TimeField.STOP))
_MILLISECONDS: Final = 1_000


@dataclass(frozen=True, slots=True, order=True)
class Who:
    """The owner of jobs: None where a record does not say."""

    site: str | None
    group: str | None
    user: str | None


Usages: TypeAlias = Mapping[Who, Usage]


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a report, and its reading of the answer."""

    config: UtilisationConfig
    estimator: Estimator

    def query(self, period: Period) -> AggregateQuery:
        """The query to the store."""
        config = self.config
        where = stopped_within(Window(period.start, period.stop))
        whose = (MetaValue(*config.site_keys), MetaValue(*config.group_keys), MetaValue(*config.user_keys))
        by: tuple[Dimension, ...] = (*whose, *map(ComponentPresent, self._apart), *self._days)
        return AggregateQuery(where, by, tuple(map(self._usage, config.components.names)))

    def usages(self, answer: Aggregates) -> Usages:
        """The sums by site, group (as the report calls it) and user."""
        found: defaultdict[Who, Usage] = defaultdict(Usage)
        for group in answer.groups:
            site, name, user = [None if value is None else str(value) for value in group.key[:3]]
            if not self.config.sites or site in self.config.sites:
                found[Who(site, renamed(name, self.config.group_names), user)] += self._read(site, group)
        return found

    @property
    def _apart(self) -> Sequence[str]:
        """The components that a job has or has not, which is kept apart."""
        names = self.config.components
        pair = (names.memory, names.memory_peak) if names.memory and names.memory_peak else ()
        known = [name for name in (names.cpu_time, *pair, names.energy) if name is not None]
        return [names.cores, *known] if names.cpu_time is not None else known

    @property
    def _days(self) -> tuple[CalendarPeriod, ...]:
        return _DAYS if self.estimator.intensity is not None else ()

    def _usage(self, name: str) -> ComponentUsage:
        return ComponentUsage(name, (self.config.benchmark,) if name == self.config.components.cores else ())

    def _read(self, site: str | None, group: Group) -> Usage:
        names = self.config.components
        usage = dict(zip(names.names, group.usage, strict=True))
        there = {name for name, present in zip(self._apart, group.key[3:], strict=False) if present}
        jobs = Usage(jobs=group.records) + _cores(usage[names.cores], self.config.benchmark)
        if names.gpus is not None:
            jobs += Usage(gpu_time=usage[names.gpus].sums.amount_runtime)
        if names.cpu_time is not None and {names.cpu_time, names.cores} <= there:
            per_second = _MILLISECONDS if names.cpu_time_unit is TimeUnit.MILLISECONDS else 1
            cpu_time = Fraction(usage[names.cpu_time].sums.amount, per_second)
            jobs += Usage(timed_core_time=jobs.core_time, cpu_time=cpu_time)
        return jobs + self._memory(usage, there) + self._energy(site, group, usage, there)

    def _memory(self, usage: Mapping[str, UsageSums], there: set[str]) -> Usage:
        names = self.config.components
        if names.memory is None or names.memory_peak is None or not {names.memory, names.memory_peak} <= there:
            return Usage()
        asked = usage[names.memory].sums.amount_runtime * names.memory_unit.bytes
        used = usage[names.memory_peak].sums.amount_runtime * names.memory_peak_unit.bytes
        return Usage(memory_time=Fraction(asked), memory_used_time=Fraction(used))

    def _energy(self, site: str | None, group: Group, usage: Mapping[str, UsageSums], there: set[str]) -> Usage:
        names = self.config.components
        core_time = usage[names.cores].sums.amount_runtime
        joules = None
        if names.energy is not None and names.energy in there:
            joules = usage[names.energy].sums.amount
        kwh = self.estimator.energy(site, core_time, joules)
        if kwh is None:
            return Usage()
        drawn = Usage(energy=kwh, energy_core_time=core_time, measured_core_time=0 if joules is None else core_time)
        co2 = self.estimator.co2(site, kwh, self._days_of(group))
        return drawn if co2 is None else drawn + Usage(co2=co2, co2_core_time=core_time)

    def _days_of(self, group: Group) -> tuple[date, date] | None:
        if not self._days:
            return None
        first, last = group.key[-2:]
        assert isinstance(first, date), first  # noqa: S101 a calendar period is a date, and never None
        assert isinstance(last, date), last  # noqa: S101 the same
        return first, last


def renamed(group: str | None, rules: Sequence[NameRule]) -> str | None:
    """The name of a group in the report: by the first rule that matches, else its own."""
    for rule in rules if group is not None else ():
        if (match := rule.matches.search(group or "")) is not None:
            name = rule.name
            for number, text in enumerate(match.groups(default=""), 1):
                name = name.replace(f"{{{number}}}", text)
            return name
    return group


def _cores(cores: UsageSums, benchmark: str) -> Usage:
    score = cores.scores[benchmark]
    return Usage(
        core_time=cores.sums.amount_runtime,
        benchmark_time=Fraction(score.amount_runtime),
        unscored_core_time=score.unscored.amount_runtime,
    )
