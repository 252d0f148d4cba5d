"""The output of ``scontrol show job ID --details --oneliner``, read so that no user can forge a field.

Its output has no framing: names, comments, commands and folders may hold blanks, newlines and ``=``, so that a job's
name may contain a whole second job. But Slurm prints the fields that accounting needs in a fixed order, each exactly
once, in one stretch between the name and the other free texts. So a field that stands twice anywhere, or out of order,
was forged, and nothing of that output is believed: sacct, whose separator users cannot know, is asked then.

The order was seen with Slurm 22.05, where ``AllocTRES`` is called ``TRES``. A version with another order loses nothing:
sacct is asked.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from auditord_builtin.slurm.epilog.rows import controller_row
from auditord_hookspecs.mapping import Row

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
"""Fields of scontrol by the columns of sacct, as far as they hold the same text."""


def parse_job(printed: str) -> Row | None:
    """The job as a row of sacct (less its cluster, with ``Restarts``); None unless it is surely one job's."""
    head = _HEAD.match(printed)
    fields = _fields(printed)
    if head is None or fields is None or not printed.endswith("\n"):
        return None
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
    return controller_row(head["raw"], _shown_id(head), columns)


def _fields(printed: str) -> Mapping[str, str] | None:
    found = [*_KEY.finditer(printed)]
    names = [match[1] for match in found]
    if len(set(names)) != len(names) or not _MANDATORY.issubset(names) or names != sorted(names, key=_ORDER.index):
        return None
    return {one[1]: _value(one[1], printed[one.end() : following.start()]) for one, following in pairwise(found)}


def _value(name: str, text: str) -> str:
    """Up to the next blank, behind which other fields follow; only the names of owners may hold some."""
    return text.strip() if name in {"UserId", "GroupId"} else text.split(maxsplit=1)[0] if text[:1].strip() else ""


def _shown_id(head: "re.Match[str]") -> str:
    if head["het"]:
        return f"{head['het']}+{head['offset']}"
    return f"{head['array']}_{head['task']}" if head["array"] else head["raw"]
