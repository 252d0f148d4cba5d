"""A real Slurm's accounting of the tests' jobs, read independently of the collector.

Other options of sacct, its usual separator, its rounded units, local ISO times with UTC as the zone, one job at a time.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeAlias

from tests.slurm_jobs import SlurmJobs, run_slurm

Row: TypeAlias = Mapping[str, str]

Plain: TypeAlias = dict[str, Any]  # Any: the members of a record, times as datetime, components as name: amount
"""A record in a form in which records from anywhere can be compared."""

COLUMNS: Final = ("State", "Start", "End", "NCPUS", "User", "Group", "Partition", "NodeList", "AllocTRES", "TotalCPU")
META: Final = (
    {"name": "comment", "key": "Comment", "key_type": "String"},
    {"name": "labels", "key": "Comment", "key_type": "Json"},
    {"name": "name", "key": "JobName", "key_type": "String"},
    {"name": "partition", "key": "Partition", "key_type": "String"},
    {"name": "state", "key": "State", "key_type": "String"},
)
"""Rules of a collector whose records :func:`expected_records` predicts."""

_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def sacct(job_id: str, *columns: str, steps: bool = False) -> list[Row]:
    """The columns of sacct without free text, a row for each run (and step) of a job."""
    options = [] if steps else ["-X"]
    lines = run_slurm("sacct", "-nDP", *options, "-j", job_id, "-o", ",".join(("JobID", *columns))).splitlines()
    return [dict(zip(("JobID", *columns), line.split("|"), strict=True)) for line in lines]


@cache  # the jobs are over, and one call of sacct for each takes seconds
def runs_of(jobs: SlurmJobs) -> Sequence[tuple[str, Row]]:
    """Every run of every job, with the kind of the job."""
    return [
        (kind, {**row, "Start": _start(job_id, row)})
        for kind, job_id in jobs.ids.items()
        for row in sacct(job_id, *COLUMNS)
    ]


def _start(job_id: str, run: Row) -> str:
    """The run's start; that of its first step, if the database never heard of the run's own."""
    if has_start(run):
        return run["Start"]
    steps = [row for row in sacct(job_id, "Start", steps=True) if row["JobID"].startswith(f"{run['JobID']}.")]
    return min((row["Start"] for row in steps if has_start(row) and row["Start"] <= run["End"]), default=run["Start"])


def has_started(row: Row) -> bool:
    """Tell a run that got a node; sacct names a start of some jobs that were cancelled while they waited."""
    return row["NodeList"] != "None assigned" and has_start(row)


def never_started(jobs: SlurmJobs) -> list[str]:
    """The ids of jobs that make no record."""
    return [row["JobID"] for _, row in runs_of(jobs) if not has_started(row)]


OUTCOMES: Final = {
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "REQUEUED": "requeued",
    "TIMEOUT": "timeout",
}


@cache
def expected_records(jobs: SlurmJobs, prefix: str = "slurm", site: str = "NOT_CONFIGURED") -> dict[str, Plain]:
    """The record of every run that started, by the id that it must have."""
    started = [(kind, row) for kind, row in runs_of(jobs) if has_started(row)]
    records = [_record(jobs, kind, row, prefix, site) for kind, row in started]
    return {record["record_id"]: record for record in records}


def _record(jobs: SlurmJobs, kind: str, row: Row, prefix: str, site: str) -> Plain:
    start, stop = instant(row["Start"]), instant(row["End"])
    again = f"-{start.timestamp():.0f}" if row["State"] == "REQUEUED" else ""
    return {
        "record_id": f"{prefix}-{row['JobID']}{again}",
        "start_time": start,
        "stop_time": stop,
        "runtime": int((stop - start).total_seconds()),
        "components": _components(jobs.ids[kind], row),
        "meta": {
            "site_id": [site],
            "user_id": [row["User"]],
            "group_id": [row["Group"]],
            "partition": [row["Partition"]],
            "state": [row["State"]],
            "outcome": [OUTCOMES[row["State"].split()[0]]],
            **_free_texts(jobs.ids[kind]),
        },
    }


def _components(job_id: str, row: Row) -> dict[str, int]:
    allocated = dict(part.split("=") for part in row["AllocTRES"].split(","))
    peak = max((in_bytes(step["MaxRSS"]) for step in _steps(job_id, row) if step["MaxRSS"]), default=None)
    return {
        "Cores": int(row["NCPUS"]),
        "Memory": in_bytes(allocated["mem"]) // 2**20,
        "TotalCPU": in_seconds(row["TotalCPU"]),
        **({} if peak is None else {"MaxRSS": peak}),
        **({"GPU": int(allocated["gres/gpu"])} if "gres/gpu" in allocated else {}),
    }


def _steps(job_id: str, run: Row) -> Sequence[Row]:
    """The steps that belong to a run by their id, and began in it and not in a later run of the job."""
    found = sacct(job_id, "Start", "MaxRSS", steps=True)
    starts = [instant(row["Start"]) for row in found if row["JobID"] == run["JobID"] and has_start(row)]
    later = [start for start in starts if start > instant(run["Start"])]
    return [
        row
        for row in found
        if row["JobID"].startswith(f"{run['JobID']}.")
        and instant(run["Start"]) <= instant(row["Start"]) < min(later, default=datetime.max.replace(tzinfo=UTC))
    ]


def has_start(row: Row) -> bool:
    """Tell a row that names a start."""
    return row["Start"] not in {"None", "Unknown"}


def _free_texts(job_id: str) -> Plain:
    """Name and comment, one call of sacct for each, so that nothing separates columns or rows.

    Of an array or a heterogeneous job this is a line for each part; they are all equal, and have no comment.
    """
    name = run_slurm("sacct", "-nXP", "-j", job_id, "-o", "JobName")
    comment = run_slurm("sacct", "-nXP", "-j", job_id, "-o", "Comment")
    if len(set(name.splitlines())) == 1:
        name, comment = name.splitlines()[0], comment.strip("\n")
    labels: Plain = json.loads(comment) if comment.startswith("{") else {}
    return {
        "name": [name],
        **({"comment": [comment]} if comment else {}),
        **{key: [value] for key, value in labels.items()},
    }


def instant(text: str) -> datetime:
    """A time that sacct printed in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def in_bytes(text: str) -> int:
    """``90264K``, ``2G``, ``1.50M`` or nothing."""
    number, unit = re.fullmatch(r"([0-9.]*)([KMG]?)", text).groups()  # type: ignore[union-attr] # else the test fails
    return int(float(number or 0) * _UNITS[unit])


