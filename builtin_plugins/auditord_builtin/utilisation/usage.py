"""The usage of jobs as exact sums that can be added, and the totals that are made of them.

Nothing known is not zero: a total is None if nothing is known of it, and what is left out of a total is counted
beside it. Ratios are of sums (a job of a thousand core hours weighs a thousand times as much as a job of one), and only
of the jobs whose both sides are known.
"""

from dataclasses import dataclass, fields
from fractions import Fraction
from operator import attrgetter
from typing import Final

HOUR: Final = 3_600
_ZERO: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over jobs; times in seconds.

    Args:
        jobs: how many.
        core_time: cores times runtime.
        benchmark_time: the same times the score of each core.
        unscored_core_time: of cores without a score.
        timed_core_time: of jobs whose CPU time is known.
        cpu_time: CPU time of those.
        gpu_time: GPUs times runtime.
        memory_time: bytes of memory that were asked for, times runtime, of jobs whose peak is known.
        memory_used_time: the highest use of those, in bytes, times runtime.
        energy: kWh, with what the building adds.
        energy_core_time: core time of the jobs whose energy is known or estimated.
        measured_core_time: core time of the jobs whose energy was measured.
        co2: kg.
        co2_core_time: core time of the jobs whose CO2 is known.
    """

    jobs: int = 0
    core_time: int = 0
    benchmark_time: Fraction = _ZERO
    unscored_core_time: int = 0
    timed_core_time: int = 0
    cpu_time: Fraction = _ZERO
    gpu_time: int = 0
    memory_time: Fraction = _ZERO
    memory_used_time: Fraction = _ZERO
    energy: Fraction = _ZERO
    energy_core_time: int = 0
    measured_core_time: int = 0
    co2: Fraction = _ZERO
    co2_core_time: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        pairs = zip(_SUMS(self), _SUMS(other), strict=True)
        # Most of what is added is zero, and fractions are slow to add.
        return Usage(*[mine + theirs if mine and theirs else mine or theirs for mine, theirs in pairs])


_SUMS: Final = attrgetter(*[each.name for each in fields(Usage)])


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of some jobs in a report; None stands for what is not known.

    Args:
        jobs: how many ended.
        core_hours: of the cores that they held.
        khs23h: thousands of core hours times score: kHS23h, if the score is HEPscore23.
        cpu_efficiency: CPU time per core time held.
        memory_efficiency: highest use of memory per memory asked for, weighted with runtimes.
        gpu_hours: of the GPUs that they held.
        cpu_hours: CPU time.
        idle_core_hours: core hours held and not used, as far as the CPU time is known: what could be saved.
        memory_requested: GiB times hours, of the jobs whose highest use is known.
        memory_used: the highest use of those.
        idle_memory: GiB times hours asked for and never used.
        energy: kWh.
        co2: kg.
        unscored_core_hours: left out of ``khs23h``.
        untimed_core_hours: left out of ``cpu_efficiency``.
        core_hours_without_energy: left out of ``energy``.
        core_hours_without_co2: left out of ``co2``.
        measured_core_hours: those in ``energy`` that were measured; the others are estimated.
    """

    jobs: int
    core_hours: Fraction
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


def totals_of(usage: Usage) -> Totals:
    """The totals of some jobs."""
    timed, remembered = usage.timed_core_time > 0, usage.memory_time > 0
    asked, used = _gib_hours(usage.memory_time), _gib_hours(usage.memory_used_time)
    return Totals(
        jobs=usage.jobs,
        core_hours=_hours(usage.core_time),
        khs23h=_known(_hours(usage.benchmark_time) / 1_000, usage.core_time, usage.unscored_core_time),
        cpu_efficiency=usage.cpu_time / usage.timed_core_time if timed else None,
        memory_efficiency=usage.memory_used_time / usage.memory_time if remembered else None,
        gpu_hours=_hours(usage.gpu_time),
        cpu_hours=_hours(usage.cpu_time) if timed else None,
        idle_core_hours=_hours(max(_ZERO, usage.timed_core_time - usage.cpu_time)) if timed else None,
        memory_requested=asked if remembered else None,
        memory_used=used if remembered else None,
        idle_memory=max(_ZERO, asked - used) if remembered else None,
        energy=_known(usage.energy, usage.core_time, usage.core_time - usage.energy_core_time),
        co2=_known(usage.co2, usage.core_time, usage.core_time - usage.co2_core_time),
        unscored_core_hours=_hours(usage.unscored_core_time),
        untimed_core_hours=_hours(usage.core_time - usage.timed_core_time),
        core_hours_without_energy=_hours(usage.core_time - usage.energy_core_time),
        core_hours_without_co2=_hours(usage.core_time - usage.co2_core_time),
        measured_core_hours=_hours(usage.measured_core_time),
    )


def _known(total: Fraction, core_time: int, left_out: int) -> Fraction | None:
    return None if total == 0 and core_time > 0 and left_out == core_time else total


def _hours(seconds: Fraction | int) -> Fraction:
    return Fraction(seconds, HOUR)


def _gib_hours(byte_seconds: Fraction) -> Fraction:
    return byte_seconds / 2**30 / HOUR
