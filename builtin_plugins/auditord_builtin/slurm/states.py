"""The states of Slurm's jobs (``man sacct``, *Job State Codes*), as far as accounting cares for them."""

from typing import Final

ENDED: Final = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PR": "PREEMPTED",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "TO": "TIMEOUT",
}
"""States in which a run is over, by their short names."""

RUNNING: Final = {"R": "RUNNING", "S": "SUSPENDED"}
"""States in which a run holds its resources (a suspended job may get them back at any time)."""

REQUEUED: Final = "REQUEUED"

RESIZING: Final = "RESIZING"

CONTINUED: Final = frozenset({REQUEUED, RESIZING})
"""The run is over and the same job goes on with another row, another start and the same id."""

ELSEWHERE: Final = "REVOKED"
"""The job ran on another cluster of the federation, which accounts for it."""


def parse_state(text: str) -> str:
    """The state's name from what sacct prints: ``CANCELLED by 1000`` is ``CANCELLED``."""
    return text.split(" ", 1)[0].rstrip("+")


def full_name(text: str) -> str:
    """The long, upper-case name of a state that a configuration names long or short, in any case.

    Raises:
        ValueError: there is no such state, or it is none in which a job is over.
    """
    name = ENDED.get(text.upper(), text.upper())
    if name not in ENDED.values():
        raise ValueError(f"{text!r} is not a state in which a job is over; allowed are {', '.join(ENDED.values())}")
    return name
