"""The usage behind a report: one query to the store, exact sums, energy and CO2."""

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from io import TextIOWrapper
from itertools import accumulate
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import fields

from auditord_builtin.utilisation.config import Energy, GridIntensity, NameRule, SiteEnergy, TimeUnit, UtilisationConfig
from auditord_builtin.utilisation.periods import Period
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AuditordError,
    CalendarPeriod,
    CalendarUnit,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    Group,
    MetaValue,
    Window,
)
from auditord_hookspecs.folders import UnsafePath, open_regular
from auditord_hookspecs.query import AllOf, MetaContainsAny, TimeField, match_stopped

HOUR: Final = 3_600
_ZERO: Final = Fraction(0)


class Usage(msgspec.Struct, frozen=True):
    """Sums over jobs. Times are in seconds.

    Args:
        coreless_jobs: jobs whose record has neither the cores nor their total, so their core time is unknown.
        core_time: cores times runtime, of the other jobs.
        benchmark_time: core time times the score of each core.
        unscored_core_time: core time of cores without a score.
        timed_core_time: core time of jobs with a known CPU time.
        cpu_time: CPU time of these jobs.
        gpu_time: GPUs times runtime.
        memory_time: requested memory in bytes, times runtime, of jobs with a known peak.
        memory_used_time: peak memory of these jobs in bytes, times runtime.
        unmeasured_memory_time: requested memory in bytes, times runtime, of jobs without a known peak.
        memoryless_jobs: jobs whose record has neither the requested memory nor its total.
        energy: kWh, including the building's overhead.
        energy_core_time: core time of jobs whose energy was measured or estimated.
        measured_core_time: core time of jobs whose energy was measured.
        co2: kg.
        co2_core_time: core time of jobs whose CO2 is known.
    """

    jobs: int = 0
    coreless_jobs: int = 0
    core_time: int = 0
    benchmark_time: Fraction = _ZERO
    unscored_core_time: int = 0
    timed_core_time: int = 0
    cpu_time: Fraction = _ZERO
    gpu_time: int = 0
    memory_time: Fraction = _ZERO
    memory_used_time: Fraction = _ZERO
    unmeasured_memory_time: Fraction = _ZERO
    memoryless_jobs: int = 0
    energy: Fraction = _ZERO
    energy_core_time: int = 0
    measured_core_time: int = 0
    co2: Fraction = _ZERO
    co2_core_time: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        pairs = zip(_SUMS(self), _SUMS(other), strict=True)
        # Most summands are zero, and adding fractions is slow.
        return Usage(*[mine + theirs if mine and theirs else mine or theirs for mine, theirs in pairs])


_SUMS: Final = attrgetter(*[each.name for each in fields(Usage)])


class Totals(msgspec.Struct, frozen=True):
    """The totals of jobs in a report. Unknown totals are None.

    Args:
        jobs: the number of jobs that ended.
        core_hours: hours of allocated cores; None if no job has cores.
        khs23h: thousands of core hours times score: kHS23h, if the score is HEPscore23.
        cpu_efficiency: CPU time per core time.
        memory_efficiency: peak memory per requested memory, weighted by runtime.
        gpu_hours: hours of allocated GPUs.
        cpu_hours: CPU time.
        idle_core_hours: unused core hours of jobs with a known CPU time.
        memory_requested: GiB hours of requested memory.
        memory_used: GiB hours by the peak, of jobs with a known peak.
        idle_memory: GiB hours that these jobs requested and never used.
        energy: kWh.
        co2: kg.
        unscored_core_hours: core hours left out of ``khs23h``.
        untimed_core_hours: core hours left out of ``cpu_efficiency``.
        core_hours_without_energy: core hours left out of ``energy``.
        core_hours_without_co2: core hours left out of ``co2``.
        measured_core_hours: core hours in ``energy`` that were measured. The others are estimated.
        jobs_without_cores: jobs left out of ``core_hours``, and of all that is computed from them.
        unmeasured_memory: requested GiB hours left out of ``memory_efficiency``, ``memory_used`` and ``idle_memory``.
        jobs_without_memory: jobs left out of ``memory_requested``, and of all that is computed from it.
    """

    jobs: int
    core_hours: Fraction | None
    khs23h: Fraction | None
    cpu_efficiency: Fraction | None
    memory_efficiency: Fraction | None
    gpu_hours: Fraction
    cpu_hours: Fraction | None
    idle_core_hours: Fraction | None
    memory_requested: Fraction | None
    memory_used: Fraction | None
    idle_memory: Fraction | None
    energy: Fraction | None
    co2: Fraction | None
    unscored_core_hours: Fraction
    untimed_core_hours: Fraction
    core_hours_without_energy: Fraction
    core_hours_without_co2: Fraction
    measured_core_hours: Fraction
    jobs_without_cores: int
    unmeasured_memory: Fraction
    jobs_without_memory: int


