"""The names of jobs and of their ads: the schedd, the job and the time of its submission are in a ``GlobalJobId``.

A job may have several ads. With ``epochs`` each of its runs has one; and after a crash of the schedd a job whose ad was
written already may leave the queue a second time. So an ad is named by when it was written, too.
"""

import hashlib
from typing import Final

from auditord_builtin.htcondor.ads import JobAd

EXECUTED: Final = "JobCurrentStartExecutingDate"
WALL_CLOCK: Final = "RemoteWallClockTime"
FIRST_START: Final = "JobStartDate"

MEMORY: Final = "ResidentSetSize"
"""Missing or zero until a running job has been looked at for the first time."""

ID_COLUMNS: Final = (
    *("GlobalJobId", "ClusterId", "ProcId", "JobStatus", "JobUniverse", "NumJobStarts", "NumShadowStarts"),
    *("EnteredCurrentStatus", EXECUTED, WALL_CLOCK, FIRST_START),
)
"""The columns that every conversion needs besides the configured ones."""

_RUN: Final = " run "
_AT: Final = " at "


def job_name(ad: JobAd, *, epochs: bool) -> str:
    """The job, with ``epochs`` its run; a job number that begins again has another time of submission in it."""
    job = ad.row.get("GlobalJobId")
    if job is None:
        content = ad.text or repr(sorted(ad.row.items()))
        return f"unnamed {hashlib.sha256(content.encode()).hexdigest()[:24]}"
    return f"{job}{_RUN}{ad.row.get('NumShadowStarts', '')}" if epochs else job


def ad_name(ad: JobAd, *, epochs: bool) -> str:
    """The ad: the job and when it was written."""
    return f"{job_name(ad, epochs=epochs)}{_AT}{ad.row.get('EnteredCurrentStatus', '')}"


def without_time(name: str) -> str:
    """The job of an ad's name; checkpoints of before 0.2 hold names of jobs."""
    return name.rpartition(_AT)[0]


def since(name: str, *, epochs: bool) -> str:
    """The expression that is true for the ad of this name alone.

    The identity comes first: the rest is not evaluated then, of ads of others, who may have written anything there.
    """
    rest, at, moment = name.rpartition(_AT) if _AT in name else (name, "", "")
    job, _, run = rest.rpartition(_RUN) if epochs else (rest, "", "")
    escaped = job.replace("\\", "\\\\").replace('"', '\\"')
    conditions = [f'GlobalJobId =?= "{escaped}"']
    if epochs:
        conditions.append(f"NumShadowStarts =?= {run or 'undefined'}")
    if at:
        conditions.append(f"EnteredCurrentStatus =?= {moment or 'undefined'}")
    return " && ".join(conditions)


def can_stop(name: str) -> bool:
    """True if :func:`since` can be said of this ad."""
    moment = name.rpartition(_AT)[2] if _AT in name else ""
    return not name.startswith("unnamed ") and name.isprintable() and (not moment or moment.isdecimal())
