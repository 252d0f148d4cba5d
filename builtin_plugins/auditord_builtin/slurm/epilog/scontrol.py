"""What ``scontrol show job ID --details --oneliner`` prints, read so that no user can forge a field.

Its output has no framing: names, comments, commands and folders may hold blanks, newlines and ``=``, so that a job's
name may contain a whole second job. But Slurm prints the fields that accounting needs in a fixed order, each exactly
once, in one stretch between the name and the other free texts. So a field that stands twice anywhere, or out of order,
was forged by somebody, and nothing of that output is believed: sacct, whose separator nobody can know, is asked then.

The order was seen with Slurm 22.05, where ``AllocTRES`` is called ``TRES``. A version with another order loses nothing:
sacct is asked.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import is_missing, parse_size

_ALLOCATED: Final = ("TRES", "AllocTRES")
_ORDER: Final = (
    *("UserId", "GroupId", "MCS_label", "Account", "QOS", "JobState", "Restarts", "RunTime", "SubmitTime"),
    *("StartTime", "EndTime", "Partition", "NodeList", "NumNodes", "NumCPUs", "ReqB:S:C:T", *_ALLOCATED, "Socks/Node"),
)
_MANDATORY: Final = frozenset(_ORDER) - {*_ALLOCATED}
_KEY = re.compile(rf"(?<!\S)({'|'.join(map(re.escape, _ORDER))})=")
_HEAD = re.compile(
    r"JobId=(?P<raw>\d+) "
    r"(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\d+) (?:ArrayTaskThrottle=\d+ )?)?"
    r"(?:HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+) )?"
    r"JobName="
)
_OWNER = re.compile(r"(?P<name>.*)\((?P<number>\d+)\)")
_NOBODY: Final = frozenset({"", "(null)", "nobody"})
"""Owners whose names this host does not know; sacct may."""
_MEBIBYTE: Final = 1_024**2

COLUMNS: Final = frozenset(
    {
        *("JobID", "JobIDRaw", "Cluster", "User", "UID", "Group", "GID", "Account", "QOS", "Elapsed", "Submit"),
        *("Start", "End", "Partition", "NodeList", "NNodes", "AllocNodes", "NCPUS", "AllocCPUS", "AllocTRES"),
    }
)
"""The columns of sacct that scontrol knows just as well; what sacct prints for a state is more."""


def parse_job(printed: str) -> Mapping[str, str] | None:
    """The job as a row of sacct (less its cluster, with ``Restarts``); None unless it is surely one job's."""
    head = _HEAD.match(printed)
    fields = _fields(printed)
    if head is None or fields is None or not printed.endswith("\n"):
        return None
    user, group = (_OWNER.fullmatch(fields[name]) for name in ("UserId", "GroupId"))
    if user is None or group is None:
        return None
    return controller_row(
        ids=_ids(head),
        owners=(user["name"], user["number"], group["name"], group["number"]),
        account=_text(fields["Account"]),
        qos=_text(fields["QOS"]),
        state=fields["JobState"],
        restarts=fields["Restarts"],
        elapsed=fields["RunTime"],
        times=(fields["SubmitTime"], fields["StartTime"], fields["EndTime"]),
        partition=fields["Partition"],
        nodes=(_text(fields["NodeList"]), fields["NumNodes"]),
        cpus=fields["NumCPUs"],
        resources=fields.get("AllocTRES") or fields.get("TRES") or "",
    )


def controller_row(
    *,
    ids: tuple[str, str],
    owners: tuple[str, str, str, str],
    account: str,
    qos: str,
    state: str,
    restarts: str,
    elapsed: str,
    times: tuple[str, str, str],
    partition: str,
    nodes: tuple[str, str],
    cpus: str,
    resources: str,
) -> Mapping[str, str] | None:
    """A job as slurmctld describes it as a row of sacct; None if an owner has no name here, which sacct may know.

    Args:
        ids: raw and shown.
        owners: names and numbers of user and group.
        account: charged.
        qos: of the job.
        state: the long name.
        restarts: how often it was requeued.
        elapsed: without suspensions.
        times: submission, start, end.
        partition: of the job.
        nodes: their list and number.
        cpus: their number.
        resources: a list of TRES.
    """
    if not _NOBODY.isdisjoint({owners[0], owners[2]}):
        return None
    try:
        allocated = _resources(resources)
    except InvalidRecord:
        return None
    return {
        **dict(zip(("JobIDRaw", "JobID"), ids, strict=True)),
        **dict(zip(("User", "UID", "Group", "GID"), owners, strict=True)),
        **dict(zip(("Submit", "Start", "End"), times, strict=True)),
        "Account": account,
        "QOS": qos,
        "State": state,
        "Restarts": restarts,
        "Elapsed": elapsed,
        "Partition": partition,
        "NodeList": nodes[0],
        **dict.fromkeys(("NNodes", "AllocNodes"), nodes[1]),
        **dict.fromkeys(("NCPUS", "AllocCPUS"), cpus),
        "AllocTRES": allocated,
    }


def _fields(printed: str) -> Mapping[str, str] | None:
    found = [*_KEY.finditer(printed)]
    names = [match[1] for match in found]
    if len(set(names)) != len(names) or not _MANDATORY.issubset(names) or names != sorted(names, key=_ORDER.index):
        return None
    return {one[1]: _value(one[1], printed[one.end() : following.start()]) for one, following in pairwise(found)}


def _value(name: str, text: str) -> str:
    """Up to the next blank, behind which other fields follow; only the names of owners may hold some."""
    return text.strip() if name in {"UserId", "GroupId"} else text.split(maxsplit=1)[0] if text[:1].strip() else ""


def _ids(head: "re.Match[str]") -> tuple[str, str]:
    raw = head["raw"]
    job_id = f"{head['array']}_{head['task']}" if head["array"] else raw
    return raw, f"{head['het']}+{head['offset']}" if head["het"] else job_id


def _text(text: str) -> str:
    return "" if text == "(null)" else text


def _resources(text: str) -> str:
    """The resources as ``sacct --noconvert`` prints them: in order, memory in MiB.

    Raises:
        InvalidRecord: the memory is no size.
    """
    if is_missing(text):
        return ""
    pairs = (part.partition("=") for part in text.split(","))
    return ",".join(sorted(f"{name}={_mebibytes(value) if name == 'mem' else value}" for name, _, value in pairs))


def _mebibytes(text: str) -> str:
    size = parse_size(text) / _MEBIBYTE
    return f"{size.normalize():f}M"
