"""The change of cells of the roll-ups, as a transaction appends it: numbers, and the labels that tell cells apart."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

MICROS_PER_DAY: Final = 86_400_000_000

RECORD: Final = ""
"""Stands for a component that every record has once; no component has an empty name."""

CPU_TIME: Final = "TotalCPU"
"""The component by whose presence cells are told apart: an efficiency is that of the records that have it."""

CORES: Final = "Cores"

CORES_KEY: Final = ""
"""Stands for the number of cores among the keys that are rolled up; no meta key is empty."""

LOW_BITS: Final = 40
"""Bits of a sum of products that are kept apart, so that both parts of it fit 64 bits in every database."""

LOW: Final = (1 << LOW_BITS) - 1
"""The other bits of such a sum."""

AmountChange: TypeAlias = tuple[str, int, int, int, int]
"""The change of the sums over components of one name.

That is the name or :data:`RECORD`; how many more records have it; how much more of it; and how much more of it times
seconds of runtime, shifted by :data:`LOW_BITS`, and the rest of that.
"""

Ends: TypeAlias = tuple[int, int]
"""The first and the last stop time."""


class CellChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A change of one cell, as the statements for sums and for folding read it; a cell may change several times.

    Args:
        labels: JSON of meta, as far as it tells cells apart; the number of cores is under :data:`CORES_KEY`.
        score_set: the number of what components score, 0 for nothing.
        first_stop: the earliest stop time of added records, in microseconds since 1970.
        last_stop: the latest one.
        gone_first: the same of removed records; None where that of those which stay, or are added, is the same.
        gone_last: the same.
        left_out: how many more records are in no sum.
        amounts: the sums.
        is_of_user: whether what is gone concerns the cells of one user alone: the same transaction adds records to the
            cells of all users together whose stop times are at both ends of those that are gone.
        has_cpu_time: whether the records have a CPU time.
        gone_first_of_key: the same as ``gone_first`` for the cells of each key.
        gone_last_of_key: the same.
    """

    labels: str
    score_set: int
    first_stop: int | None
    last_stop: int | None
    gone_first: int | None
    gone_last: int | None
    left_out: int
    amounts: Sequence[AmountChange]
    is_of_user: bool
    has_cpu_time: bool
    gone_first_of_key: int | None = None
    gone_last_of_key: int | None = None


class DayChange(msgspec.Struct, frozen=True, gc=False):
    """The changes by a transaction of the cells of one day since 1970."""

    day: int
    changes: list[CellChange]


class NotedChange(msgspec.Struct, frozen=True, gc=False):
    """The same as a row: how many changes they are, these and the keys that they tell apart as JSON."""

    day: int
    size: int
    changes: str
    keys: str


def split(number: int) -> tuple[int, int]:
    """Both parts of a sum of products."""
    return number >> LOW_BITS, number & LOW


def widened(ends: Ends | None, first: int, last: int) -> Ends:
    """The ends with two more stop times."""
    if ends is None:
        return first, last
    return min(first, ends[0]), max(last, ends[1])
