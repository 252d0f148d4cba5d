"""Parse slurmctld's descriptions of jobs into rows of sacct. Users cannot forge a field in the parsed formats."""

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import Row, is_missing, parse_size

Json: TypeAlias = Mapping[str, Any]  # Any: JSON of Slurm's

COLUMNS: Final = frozenset(
    {
        *("JobID", "JobIDRaw", "Cluster", "User", "UID", "Group", "GID", "Account", "QOS", "Elapsed", "Submit"),
        *("Start", "End", "Partition", "NodeList", "NNodes", "AllocNodes", "NCPUS", "AllocCPUS", "AllocTRES"),
    }
)
"""The columns of sacct that slurmctld knows equally well. State is missing, since sacct's text has more detail."""

_NOBODY: Final = frozenset({"", "(null)", "nobody"})
"""Texts for owners whose names slurmctld's host does not know. sacct may know them."""

_MEBIBYTE: Final = 1_024**2

_NUMBER: Final = 20
_NAME: Final = 300
_LIST: Final = 16_000
_WIDTHS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset"), _NUMBER),
    **dict.fromkeys(("UserName", "UserID", "GroupName", "GroupID", "Account", "QOS", "State", "Partition"), _NAME),
    **dict.fromkeys(
        ("RestartCnt", "TimeUsed", "SubmitTime", "StartTime", "EndTime", "ResizeTime", "NumNodes", "NumCPUs"), _NUMBER
    ),
    **dict.fromkeys(("NodeList", "tres-alloc"), _LIST),
}
_OF_SQUEUE: Final[Mapping[str, str]] = {
    "User": "UserName",
    "UID": "UserID",
    "Group": "GroupName",
    "GID": "GroupID",
    "Restarts": "RestartCnt",
    "Elapsed": "TimeUsed",
    "Submit": "SubmitTime",
    "Start": "StartTime",
    "End": "EndTime",
    "NNodes": "NumNodes",
    "NCPUS": "NumCPUs",
    "AllocTRES": "tres-alloc",
    **{name: name for name in ("Account", "QOS", "State", "Partition", "NodeList")},
}
"""Fields of squeue by the columns of sacct."""

_NEVER: Final = frozenset({"", "0", "Unknown", "None"})
_NOTHING: Final = frozenset({"", "N/A", "(null)"})


def controller_row(raw_id: str, job_id: str, columns: Row) -> Row | None:
    """Return slurmctld's job as a row of sacct; None if an owner's name is unknown or ``AllocTRES`` is unreadable.

    Args:
        raw_id: the job's ``JobIDRaw``.
        job_id: the job's ``JobID``.
        columns: the other columns of sacct that slurmctld knows, plus ``Restarts``. Cluster, AllocNodes and AllocCPUS
            are left out. ``AllocTRES`` is as slurmctld prints it.
    """
    if not _NOBODY.isdisjoint({columns["User"], columns["Group"]}):
        return None
    try:
        allocated, text = "", columns["AllocTRES"]
        if not is_missing(text):  # as ``sacct --noconvert`` prints them: sorted, with memory in MiB
            pairs = [part.partition("=") for part in text.split(",")]
            sizes = {value: parse_size(value) / _MEBIBYTE for name, _, value in pairs if name == "mem"}
            texts = (f"{sizes[value].normalize():f}M" if name == "mem" else value for name, _, value in pairs)
            allocated = ",".join(sorted(f"{pair[0]}={value}" for pair, value in zip(pairs, texts, strict=True)))
    except InvalidRecord:
        return None
    same = {"AllocNodes": columns["NNodes"], "AllocCPUS": columns["NCPUS"]}
    return {"JobIDRaw": raw_id, "JobID": job_id, **columns, **same, "AllocTRES": allocated}


SQUEUE_FORMAT: Final = f"--Format={','.join(f'{name}:{width}|' for name, width in _WIDTHS.items())}"
"""squeue's option that selects the fields."""


def parse_squeue(printed: str, raw_id: str) -> Row | None:
    """Return the job with this raw id as a row of sacct (without cluster, with ``Restarts``); None if it is absent."""
    job: Row | None = None
    for line in printed.splitlines():
        values = [value.strip() for value in line.split("|")]
        if len(values) == len(_WIDTHS) + 1 and values[0] == raw_id:  # JobID is the first field
            texts = ("" if value in _NOTHING else value for value in values)
            job = dict(zip(_WIDTHS, texts, strict=False))
            break
    if job is None or job["ResizeTime"] not in _NEVER:
        return None  # only the database knows the row before a resizing
    shown = f"{job['ArrayJobID']}_{job['ArrayTaskID']}" if job["ArrayTaskID"] else raw_id
    part = f"{job['HetJobID']}+{job['HetJobOffset']}" if job["HetJobID"] else shown
    return controller_row(raw_id, part, {column: job[name] for column, name in _OF_SQUEUE.items()})


