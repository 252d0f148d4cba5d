"""The standard quantities, and the words for how a job ended.

Reports and plugins know the names, units and meanings of the quantities.

Cores, memory and GPUs have two forms. A *held* amount counts for the whole runtime. A *total* over the run says the
same as a product with seconds, and is the only exact form of half a core, of a resized pod, or of a quarter of a GPU,
since amounts are whole numbers. A record has one form of each: :class:`Record` refuses both. A query for the held
amount (``Cores``) gets both forms: ``amount_runtime`` in a sum is amount times runtime, plus the totals.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Final

import msgspec


class Form(Enum):
    """The relation of an amount to time."""

    HELD = "held"
    TOTAL = "total"
    PEAK = "peak"


class Quantity(msgspec.Struct, frozen=True):
    """A standard quantity.

    Args:
        name: the component's name.
        unit: of the amount; empty for a number of things.
        form: held for the runtime, a total over the run, or its peak.
        meaning: the things that are counted.
        total: the name of the total that replaces a held amount.
        absent_is_zero: a record without it has none, as a job without a GPU. Otherwise its amount is unknown.
    """

    name: str
    unit: str
    form: Form
    meaning: str
    total: str | None = None
    absent_is_zero: bool = False


_ALL: Final = (
    Quantity("Cores", "", Form.HELD, "cores (CPUs) reserved for the job", "CoreSeconds"),
    Quantity("Memory", "MiB", Form.HELD, "memory reserved for the job", "MemorySeconds"),
    Quantity("GPU", "", Form.HELD, "GPUs reserved for the job", "GPUSeconds", absent_is_zero=True),
    Quantity("CoreSeconds", "core s", Form.TOTAL, "cores times the seconds for which each was reserved"),
    Quantity("MemorySeconds", "MiB s", Form.TOTAL, "memory times the seconds for which it was reserved"),
    Quantity("GPUSeconds", "GPU s", Form.TOTAL, "GPUs times the seconds for which each was reserved"),
    Quantity("TotalCPU", "s", Form.TOTAL, "user and system CPU time on all cores"),
    Quantity("Energy", "J", Form.TOTAL, "energy measured on the job's nodes"),
    Quantity("WaitTime", "s", Form.TOTAL, "time from when the job could start to its start"),
    Quantity("MaxRSS", "B", Form.PEAK, "the largest resident memory"),
)

QUANTITIES: Final[Mapping[str, Quantity]] = {each.name: each for each in _ALL}
"""The standard quantities by name."""

TOTALS: Final[Mapping[str, str]] = {each.name: each.total for each in _ALL if each.total is not None}
"""The names of totals, by the name of the held amount that they replace."""

HELD: Final[Mapping[str, str]] = {total: name for name, total in TOTALS.items()}
"""The names of held amounts, by the name of their total."""

TICKS: Final = 1_000_000
"""Ticks per second of a sum with a window."""


def total_of(component: str) -> str | None:
    """Return the total that counts in sums over a component: that of a held amount, or a total of these itself."""
    return component if component in HELD else TOTALS.get(component)


def has_both_forms(names: Iterable[str]) -> str | None:
    """Return the held amount that occurs in both forms, or None."""
    known = set(names)
    return next((name for name, total in TOTALS.items() if name in known and total in known), None)


def share_of(total: int, start: int, stop: int, first: int, end: int) -> int:
    """Return the share of a total in a window, in ticks; all times are in microseconds.

    It is proportional to the overlap. The sum of the shares in consecutive windows is exactly the total.

    Args:
        total: the amount, in units times seconds.
        start: the start of the run.
        stop: the end of the run, which overlaps the window.
        first: the start of the window.
        end: the end of the window.
    """
    if start >= first and stop <= end:
        return total * TICKS
    ticks, whole = total * TICKS, stop - start
    return ticks * (min(stop, end) - start) // whole - ticks * max(first - start, 0) // whole


OUTCOME: Final = "outcome"
"""The label that says how a job ended; see :class:`JobOutcome`. Open records do not have it."""


class JobOutcome(StrEnum):
    """The end of a job, in few words that are the same for all batch systems, so that sums by them are small.

    A collector leaves the label out if the batch system does not say how the job ended.
    """

    COMPLETED = "completed"
    """The job ended by itself, with exit code 0."""
    FAILED = "failed"
    """The job ended by itself, with another exit code or by a signal, or it could not be run."""
    CANCELLED = "cancelled"
    """A person, a policy or another program removed the job before it ended."""
    TIMEOUT = "timeout"
    """The job reached its limit of time, or its deadline."""
    OUT_OF_MEMORY = "out_of_memory"
    """The job used more memory than it was allowed to."""
    NODE_FAIL = "node_fail"
    """The node failed, or was lost."""
    PREEMPTED = "preempted"
    """The job had to make room for another one, or its node was needed for something else."""
    REQUEUED = "requeued"
    """This run was given up, and the job went back to the queue. Its other runs have records of their own."""