def in_seconds(text: str) -> int:
    """Whole seconds of ``[D-]H:MM:SS`` or ``MM:SS.fff``."""
    days, _, clock = text.rpartition("-")
    seconds = int(days or 0) * 86_400.0
    for power, part in enumerate(reversed(clock.split(":"))):
        seconds += float(part) * 60**power
    return int(seconds)


def plain(served: Mapping[str, Any]) -> Plain:  # Any: JSON of a record
    """A record of the wire."""
    return {
        **served,
        "start_time": datetime.fromisoformat(served["start_time"]),
        "stop_time": served["stop_time"] and datetime.fromisoformat(served["stop_time"]),
        "components": {component["name"]: component["amount"] for component in served["components"]},
    }


def own(records: Iterable[Mapping[str, Any]], jobs: SlurmJobs) -> dict[str, Plain]:  # Any: JSON of a record
    """The records of the tests' jobs by id, each once; others may use the same Slurm."""
    found = [plain(record) for record in records if base_id(record["record_id"]) in jobs.ids.values()]
    by_id = {record["record_id"]: record for record in found}
    assert len(by_id) == len(found), "no id twice"
    return by_id


def base_id(record_id: str) -> str:
    """The job id that the parts of an array or a heterogeneous job share: ``12`` of ``slurm-12_3`` and ``12+0``."""
    return re.split(r"[_+\[-]", record_id.split("-", 1)[1])[0]
