"""From usage to priorities, in exact fractions; formulas and rounding are those of AUDITOR's plugin."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.priority.config import Mode
from auditord_builtin.priority.usage import Usage

Targets: TypeAlias = Mapping[str, Fraction]
"""A priority for each group, not rounded."""

_HALF: Final = Fraction(1, 2)


def targets(usage: Usage, mode: Mode, low: int, high: int) -> Targets | None:
    """The priorities between the bounds, both included; None if no group used anything, which says nothing.

    FullSpread: ``(v - least) / (most - least) * (high - low) + low``; all get ``high`` if they are equal.
    ScaledBySum: ``(high - low) / sum * v + low``.
    """
    if not any(usage.values()):
        return None
    spread = _full_spread if mode == "FullSpread" else _scaled_by_sum
    shares = spread(list(usage.values()))
    return {group: low + share * (high - low) for group, share in zip(usage, shares, strict=True)}


def smoothed(wanted: Targets, last: Mapping[str, Fraction], smoothing: float) -> Targets:
    """The priorities on their way from the last ones; a group that has none yet gets its own at once.

    What is kept is not rounded, or small steps would never arrive.
    """
    kept = Fraction(repr(smoothing))
    return {
        group: target if group not in last else kept * last[group] + (1 - kept) * target
        for group, target in wanted.items()
    }


def rounded(value: Fraction) -> int:
    """To the nearest integer, half up."""
    return math.floor(value + _HALF)


def _full_spread(values: Sequence[Fraction]) -> Sequence[Fraction]:
    least, most = min(values), max(values)
    if least == most:
        return [Fraction(1)] * len(values)
    return [(value - least) / (most - least) for value in values]


def _scaled_by_sum(values: Sequence[Fraction]) -> Sequence[Fraction]:
    total = sum(values)
    return [value / total for value in values]
