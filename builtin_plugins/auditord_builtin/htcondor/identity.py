"""What tells an ad of the history from every other: the schedd, the job and the time of its submission are in it."""

import hashlib
from typing import Final

from auditord_hookspecs.mapping import Row

ID_COLUMNS: Final = (
    *("GlobalJobId", "ClusterId", "ProcId", "JobStatus", "JobUniverse", "NumJobStarts", "NumShadowStarts"),
    "EnteredCurrentStatus",
)
"""What every conversion needs besides the configured columns."""

_RUN: Final = " run "


def identity(row: Row, *, epochs: bool) -> str:
    """The ad's name; a job id that starts again after a new installation has another submission time in it.

    With ``epochs`` each run of a job has an ad of its own. An ad without an id is named by what is in it.
    """
    job = row.get("GlobalJobId")
    if job is None:
        return f"unnamed {hashlib.sha256(repr(sorted(row.items())).encode()).hexdigest()[:24]}"
    return f"{job}{_RUN}{row.get('NumShadowStarts', '')}" if epochs else job


def since(name: str, *, epochs: bool) -> str:
    """The expression that is true for the ad of this name alone."""
    job, _, run = name.rpartition(_RUN) if epochs else (name, "", "")
    escaped = job.replace("\\", "\\\\").replace('"', '\\"')
    expression = f'GlobalJobId =?= "{escaped}"'
    return f"{expression} && NumShadowStarts =?= {run or 'undefined'}" if epochs else expression


def can_stop(name: str) -> bool:
    """Whether :func:`since` can be said of this ad."""
    return not name.startswith("unnamed ") and name.isprintable()