def parse_json(printed: str, raw_id: str) -> Row | None:
    """Return the job with this raw id as a row of sacct (without cluster, with ``Restarts``); None if it is absent."""
    try:
        jobs = json.loads(printed)["jobs"]
        job = next((each for each in jobs if str(each["job_id"]) == raw_id), None)
        if job is None or _number(job.get("resize_time")):
            return None  # only the database knows the row before a resizing
        start, end = _number(job["start_time"]), _number(job["end_time"])
        resumed = _number(job.get("suspend_time"))  # Slurm's own run time restarts after a suspension
        seconds = end - resumed + _number(job.get("pre_sus_time")) if resumed else end - start
        names = {"User": "user_name", "Group": "group_name", "Account": "account", "QOS": "qos"}
        texts = {"Partition": "partition", "NodeList": "nodes", "AllocTRES": "tres_alloc_str"}
        numbers = {"Submit": "submit_time", "Restarts": "restart_cnt", "NNodes": "node_count", "NCPUS": "cpus"}
        flags: list[Any] = [job["job_state"]] if isinstance(job["job_state"], str) else list(job["job_state"])
        columns: dict[str, str] = {
            **{column: job[name] for column, name in {**names, **texts}.items()},
            **{column: str(_number(job[name])) for column, name in numbers.items()},
            "UID": str(job["user_id"]),
            "GID": str(job["group_id"]),
            "State": "COMPLETING" if "COMPLETING" in flags else str(flags[0]),
            "Start": str(start),
            "End": str(end),
            "Elapsed": f"00:00:{max(seconds, 0)}",
        }
        het, array, task = _number(job.get("het_job_id")), _number(job.get("array_job_id")), job.get("array_task_id")
        job_id = raw_id
        if het:
            job_id = f"{het}+{_number(job['het_job_offset'])}"
        elif array and _is_set(task):
            job_id = f"{array}_{_number(task)}"
        return controller_row(raw_id, job_id, columns)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_set(value: Any) -> bool:  # Any: a number of any of Slurm's versions, or none
    return bool(cast("Json", value)["set"]) if isinstance(value, Mapping) else value is not None


def _number(value: Any) -> int:  # Any: the same
    if isinstance(value, Mapping):
        return int(cast("Json", value)["number"]) if _is_set(value) else 0
    return int(value or 0)


_ALLOCATED: Final = ("TRES", "AllocTRES")
_ORDER: Final = (
    *("UserId", "GroupId", "MCS_label", "Account", "QOS", "JobState", "Restarts", "RunTime"),
    *("SubmitTime", "ResizeTime", "StartTime", "EndTime", "Partition", "NodeList", "NumNodes", "NumCPUs"),
    *("ReqB:S:C:T", *_ALLOCATED, "Socks/Node"),
)
_MANDATORY: Final = frozenset(_ORDER) - {*_ALLOCATED, "ResizeTime"}
_KEY = re.compile(rf"(?<!\S)({'|'.join(map(re.escape, _ORDER))})=")
_HEAD = re.compile(
    r"JobId=(?P<raw>\d+) "
    r"(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\d+) (?:ArrayTaskThrottle=\d+ )?)?"
    r"(?:HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+) )?"
    r"JobName="
)
_OWNER = re.compile(r"(?P<name>.*)\((?P<number>\d+)\)")
_OF_SCONTROL: Final[Mapping[str, str]] = {
    "Submit": "SubmitTime",
    "Start": "StartTime",
    "End": "EndTime",
    "State": "JobState",
    "Elapsed": "RunTime",
    "NNodes": "NumNodes",
    "NCPUS": "NumCPUs",
    "Restarts": "Restarts",
    "Partition": "Partition",
}
"""Fields of scontrol by the columns of sacct that have the same text."""


def parse_job(printed: str) -> Row | None:
    """Return the job as a row of sacct (without cluster, with ``Restarts``); None if the output does not suffice."""
    head = _HEAD.match(printed)
    found = [*_KEY.finditer(printed)]
    names = [match[1] for match in found]
    if len(set(names)) != len(names) or not _MANDATORY.issubset(names) or names != sorted(names, key=_ORDER.index):
        return None
    # Only the database knows the row before a resizing.
    if head is None or "ResizeTime" in names[:-1] or not printed.endswith("\n"):
        return None
    fields: dict[str, str] = {}
    for key, following in pairwise(found):
        text = printed[key.end() : following.start()]
        if key[1] in {"UserId", "GroupId"}:  # only owners' names can contain blanks
            fields[key[1]] = text.strip()
        else:  # other values end at the first blank, where other fields begin
            fields[key[1]] = text.split(maxsplit=1)[0] if text[:1].strip() else ""
    user, group = (_OWNER.fullmatch(fields[name]) for name in ("UserId", "GroupId"))
    if user is None or group is None:
        return None
    unset = {name: "" if fields[name] == "(null)" else fields[name] for name in ("Account", "QOS", "NodeList")}
    columns = {
        **{column: fields[name] for column, name in _OF_SCONTROL.items()},
        **unset,
        "User": user["name"],
        "UID": user["number"],
        "Group": group["name"],
        "GID": group["number"],
        "AllocTRES": fields.get("AllocTRES") or fields.get("TRES") or "",
    }
    job_id = head["raw"]
    if head["het"]:
        job_id = f"{head['het']}+{head['offset']}"
    elif head["array"]:
        job_id = f"{head['array']}_{head['task']}"
    return controller_row(head["raw"], job_id, columns)
