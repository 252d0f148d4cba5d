"""Measures of usage: names, units, and how they are computed from the store's sums.

Figures are exact fractions, which are rounded only for display (:meth:`Figure.format`). The components have the names
and units of :mod:`auditord_hookspecs.vocabulary`. Sums of a held amount, such as ``Cores``, include its total.
"""

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from auditord_hookspecs.query import MOST_CPU_TIME
from auditord_hookspecs.vocabulary import TOTALS

DEFAULT_SCORE: Final = "HEPscore23"
"""The benchmark by which core hours are weighted if none is named."""

CORES: Final = "Cores"
CPU_TIME: Final = "TotalCPU"
_GPU: Final = "GPU"
MEMORY: Final = "Memory"
ENERGY: Final = "Energy"
WAITING: Final = "WaitTime"
PEAK: Final = "MaxRSS"

_HOUR: Final = 3_600
EFFICIENCY: Final = "cpu-efficiency"
"""The name of the measure of CPU efficiency."""

MOST_EFFICIENT: Final = 100 * Fraction(MOST_CPU_TIME)
"""The largest plausible efficiency in percent. Above it, a CPU time is wrong: no job exceeds its cores by that much."""

MIB_PER_GIB: Final = 1_024
_JOULES_PER_KWH: Final = 3_600_000

NOTHING: Final = "\N{EN DASH}"
"""The text of a figure without a value."""

_WITHOUT_DIGITS: Final = 1_000
_MANY_TIMES: Final = 900

Exact: TypeAlias = int | Fraction


class Figure(msgspec.Struct, frozen=True):
    """An amount, or a ratio of two amounts. Ratios are added by their numerators and denominators.

    Args:
        amount: the value, or the numerator of a ratio.
        base: the denominator of a ratio; None for a plain amount.
    """

    amount: Fraction = Fraction(0)
    base: Fraction | None = None

    def __add__(self, other: "Figure") -> "Figure":
        if self.base == 0 and not self.amount:
            return other
        if other.base == 0 and not other.amount:
            return self
        if self.base is None and other.base is None:
            return Figure(self.amount + other.amount)
        return Figure(self.amount + other.amount, (self.base or 0) + Fraction(other.base or 0))

    @property
    def value(self) -> Fraction | None:
        """The amount or ratio; None if the base of a ratio is zero."""
        if self.base is None:
            return self.amount
        return self.amount / self.base if self.base else None

    def format(self, unit: str = "", like: "Figure | None" = None) -> str:
        """Return the figure with few digits. Without a unit it is a count.

        ``like`` is the largest figure of a table, which determines the digits of all its figures.
        """
        if (value := self.value) is None:
            return NOTHING
        digits = digits_of((like or self).value or value, unit)
        least = Fraction(1, 10**digits)
        return f"< {text(least, digits)}" if 0 < value < least / 2 else text(value, digits)

    def format_change(self, former: "Figure") -> str | None:
        """Return the change in percent as a signed whole number, or as a factor if it is large.

        Return None if there is nothing to compare with.
        """
        before, after = former.value, self.value
        if not before or after is None:
            return None
        change = 100 * (after - before) / before
        if change >= _MANY_TIMES:
            return f"\N{MULTIPLICATION SIGN} {round(1 + change / 100):,}"
        rounded = round(change)
        sign = "\N{MINUS SIGN}" if rounded < 0 else "+" if rounded else "\N{PLUS-MINUS SIGN}"
        return f"{sign}{abs(rounded)} %"


def text(value: Fraction, digits: int = 0) -> str:
    """Format a number for people: with separators for thousands, and this number of decimals."""
    rounded = round(value * 10**digits) if digits else round(value)
    return f"{Decimal(rounded).scaleb(-digits):,.{digits}f}" if digits else f"{rounded:,}"


def with_unit(value: str, unit: str) -> str:
    """Return a formatted figure with its unit, if it has a unit and a value."""
    return f"{value} {unit}" if unit and value != NOTHING else value


def digits_of(value: Fraction, unit: str) -> int:
    """Return the number of decimals for a value of this size."""
    if not unit or abs(value) >= _WITHOUT_DIGITS or not value:
        return 0
    return 1 if abs(value) >= 1 else 3


def percent(value: Fraction | None) -> str:
    """Return a percentage with one decimal, without the percent sign; a small one is not shown as zero."""
    if value is None:
        return NOTHING
    return "< 0.1" if 0 < value <= Fraction(1, 20) else text(value, 1)


UNKNOWN: Final = Figure(base=Fraction(0))
"""A figure without a value. Nothing changes when it is added."""


class Sums(msgspec.Struct, frozen=True):
    """The sums over one group of records.

    A component in ``unknown`` occurs in none of the records, so its sums are not zero, but unknown.

    Args:
        records: the number of records.
        runtime: the sum of their runtimes, in ticks.
        amounts: the sums of amounts, by component that the measure needs.
        products: the sums of amount times runtime, in ticks, by component.
        scored: the sums of amount times score times runtime, by component, for the requested score; 0 without a score.
        users: the number of different users; 0 unless a measure counts them.
    """

    records: Exact
    runtime: Exact
    amounts: Mapping[str, Exact]
    products: Mapping[str, Exact]
    scored: Mapping[str, Exact]
    unknown: Collection[str]
    ticks_per_second: int
    co2_per_kwh: Fraction = Fraction(0)
    users: int = 0

    @property
    def wall_hours(self) -> Fraction:
        """The sum of the runtimes, in hours."""
        return Fraction(self.runtime, self.ticks_per_second * _HOUR)

    def total(self, component: str) -> Fraction:
        """Return the sum of the amounts of a component."""
        return Fraction(self.amounts[component])

    def hours(self, component: str) -> Fraction:
        """Return the sum of amount times runtime, in hours."""
        return Fraction(self.products[component], self.ticks_per_second * _HOUR)


