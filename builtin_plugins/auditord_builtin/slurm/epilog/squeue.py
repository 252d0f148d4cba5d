"""What ``squeue --Format`` prints of one job: only fields that no user can write free text into, so nothing is forged.

Seen with Slurm 22.05. Each field is padded to its width and followed by ``|``; a width must hold the longest value, or
squeue would cut it off.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from auditord_builtin.slurm.epilog.scontrol import controller_row

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
_NEVER: Final = frozenset({"", "0", "Unknown", "None"})
_NOTHING: Final = frozenset({"", "N/A", "(null)"})


def format_option() -> str:
    """The option that asks for the fields."""
    return f"--Format={','.join(f'{name}:{width}|' for name, width in _WIDTHS.items())}"


def parse_squeue(printed: str, raw_id: str) -> Mapping[str, str] | None:
    """The job with this raw id as a row of sacct (less its cluster, with ``Restarts``); None if it is not there."""
    rows = (_fields(line) for line in printed.splitlines())
    job = next((row for row in rows if row.get("JobID") == raw_id), None)
    if job is None or job["ResizeTime"] not in _NEVER:
        return None  # the row before a resizing is known to the database alone
    return controller_row(
        ids=_ids(job),
        owners=(job["UserName"], job["UserID"], job["GroupName"], job["GroupID"]),
        account=job["Account"],
        qos=job["QOS"],
        state=job["State"],
        restarts=job["RestartCnt"],
        elapsed=job["TimeUsed"],
        times=(job["SubmitTime"], job["StartTime"], job["EndTime"]),
        partition=job["Partition"],
        nodes=(job["NodeList"], job["NumNodes"]),
        cpus=job["NumCPUs"],
        resources=job["tres-alloc"],
    )


def _fields(line: str) -> Mapping[str, str]:
    values: Sequence[str] = [value.strip() for value in line.split("|")]
    if len(values) != len(_WIDTHS) + 1:
        return {}
    return {name: "" if value in _NOTHING else value for name, value in zip(_WIDTHS, values, strict=False)}


def _ids(job: Mapping[str, str]) -> tuple[str, str]:
    raw = job["JobID"]
    if job["HetJobID"]:
        return raw, f"{job['HetJobID']}+{job['HetJobOffset']}"
    return raw, f"{job['ArrayJobID']}_{job['ArrayTaskID']}" if job["ArrayTaskID"] else raw
