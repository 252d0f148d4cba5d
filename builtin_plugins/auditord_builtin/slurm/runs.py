"""Group the rows of jobs into runs, and determine each run's state, end and period.

The states are those in ``man sacct``, *Job State Codes*, as far as they matter for accounting.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from auditord_hookspecs import InvalidRecord, Quarantined, Window
from auditord_hookspecs.mapping import Row, is_missing, parse_time
from auditord_hookspecs.outcomes import stray

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
"""Long names of the states in which a run is over, by short name."""

OVER: Final = frozenset(ENDED.values())
"""Long names of the states in which a run is over."""

RUNNING: Final = {"R": "RUNNING", "S": "SUSPENDED"}
"""States in which a run holds its resources. A suspended job may get them back at any time."""

REQUEUED: Final = "REQUEUED"
RESIZING: Final = "RESIZING"
CONTINUED: Final = frozenset({REQUEUED, RESIZING})
"""States after which the same job continues in another row, with another start and the same id."""

ELSEWHERE: Final = "REVOKED"
"""The state of a job that ran on another cluster of the federation, which accounts for it."""


OUTCOMES: Final[Mapping[str, str]] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "out_of_memory",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "PREEMPTED": "preempted",
    REQUEUED: "requeued",
}
"""The outcome of a run (:class:`auditord_hookspecs.vocabulary.JobOutcome`), by state. A resized job has not ended."""


def parse_state(text: str) -> str:
    """Return the name of a state in sacct's output: ``CANCELLED by 1000`` is ``CANCELLED``."""
    return text.split(" ", 1)[0].rstrip("+")


def full_name(text: str) -> str:
    """Return the long name of a state that was configured by its long or short name, in any case.

    Raises:
        ValueError: the state does not exist, or jobs in it are not over.
    """
    name = ENDED.get(text.upper(), text.upper())
    if name not in OVER:
        raise ValueError(f"{text!r} is not a state in which a job is over; allowed are {', '.join(ENDED.values())}")
    return name


class Table(msgspec.Struct, frozen=True):
    """Rows, each a mapping of columns to texts, and unreadable lines."""

    rows: Sequence[Row]
    unreadable: Sequence[str]


class Run(msgspec.Struct, frozen=True):
    """One run of a job: the row of its allocation and those of its steps."""

    allocation: Row
    steps: Sequence[Row]

    @property
    def state(self) -> str:
        """The state's long name."""
        return parse_state(self.allocation["State"])

    @property
    def key(self) -> str:
        """A unique key of the run, which differs from those of the job's other runs and changes when the run ends."""
        row = self.allocation
        return f"{row['Cluster']}/{row[FIRST_COLUMN]}/{row[LAST_COLUMN]}@{row['Start']}-{row['End']}/{row['State']}"

    @property
    def source_id(self) -> str:
        """The cluster, job id and start of the run."""
        return source_id(self.allocation)

    @property
    def has_no_end(self) -> bool:
        """True if sacct prints no end. An unreadable end does not count as missing."""
        return (end := self.allocation["End"]) == "0" or is_missing(end)

    @property
    def is_over(self) -> bool:
        """True if the run has ended."""
        return not self.has_no_end or self.state in OVER

    @property
    def end(self) -> datetime | None:
        """The end; None if the run has not ended, or if sacct prints no end.

        Raises:
            InvalidRecord: the end cannot be read.
        """
        return parse_time(self.allocation["End"])


def job_of_step(job_id: str) -> str | None:
    """Return the id of a step's job, or None for a job: ``7_4.batch`` is a step of ``7_4``.

    The pending tasks of an array are a job, even if sacct truncates their list, as in ``7_[1,3,5...]``.
    """
    job, dot, _ = job_id.partition(".")
    return job if dot and "[" not in job else None


def source_id(row: Row) -> str:
    """Return the name of a run or step that messages and the quarantine use.

    The rows of a resized job have the same start, but each has the time of its resizing as its submission.
    """
    began = max(row["Start"], row["Submit"])  # texts of seconds
    return f"{row['Cluster']}/{row[FIRST_COLUMN]}@{began}"


def group_runs(rows: Sequence[Row]) -> Iterator[Run | Row]:
    """Yield runs with their steps. A step without a run is yielded as a row.

    A requeued job has several runs with one id. sacct prints the steps of a run right after its allocation, so a step
    belongs to the last allocation before it if the ids match (``7_4.batch``, ``13+0.0``, ``9.0+1``, ``5.interactive``).
    """
    allocation: Row | None = None
    steps: list[Row] = []
    for row in rows:
        job = job_of_step(row[FIRST_COLUMN])
        if job is None:
            if allocation is not None:
                yield Run(allocation, steps)
            allocation, steps = row, []
        elif allocation is not None and (job, row["Cluster"]) == (allocation[FIRST_COLUMN], allocation["Cluster"]):
            steps.append(row)
        else:
            yield row
    if allocation is not None:
        yield Run(allocation, steps)


def whole_runs(rows: Sequence[Row]) -> int:
    """Return the number of rows before the last allocation, whose remaining steps may still follow."""
    return next((index for index in range(len(rows) - 1, -1, -1) if job_of_step(rows[index][FIRST_COLUMN]) is None), 0)


class Found(msgspec.Struct, frozen=True):
    """The runs in a table of sacct.

    Args:
        runs: the runs to account for, by key.
        unfinished: the number of runs that are not over.
        quarantined: rows and lines that belong to no run, by key.
        endless: runs that are over according to their state, but have no end (yet), by key.
    """

    runs: Mapping[str, Run]
    unfinished: int = 0
    quarantined: Mapping[str, Quarantined] = msgspec.field(default_factory=dict[str, Quarantined])
    endless: Mapping[str, Run] = msgspec.field(default_factory=dict[str, Run])


def find_runs(table: Table, window: Window | None) -> Found:
    """Select the runs that ended within the window or, without a window, those that are running.

    sacct includes both ends of a window and, if no states are given, also prints jobs that ended later. Those jobs
    belong to other periods and are left out.
    """
    runs: dict[str, Run] = {}
    endless: dict[str, Run] = {}
    lines = [stray({"line": line}, "sacct printed a line that belongs to no job") for line in table.unreadable]
    broken = {each.source_id: each for each in lines}
    unfinished = 0
    for item in group_runs(table.rows):
        if not isinstance(item, Run):
            reason = "sacct printed a step without the row of its job"
            broken[stray(item, reason).source_id] = Quarantined(source_id(item), {"step": dict(item)}, reason)
        elif window is None:
            if not item.is_over:
                runs[item.key] = item
        else:
            try:
                end = item.end
            except InvalidRecord:  # the conversion reports it
                runs[item.key] = item
                continue
            if end is not None:
                if window.start <= end < window.stop:
                    runs[item.key] = item
            elif item.state in OVER:
                endless[item.key] = item
            else:
                unfinished += 1
    return Found(runs, unfinished, broken, endless)