Compute: TypeAlias = Callable[[Sums], Figure]


class Measure(msgspec.Struct, frozen=True):
    """A quantity that reports show.

    Args:
        name: as in options and URLs.
        title: as shown to people.
        unit: of the value; empty for a count.
        compute: returns the figure of a group.
        components: the components whose sums it needs.
        scored: whether the cores are weighted by a score.
        present: the components that a record must have to count, as for a ratio of two of them.
        ratio: whether figures of groups cannot be stacked.
        needs_intensity: whether it needs the grid's CO2 per kWh.
        counts_users: whether it counts different users, so that figures of groups do not add up.
    """

    name: str
    title: str
    unit: str
    compute: Compute
    components: tuple[str, ...] = ()
    scored: bool = False
    present: tuple[str, ...] = ()
    ratio: bool = False
    needs_intensity: bool = False
    counts_users: bool = False

    def figure(self, sums: Sums) -> Figure:
        """Return the figure of a group. It has no value if the records lack a component or the score."""
        is_unscored = self.scored and not sums.scored[CORES] and bool(sums.products[CORES])
        is_unknown = is_unscored or any(name in sums.unknown for name in self.components)
        return UNKNOWN if is_unknown else self.compute(sums)

    def needs(self, score: str) -> str:
        """Return the components that a record must have to count, as text."""
        names = " and ".join(f"{name} (or {TOTALS[name]})" if name in TOTALS else name for name in self.components)
        return f"{names} with the score {score}" if self.scored else names

    def remark(self, score: str) -> str:
        """Return the remark on a report with figures that have no value."""
        return f"{self.title}: unknown where no record has {self.needs(score)}"


def _score_hours(sums: Sums) -> Figure:
    return Figure(Fraction(sums.scored[CORES], sums.ticks_per_second * _HOUR))


def _efficiency(sums: Sums) -> Figure:
    return Figure(100 * sums.total(CPU_TIME) / _HOUR, sums.hours(CORES))


def _idle_core_hours(sums: Sums) -> Figure:
    return Figure(sums.hours(CORES) - sums.total(CPU_TIME) / _HOUR)


def _co2(sums: Sums) -> Figure:
    return Figure(sums.total(ENERGY) / _JOULES_PER_KWH * sums.co2_per_kwh)


_CORES_AND_CPU_TIME: Final = (CORES, CPU_TIME)

_ALL: Final = (
    Measure("jobs", "Jobs", "", lambda sums: Figure(Fraction(sums.records))),
    Measure("core-hours", "Core hours", "core h", lambda sums: Figure(sums.hours(CORES)), (CORES,)),
    Measure("score-hours", "Score-weighted hours", "score h", _score_hours, (CORES,), scored=True),
    Measure("gpu-hours", "GPU hours", "GPU h", lambda sums: Figure(sums.hours(_GPU)), (_GPU,)),
    Measure("wall-hours", "Wall-clock hours", "h", lambda sums: Figure(sums.wall_hours)),
    Measure("cpu-hours", "CPU hours", "CPU h", lambda sums: Figure(sums.total(CPU_TIME) / _HOUR), (CPU_TIME,)),
    Measure(
        EFFICIENCY,
        "CPU efficiency",
        "%",
        _efficiency,
        _CORES_AND_CPU_TIME,
        present=_CORES_AND_CPU_TIME,
        ratio=True,
    ),
    Measure(
        "idle-core-hours",
        "Idle core hours",
        "core h",
        _idle_core_hours,
        _CORES_AND_CPU_TIME,
        present=_CORES_AND_CPU_TIME,
    ),
    Measure("memory-hours", "Memory hours", "GiB h", lambda sums: Figure(sums.hours(MEMORY) / MIB_PER_GIB), (MEMORY,)),
    Measure("waiting-hours", "Waiting hours", "h", lambda sums: Figure(sums.total(WAITING) / _HOUR), (WAITING,)),
    Measure(
        "wait-per-job",
        "Wait per job",
        "h",
        lambda sums: Figure(sums.total(WAITING) / _HOUR, Fraction(sums.records)),
        (WAITING,),
        present=(WAITING,),
        ratio=True,
    ),
    Measure(
        "core-hours-per-job",
        "Core hours per job",
        "core h",
        lambda sums: Figure(sums.hours(CORES), Fraction(sums.records)),
        (CORES,),
        present=(CORES,),
        ratio=True,
    ),
    Measure(
        "cores-per-job",
        "Cores per job, weighted by runtime",
        "cores",
        lambda sums: Figure(sums.hours(CORES), sums.wall_hours),
        (CORES,),
        present=(CORES,),
        ratio=True,
    ),
    Measure(
        "active-users",
        "Active users",
        "",
        lambda sums: Figure(Fraction(sums.users)),
        ratio=True,
        counts_users=True,
    ),
    Measure("energy", "Energy", "kWh", lambda sums: Figure(sums.total(ENERGY) / _JOULES_PER_KWH), (ENERGY,)),
    Measure("co2", "CO2", "kg", _co2, (ENERGY,), needs_intensity=True),
)

MEASURES: Final[Mapping[str, Measure]] = {measure.name: measure for measure in _ALL}
"""Every measure by its name, in the order in which they are offered."""
