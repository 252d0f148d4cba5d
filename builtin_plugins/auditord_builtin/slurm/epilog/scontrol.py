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
    if user is None or group is None or not _NOBODY.isdisjoint({user["name"], group["name"]}):
        return None
    try:
        return {**_ids(head), **_owners(user, group), **_columns(fields)}
    except InvalidRecord:
        return None


def _fields(printed: str) -> Mapping[str, str] | None:
    found = [*_KEY.finditer(printed)]
    names = [match[1] for match in found]
    if len(set(names)) != len(names) or not _MANDATORY.issubset(names) or names != sorted(names, key=_ORDER.index):
        return None
    return {one[1]: _value(one[1], printed[one.end() : following.start()]) for one, following in pairwise(found)}


def _value(name: str, text: str) -> str:
    """Up to the next blank, behind which other fields follow; only the names of owners may hold some."""
    return text.strip() if name in {"UserId", "GroupId"} else text.split(maxsplit=1)[0] if text[:1].strip() else ""


def _ids(head: "re.Match[str]") -> Mapping[str, str]:
    raw = head["raw"]
    job_id = f"{head['array']}_{head['task']}" if head["array"] else raw
    return {"JobIDRaw": raw, "JobID": f"{head['het']}+{head['offset']}" if head["het"] else job_id}


def _owners(user: "re.Match[str]", group: "re.Match[str]") -> Mapping[str, str]:
    return {"User": user["name"], "UID": user["number"], "Group": group["name"], "GID": group["number"]}


def _columns(fields: Mapping[str, str]) -> Mapping[str, str]:
    return {
        "Account": _text(fields["Account"]),
        "QOS": _text(fields["QOS"]),
        "State": fields["JobState"],
        "Restarts": fields["Restarts"],
        "Elapsed": fields["RunTime"],
        "Submit": fields["SubmitTime"],
        "Start": fields["StartTime"],
        "End": fields["EndTime"],
        "Partition": fields["Partition"],
        "NodeList": _text(fields["NodeList"]),
        **dict.fromkeys(("NNodes", "AllocNodes"), fields["NumNodes"]),
        **dict.fromkeys(("NCPUS", "AllocCPUS"), fields["NumCPUs"]),
        "AllocTRES": _resources(fields.get("AllocTRES") or fields.get("TRES") or ""),
    }


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
