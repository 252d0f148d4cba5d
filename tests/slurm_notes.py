"""``auditord-epilog`` in a real Slurm's EpilogSlurmctld, from the end of the collection to the end of the session.

The array's first half is submitted at once, so that it runs while other tests do; the second half is held.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.handing_over import handed_over
from tests.slurm_jobs import FOLDER, missing_slurm, run_slurm, submit

HOOKS: Final = FOLDER / "epilogctld.d"
SCRIPT: Final = Path(sys.executable).with_name("auditord-epilog")
TASKS: Final = 1_000

FORGED: Final = (
    "x UserId=root(0) GroupId=root(0) MCS_label=N/A Account=root QOS=high JobState=COMPLETED Restarts=0 "
    "RunTime=00:00:01 SubmitTime=1 StartTime=1 EndTime=2 Partition=long NodeList=n01 NumNodes=1 NumCPUs=1 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=1M,node=1 Socks/Node=*\nJobId=1 JobName=y"
)


@dataclass(frozen=True, slots=True)
class NotedJobs:
    """A Slurm that notes its jobs.

    Args:
        folder: has ``array``, notes of the array below, and ``all``, notes of all other jobs on this Slurm.
        array: the id of an array of :data:`TASKS` tasks, of which the second half is held.
        forged: the id of a job whose name holds another job.
    """

    folder: Path
    array: str
    forged: str


NOTED: Final = "noted"
"""Under this name it is handed over."""


def _missing_hooks() -> str | None:
    return None if HOOKS.is_dir() else f"this Slurm runs no hooks in {HOOKS}, as one of tests/services/slurm-up does"


def begin_noting() -> NotedJobs:
    """Install the hook and submit; :func:`end_noting` takes everything away."""
    folder = Path(tempfile.mkdtemp(prefix="epilog-", dir=HOOKS.parent))
    folder.chmod(0o755)
    shutil.copy(SCRIPT, folder / "auditord-epilog")  # Slurm's user may not be able to look into the environment
    for name in ("array", "all"):
        (folder / name).mkdir()
        shutil.chown(folder / name, "slurm", os.getgid())
        (folder / name).chmod(0o2770)
    _install_hook(folder)
    many = ("-A", "physics", "-J", folder.name, "--mem=20", f"--array=1-{TASKS}", "--hold", "--wrap", "true")
    array = submit("alice", *many)
    run_slurm("scontrol", "release", f"{array}_[1-{TASKS // 2}]")
    forged = submit("dave", "-A", "biology", "-c", "2", "-J", FORGED, "--comment", FORGED, "--wrap", "true")
    return NotedJobs(folder, array, forged)


def _install_hook(folder: Path) -> None:
    """Slurm runs it for every job; should this session be killed, it does nothing any more."""
    hook = HOOKS / folder.name
    hook.write_text(
        "#!/bin/sh\n"
        f"[ -d /proc/{os.getpid()} ] || exit 0\n"
        f'[ "$SLURM_JOB_NAME" = {folder.name} ] && exec {folder}/auditord-epilog {folder}/array\n'
        f"exec {folder}/auditord-epilog {folder}/all\n"
    )
    hook.chmod(0o755)


def end_noting(noted: NotedJobs) -> None:
    """Take everything away."""
    (HOOKS / noted.folder.name).unlink(missing_ok=True)
    run_slurm("scancel", noted.array)
    shutil.rmtree(noted.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def noted() -> NotedJobs:
    """The Slurm that notes its jobs."""
    if reason := missing_slurm() or _missing_hooks():
        pytest.skip(reason)
    return handed_over(NOTED, NotedJobs)


def notes_of(folder: Path, job_ids: Sequence[str]) -> list[Path]:
    """The notes about these jobs, by raw or by array or heterogeneous id."""
    wanted = {f"{name}={job_id}" for job_id in job_ids for name in _IDS}
    return [file for file in folder.iterdir() if wanted & {*file.read_bytes().decode(errors="replace").split("\0")}]


_IDS: Final = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_HET_JOB_ID")