def totals_of(usage: Usage) -> Totals:
    """Return the totals of jobs, given their sums."""
    is_coreless = 0 < usage.jobs == usage.coreless_jobs
    timed, memory_known = usage.timed_core_time > 0, usage.memory_time > 0
    measured, used = _gib_hours(usage.memory_time), _gib_hours(usage.memory_used_time)
    unmeasured = _gib_hours(usage.unmeasured_memory_time)
    return Totals(
        jobs=usage.jobs,
        core_hours=None if is_coreless else _hours(usage.core_time),
        khs23h=_if_known(_hours(usage.benchmark_time) / 1_000, usage, usage.unscored_core_time),
        cpu_efficiency=usage.cpu_time / usage.timed_core_time if timed else None,
        memory_efficiency=usage.memory_used_time / usage.memory_time if memory_known else None,
        gpu_hours=_hours(usage.gpu_time),
        cpu_hours=_hours(usage.cpu_time) if timed else None,
        idle_core_hours=_hours(max(_ZERO, usage.timed_core_time - usage.cpu_time)) if timed else None,
        memory_requested=measured + unmeasured or None,
        memory_used=used if memory_known else None,
        idle_memory=max(_ZERO, measured - used) if memory_known else None,
        energy=_if_known(usage.energy, usage, usage.core_time - usage.energy_core_time),
        co2=_if_known(usage.co2, usage, usage.core_time - usage.co2_core_time),
        unscored_core_hours=_hours(usage.unscored_core_time),
        untimed_core_hours=_hours(usage.core_time - usage.timed_core_time),
        core_hours_without_energy=_hours(usage.core_time - usage.energy_core_time),
        core_hours_without_co2=_hours(usage.core_time - usage.co2_core_time),
        measured_core_hours=_hours(usage.measured_core_time),
        jobs_without_cores=usage.coreless_jobs,
        unmeasured_memory=unmeasured,
        jobs_without_memory=usage.memoryless_jobs,
    )


def _if_known(total: Fraction, usage: Usage, left_out: int) -> Fraction | None:
    has_jobs = usage.core_time > 0 or usage.coreless_jobs > 0
    return None if total == 0 and has_jobs and left_out == usage.core_time else total


def _hours(seconds: Fraction | int) -> Fraction:
    return Fraction(seconds, HOUR)


def _gib_hours(byte_seconds: Fraction) -> Fraction:
    return byte_seconds / 2**30 / HOUR


JOULES_PER_KWH: Final = 3_600_000
_NOTHING: Final = SiteEnergy()


class BadIntensity(AuditordError):
    """The file with the grid's CO2 intensity cannot be used.

    Remedy:
        correct the file that the message names, or remove `grid_intensity`; the next run makes the report.
    """


class Intensity(msgspec.Struct, frozen=True):
    """Kilograms of CO2 per kWh by UTC day, each the mean of the day's values. ``sums`` are cumulative."""

    days: Sequence[date]
    sums: Sequence[Fraction]

    def mean(self, first: date, last: date) -> Fraction | None:
        """Return the mean over a range of days, both included, or None unless every day has values."""
        begin, end = bisect_left(self.days, first), bisect_left(self.days, last)
        if end >= len(self.days) or end - begin != (last - first).days:
            return None
        if self.days[begin] != first or self.days[end] != last:
            return None
        before = self.sums[begin - 1] if begin else Fraction(0)
        return (self.sums[end] - before) / (end - begin + 1)


