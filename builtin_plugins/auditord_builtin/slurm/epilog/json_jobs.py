"""What ``scontrol show job ID --json`` prints (Slurm 23.02 and newer): names and comments are strings and nothing else.

Numbers are plain in older versions of the format (v0.0.38, seen with Slurm 22.05's ``squeue --json``), and objects
``{"set": …, "infinite": …, "number": …}`` in newer ones, where the state is a list of flags.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from auditord_builtin.slurm.epilog.scontrol import controller_row

Json: TypeAlias = Mapping[str, Any]  # Any: JSON of Slurm's


def parse_json(printed: str, raw_id: str) -> Mapping[str, str] | None:
    """The job with this raw id as a row of sacct (less its cluster, with ``Restarts``); None if it is not there."""
    try:
        jobs = json.loads(printed)["jobs"]
        job = next((each for each in jobs if str(each["job_id"]) == raw_id), None)
        return None if job is None else _row(job)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _row(job: Mapping[str, Any]) -> Mapping[str, str] | None:  # Any: JSON of Slurm's
    times = tuple(_number(job[name]) for name in ("submit_time", "start_time", "end_time"))
    submit, start, end = times
    if _number(job.get("resize_time")):
        return None  # the row before the resizing is known to the database alone
    return controller_row(
        ids=_ids(job),
        owners=(job["user_name"], str(job["user_id"]), job["group_name"], str(job["group_id"])),
        account=job["account"],
        qos=job["qos"],
        state=_state(job["job_state"]),
        restarts=str(_number(job["restart_cnt"])),
        elapsed=_elapsed(job, start, end),
        times=(str(submit), str(start), str(end)),
        partition=job["partition"],
        nodes=(job["nodes"], str(_number(job["node_count"]))),
        cpus=str(_number(job["cpus"])),
        resources=job["tres_alloc_str"],
    )


def _ids(job: Mapping[str, Any]) -> tuple[str, str]:  # Any: JSON of Slurm's
    raw, het = str(job["job_id"]), _number(job.get("het_job_id"))
    if het:
        return raw, f"{het}+{_number(job['het_job_offset'])}"
    array, task = _number(job.get("array_job_id")), job.get("array_task_id")
    return raw, f"{array}_{_number(task)}" if array and _is_set(task) else raw


def _elapsed(job: Mapping[str, Any], start: int, end: int) -> str:  # Any: JSON of Slurm's
    """How long it ran: what Slurm counts as run time after a suspension begins anew at its end."""
    resumed = _number(job.get("suspend_time"))
    seconds = end - resumed + _number(job.get("pre_sus_time")) if resumed else end - start
    return f"00:00:{max(seconds, 0)}"


def _is_set(value: Any) -> bool:  # Any: a number of any of Slurm's versions, or none
    return bool(cast("Json", value)["set"]) if isinstance(value, Mapping) else value is not None


def _number(value: Any) -> int:  # Any: the same
    if isinstance(value, Mapping):
        return int(cast("Json", value)["number"]) if _is_set(value) else 0
    return int(value or 0)


def _state(value: Any) -> str:  # Any: a text, or a list of flags
    flags = [value] if isinstance(value, str) else list(value)
    return "COMPLETING" if "COMPLETING" in flags else str(flags[0])
