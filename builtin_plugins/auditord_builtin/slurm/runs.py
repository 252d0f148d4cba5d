"""From rows to runs of jobs: which rows belong together, in which state a run is, and when it ended.

The states are those of ``man sacct``, *Job State Codes*, as far as accounting cares for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import Row, is_missing, parse_instant

FIRST_COLUMN: Final = "JobID"
LAST_COLUMN: Final = "JobIDRaw"

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


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job: the row of its allocation and those of its steps."""

    allocation: Row
    steps: Sequence[Row]

    @property
    def state(self) -> str:
        """The state's long name."""
        return parse_state(self.allocation["State"])

    @property
    def key(self) -> str:
        """Text that tells this run from every other, also of the same job; when it is over, it has another one."""
        row = self.allocation
        return f"{row['Cluster']}/{row[FIRST_COLUMN]}/{row[LAST_COLUMN]}@{row['Start']}-{row['End']}/{row['State']}"

    @property
    def source_id(self) -> str:
        """Slurm's name of the run: cluster, job and start."""
        return source_id(self.allocation)

    @property
    def has_no_end(self) -> bool:
        """True if sacct names no end; an unreadable one is no missing one."""
        return is_missing(self.allocation["End"])

    @property
    def is_over(self) -> bool:
        """True if nothing more will happen to the run."""
        return not self.has_no_end or self.state in ENDED.values()


def source_id(row: Row) -> str:
    """The name of a run or step in messages and in the quarantine."""
    return f"{row['Cluster']}/{row[FIRST_COLUMN]}@{row['Start']}"


def ended_at(run: Run) -> datetime | None:
    """The end of a run; None while it goes on or waits, and where sacct does not say.

    Raises:
        InvalidRecord: the end is no time.
    """
    return None if run.has_no_end else parse_instant(run.allocation["End"])


def may_have_ended_between(run: Run, start: datetime, stop: datetime) -> bool:
    """True if a run ended from ``start`` on and before ``stop``; also if its end is missing or unreadable."""
    try:
        end = ended_at(run)
    except InvalidRecord:
        return True
    return end is None or start <= end < stop


def group_runs(rows: Sequence[Row]) -> Iterator[Run | Row]:
    """Put steps to their runs; a step that has none comes out alone.

    A requeued job has several runs with one id; sacct prints each run's steps right after its row, so a step belongs to
    the last allocation before it, if the id agrees. Everything with a dot is a step of the id before the dot
    (``7_4.batch``, ``13+0.0``, ``9.0+1``, ``5.interactive``).
    """
    allocation: Row | None = None
    steps: list[Row] = []
    for row in rows:
        job, is_step, _ = row[FIRST_COLUMN].partition(".")
        if not is_step:
            if allocation is not None:
                yield Run(allocation, tuple(steps))
            allocation, steps = row, []
        elif allocation is not None and (row.get("Cluster"), job) == (
            allocation.get("Cluster"),
            allocation[FIRST_COLUMN],
        ):
            steps.append(row)
        else:
            yield row
    if allocation is not None:
        yield Run(allocation, tuple(steps))


def whole_runs(rows: Sequence[Row]) -> int:
    """The number of rows that belong to runs of which nothing can follow: all before the last allocation."""
    return next((index for index in range(len(rows) - 1, -1, -1) if "." not in rows[index][FIRST_COLUMN]), 0)