def read_intensity(options: GridIntensity) -> Intensity:
    """Return the intensity from the configured file.

    Raises:
        BadIntensity: the file cannot be read, lacks a column, or has an invalid value.
    """
    try:
        with open_regular(options.file) as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            return intensity_of(csv.DictReader(text), options)
    except (OSError, UnsafePath, UnicodeDecodeError, csv.Error, ValueError, InvalidOperation) as error:
        raise BadIntensity(f"grid_intensity: {options.file} cannot be used: {error}") from error


def intensity_of(rows: Iterable[Mapping[str, str | None]], options: GridIntensity) -> Intensity:
    """Return the intensity from the file's rows.

    Raises:
        ValueError: a column is missing or has an invalid value.
    """
    by_day: defaultdict[date, list[Fraction]] = defaultdict(list)
    for number, row in enumerate(rows, 2):
        time, value = row.get(options.time_column), row.get(options.value_column)
        if not time or not value:
            raise ValueError(f"line {number} has no {options.time_column} or no {options.value_column}")
        moment = datetime.fromisoformat(time.strip())
        day = (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)).date()
        per_kwh = Decimal(value.strip())
        if not per_kwh.is_finite() or per_kwh < 0:
            raise ValueError(f"line {number}: '{value}' is not an amount of CO2")
        by_day[day].append(Fraction(per_kwh) * Fraction(options.factor))
    days = sorted(by_day)
    return Intensity(days, list(accumulate(sum(by_day[day], Fraction(0)) / len(by_day[day]) for day in days)))


class Estimator(msgspec.Struct, frozen=True):
    """Computes the energy of jobs and its CO2, using the grid's intensity if it is known."""

    options: Energy
    intensity: Intensity | None = None

    def energy(self, site: str | None, core_time: int, joules: int | None) -> Fraction | None:
        """Return the kWh of jobs including the building's overhead, or None if unknown. ``joules`` are measured."""
        own = self._site_options(site)
        pue = Fraction(self.options.pue if own.pue is None else own.pue)
        if joules is not None:
            return Fraction(joules, JOULES_PER_KWH) * pue
        watt = self.options.watt_per_core if own.watt_per_core is None else own.watt_per_core
        return None if watt is None else Fraction(watt) * core_time / JOULES_PER_KWH * pue

    def co2(self, site: str | None, kwh: Fraction, days: tuple[date, date] | None) -> Fraction | None:
        """Return the kg of CO2 for energy used in a range of days, or None if unknown.

        A site's constant takes precedence over the grid's values, and these over the general constant.
        """
        own = self._site_options(site).co2_per_kwh
        if own is not None:
            return kwh * Fraction(own)
        mean = self.intensity.mean(*days) if self.intensity is not None and days is not None else None
        if mean is None and self.options.co2_per_kwh is not None:
            mean = Fraction(self.options.co2_per_kwh)
        return None if mean is None else kwh * mean

    def _site_options(self, site: str | None) -> SiteEnergy:
        return _NOTHING if site is None else self.options.sites.get(site, _NOTHING)


_DAYS: Final = (CalendarPeriod(CalendarUnit.DAY, TimeField.START), CalendarPeriod(CalendarUnit.DAY, TimeField.STOP))
_MILLISECONDS: Final = 1_000


class Who(msgspec.Struct, frozen=True, order=True):
    """The owner of jobs. A field is None if the record has no such label."""

    site: str | None
    group: str | None
    user: str | None


Usages: TypeAlias = Mapping[Who, Usage]


