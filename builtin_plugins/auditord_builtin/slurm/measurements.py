"""The CPU time and energy of a run by its steps, which Slurm measures while they run."""

import re
from bisect import bisect_right
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from math import inf
from typing import Final

from auditord_builtin.slurm.config import CPU_TIME, MEASURED
from auditord_builtin.slurm.runs import (
    FIRST_COLUMN,
    Run,
    has_no_time,
)
from auditord_hookspecs import mapping
from auditord_hookspecs.mapping import (
    Row,
    is_missing,
    is_zero,
    parse_duration,
    parse_energy,
    sub_value,
)

_CLOCK: Final = len("HH:MM:SS")

_A_WHILE: Final = timedelta(minutes=1)
"""A job that ran for this long has used CPU time, so zero means that none was measured."""

_GATHERED: Final = ("mem", "vmem", "fs/disk", "pages")
"""Entries of TRESUsageInTot. If a step was measured while it ran, at least one of them is not zero."""


def sum_up_cpu_time(run: Run) -> str:
    """Return the CPU time of all steps, or the allocation's value if that is not less.

    Slurm sums up the allocation's value from its steps. Since Slurm 25.05 prints a TotalCPU of zero for many steps, and
    so for their jobs, each step counts with the larger of ``TotalCPU`` and the value measured while it ran.
    """
    own = run.allocation[CPU_TIME]
    if not is_missing(own) and not is_zero(own) and all(map(_has_no_more_gathered, run.steps)):
        return own
    total, is_known = Decimal(0), False
    for step in run.steps:
        texts = (step.get(CPU_TIME, ""), sub_value(step.get(MEASURED, ""), "cpu"))
        if known := [parse_duration(text) for text in texts if not is_missing(text)]:
            total, is_known = total + max(known), True
    if is_missing(own):
        return f"{total:f}" if is_known else own
    return own if parse_duration(own) >= total else f"{total:f}"


def _has_no_more_gathered(step: Row) -> bool:
    """Compare the texts to see that TotalCPU is not less. This is the usual case, and parsing would take longer."""
    gathered, own = sub_value(step.get(MEASURED, ""), "cpu"), step.get(CPU_TIME, "")
    clock = f"00:{own[:5]}" if own[5:6] == "." else own  # MM:SS.fff or HH:MM:SS
    if not own and not gathered:
        return True
    return len(clock) == _CLOCK and (not gathered or (len(gathered) == _CLOCK and clock >= gathered))


def lacks_cpu_time(run: Run, lasted: timedelta) -> bool:
    """Return whether a CPU time of zero cannot be true, since a run that took this long was not measured."""
    if lasted < _A_WHILE or is_zero(run.allocation.get("NCPUS", "")):
        return False
    texts = (sub_value(step.get(MEASURED, ""), name) for step in run.steps for name in _GATHERED)
    return all(is_missing(text) or is_zero(text) for text in texts)


def count_energy(run: Run, read: Callable[[Row], str]) -> Decimal | None:
    """Return the joules of the nodes during the job; None if no step has any.

    Each step has the energy of its whole nodes. So the energy of concurrent steps is the same energy, and the job's own
    value, which is the sum over its steps, can be too large. The extern step spans the job on all its nodes. Without
    it, the largest sum of steps that do not overlap counts: for one step after the other, the sum of all.
    """
    known = [(step, parse_energy(text)) for step in run.steps if not is_missing(text := read(step))]
    if not known:
        return None
    largest = max(joules for _, joules in known)
    if any(joules and step[FIRST_COLUMN].endswith(".extern") for step, joules in known):
        return largest
    measured = [(step, joules) for step, joules in known if not step[FIRST_COLUMN].endswith(SCRIPTS)]
    single = all(re.fullmatch(r"[^\[,]+", step.get("NodeList", "")) for step, _ in measured)
    by_nodes: dict[str, list[tuple[float, float, Decimal]]] = {}
    for step, joules in measured:
        start, end = step.get("Start", ""), step.get("End", "")
        period = (
            -inf if has_no_time(start) else mapping.parse_instant(start).timestamp(),
            inf if has_no_time(end) else mapping.parse_instant(end).timestamp(),
        )
        by_nodes.setdefault(step["NodeList"] if single else "", []).append((*period, joules))
    return max(largest, sum(map(_find_largest_sum, by_nodes.values()), Decimal(0)))


def _find_largest_sum(steps: list[tuple[float, float, Decimal]]) -> Decimal:
    """Return the largest sum of values of steps, given as start, end and value, that do not overlap."""
    ends, sums = [-inf], [Decimal(0)]
    for start, end, value in sorted(steps, key=lambda step: step[1]):
        sums.append(max(sums[-1], sums[bisect_right(ends, start) - 1] + value))
        ends.append(end)
    return sums[-1]


SCRIPTS: Final = (".batch", ".interactive")
