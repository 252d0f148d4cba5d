"""CPU times that no job can have had: they are reported as what the job's processors had, and listed.

Batch systems print such times now and then: a counter that wrapped around, or milliseconds where seconds are meant. The
record store keeps them. APEL only sees sums: one such job would hide all others of its row, and a sum that does not fit
APEL's column would cost the whole message. Zero would be as wrong, and a job that is left out would be missing. So the
job is reported with its wall time, and with the most that is possible as its CPU time.
"""

from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.apel.fields import AmountField, ComponentField, ConstantField, KeyField
from auditord_hookspecs import ExceedsRuntime
from auditord_hookspecs.query import MOST_CPU_TIME

Number: TypeAlias = int | Fraction
"""An exact number; whole ones are added up much faster."""

_MOST: Final = Fraction(MOST_CPU_TIME)
_DECIMALS: Final = 9
_MILLISECONDS: Final = 100
"""So many times what is possible may be milliseconds that were taken for seconds."""


def implausible(cpu: AmountField, processors: KeyField) -> ExceedsRuntime | None:
    """Return the dimension that keeps implausible jobs apart from others; None where the store cannot tell them."""
    match cpu, processors:
        case ComponentField(), ComponentField():
            factor = MOST_CPU_TIME * cpu.divide_by / processors.divide_by
            return ExceedsRuntime(cpu.name, round(factor, _DECIMALS), processors.name)
        case ComponentField(), ConstantField() if str(processors.value).isdecimal() and int(processors.value):
            return ExceedsRuntime(cpu.name, MOST_CPU_TIME * cpu.divide_by * int(processors.value))
        case _:
            return None


def plausible_cpu(cpu: Number, wall: int, jobs: int, processors: int) -> Number:
    """Return the CPU time of jobs, or what their processors had if it is implausible.

    Args:
        cpu: seconds of all jobs together.
        wall: seconds of runtime of all jobs; each was cut to whole seconds, so up to one of each is missing.
        jobs: their number.
        processors: of each job; 0 for an unknown number, with which every time is plausible.
    """
    most = (wall + jobs) * processors
    return most if processors and cpu > _MOST * most else cpu


def reported_as(cpu: Number, wall: int, plausible: Number) -> str:
    """Return what is said of the CPU time of implausible jobs, of which all have this together."""
    hint = "; are these milliseconds (divide_by: 1000)?" if cpu > _MILLISECONDS * plausible else ""
    return f"implausible CPU time, {float(cpu):.0f} s in {wall} s: reported with {float(plausible):.0f} s{hint}"