class Question(msgspec.Struct, frozen=True):
    """The query of a report, and how to read its result."""

    config: UtilisationConfig
    estimator: Estimator

    def query(self, period: Period) -> AggregateQuery:
        config = self.config
        stopped = match_stopped(Window(period.start, period.stop))
        where = AllOf((*stopped.conditions, *(MetaContainsAny(key, values) for key, values in config.only.items())))
        whose = (MetaValue(*config.site_keys), MetaValue(*config.group_keys), MetaValue(*config.user_keys))
        by: tuple[Dimension, ...] = (*whose, *map(ComponentPresent, self._apart), *self._days)
        usage = [
            ComponentUsage(name, (config.benchmark,) if name == config.components.cores else ())
            for name in config.components.names
        ]
        return AggregateQuery(where, by, tuple(usage))

    def usages(self, answer: Aggregates) -> Usages:
        """Return the sums by site, group (by its name in the report) and user."""
        found: defaultdict[Who, Usage] = defaultdict(Usage)
        for group in answer.groups:
            site, name, user = [None if value is None else str(value) for value in group.key[:3]]
            if not self.config.sites or site in self.config.sites:
                found[Who(site, rename_group(name, self.config.group_names), user)] += self._read(site, group)
        return found

    @property
    def _apart(self) -> Sequence[str]:
        """The components whose presence separates groups of jobs."""
        names = self.config.components
        peak = names.memory_peak if names.memory else None
        return [names.cores, *filter(None, (names.cpu_time, names.memory, peak, names.energy))]

    @property
    def _days(self) -> tuple[CalendarPeriod, ...]:
        return _DAYS if self.estimator.intensity is not None else ()

    def _read(self, site: str | None, group: Group) -> Usage:
        names = self.config.components
        usage = dict(zip(names.names, group.usage, strict=True))
        known = {name for name, present in zip(self._apart, group.key[3:], strict=False) if present}
        cores = usage[names.cores]
        score = cores.scores[self.config.benchmark]
        unknown = (None, Decimal())  # AUDITOR writes 0 for an unknown score
        jobs = Usage(
            jobs=group.records,
            coreless_jobs=0 if cores.known else group.records,  # the query groups by the presence of cores
            core_time=cores.sums.amount_runtime,
            benchmark_time=Fraction(score.amount_runtime),
            unscored_core_time=sum(score.by_value[each].amount_runtime for each in unknown if each in score.by_value),
        )
        if names.gpus is not None:
            jobs += Usage(gpu_time=usage[names.gpus].sums.amount_runtime)
        if names.cpu_time is not None and {names.cpu_time, names.cores} <= known:
            per_second = _MILLISECONDS if names.cpu_time_unit is TimeUnit.MILLISECONDS else 1
            cpu_time = Fraction(usage[names.cpu_time].sums.amount, per_second)
            jobs += Usage(timed_core_time=jobs.core_time, cpu_time=cpu_time)
        if names.memory is not None and names.memory in known:
            requested = Fraction(usage[names.memory].sums.amount_runtime * names.memory_unit.bytes)
            if names.memory_peak is not None and names.memory_peak in known:
                used = usage[names.memory_peak].sums.amount_runtime * names.memory_peak_unit.bytes
                jobs += Usage(memory_time=requested, memory_used_time=Fraction(used))
            else:
                jobs += Usage(unmeasured_memory_time=requested)
        elif names.memory is not None:
            jobs += Usage(memoryless_jobs=group.records)
        joules = None
        if names.energy is not None and names.energy in known:
            joules = usage[names.energy].sums.amount
        core_time = cores.sums.amount_runtime
        kwh = self.estimator.energy(site, core_time, joules)
        if kwh is None:
            return jobs
        jobs += Usage(energy=kwh, energy_core_time=core_time, measured_core_time=0 if joules is None else core_time)
        days = None
        if self._days:
            first, last = group.key[-2:]
            assert isinstance(first, date), first  # noqa: S101 a calendar period is a date, and never None
            assert isinstance(last, date), last  # noqa: S101 the same
            days = first, last
        co2 = self.estimator.co2(site, kwh, days)
        return jobs if co2 is None else jobs + Usage(co2=co2, co2_core_time=core_time)


def rename_group(group: str | None, rules: Sequence[NameRule]) -> str | None:
    """Return a group's name in the report: by the first matching rule, else unchanged."""
    for rule in rules if group is not None else ():
        if (match := rule.matches.search(group or "")) is not None:
            name = rule.name
            for number, text in enumerate(match.groups(default=""), 1):
                name = name.replace(f"{{{number}}}", text)
            return name
    return group
