"""One job of every kind in a real Slurm, for all tests marked ``slurm``.

The jobs are submitted as soon as it is known that a test needs them (:mod:`tests.slurm_session`), the slow ones first,
and waited for by the fixture ``slurm_jobs``. So the minutes that a time limit and a requeue take pass while other tests
run.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.handing_over import handed_over

DEADLINE: Final = 420.0
"""Seconds for all jobs; a requeued one waits for ``cred_expire`` of slurm-up's slurm.conf (120 s by default)."""

RUNS_OF_REQUEUED: Final = 2

CLUSTER: Final = (
    os.environ.get("SLURM_TEST_CLUSTER")
    or subprocess.check_output([Path(__file__).parent / "services/slurm-cluster"], text=True).strip()
)
"""The name of slurm-up's cluster: this checkout's own, or one that is shared on purpose."""

FOLDER: Final = Path(os.environ.get("SLURM_TEST_DIR") or f"/var/lib/slurm-test/{CLUSTER}")
"""The folder of slurm-up's cluster."""

HOSTILE_NAME: Final = 'näme | "odd"\nline\x1f\x1e{}'
HOSTILE_COMMENT: Final = "line1\nline2|pipe\n99999|root|\x1f99999\x1e"
JSON_COMMENT: Final = '{"voms":"/atlas/Role=production","subject":"/DC=org/CN=a|b"}'

_STEPS = """#!/bin/sh
srun -n 2 python3 -c 'import time; x = bytearray(b"1") * (80 << 20); time.sleep(2)'
srun -n 1 sleep 1
srun -n 1 false
exit 0
"""

_SUBMISSIONS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "requeued": ("bob", ["-A", "biology", "--requeue", "--wrap", "srun sleep 10"]),
    "timed_out": ("dave", ["-A", "biology", "-t", "1", "--wrap", "sleep 600"]),
    "cancelled_running": ("carol", ["-A", "biology", "-p", "long", "--wrap", "sleep 600"]),
    "cancelled_pending": ("carol", ["-A", "biology", "-b", "now+1hour", "--wrap", "sleep 600"]),
    "cancelled_array": ("carol", ["-A", "biology", "-b", "now+1hour", "-a", "1-9%2", "--wrap", "sleep 600"]),
    "completed": ("alice", ["-A", "physics", "-c", "2", "--mem=512", "--comment", JSON_COMMENT, "--wrap", "sleep 2"]),
    "failed": ("bob", ["-A", "physics", "--wrap", "sleep 1; exit 3"]),
    "killed": ("bob", ["-A", "physics", "--wrap", "kill -9 $$"]),
    "array": ("alice", ["-A", "physics", "-a", "1-4%2", "--wrap", "[ $SLURM_ARRAY_TASK_ID != 3 ]"]),
    "steps": ("alice", ["-A", "physics", "-p", "long", "-N", "2", "-n", "4", "--mem-per-cpu", "200"]),
    "gpu": ("alice", ["-A", "physics", "-p", "gpu", "--gres=gpu:a100:2", "-c", "4", "--mem=2G", "--wrap", "sleep 1"]),
    "het": ("alice", ["-A", "physics", "-n", "1", ":", "-n", "2", "--wrap", "srun --het-group=0,1 sleep 1"]),
    "hostile": ("dave", ["-A", "biology", "-J", HOSTILE_NAME, "--comment", HOSTILE_COMMENT, "--wrap", "true"]),
    "instant": ("dave", ["-A", "biology", "--wrap", "true"]),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Submitted:
    """Slurm's job ids by kind, and an instant before all of them."""

    ids: Mapping[str, str]
    since: datetime


SUBMITTED: Final = "submitted"
"""Under this name they are handed over."""


@dataclass(frozen=True, slots=True, eq=False)
class SlurmJobs:
    """The jobs that were submitted; equal to itself alone, so that what sacct says of them can be cached.

    Args:
        ids: Slurm's job ids by kind; of an array or a heterogeneous job the one that its parts share.
        since: before all of them.
        until: after the end of every one of them; in the past.
    """

    ids: Mapping[str, str]
    since: datetime
    until: datetime


def run_slurm(*argv: str, text: str | None = None) -> str:
    """Run one of Slurm's programs in UTC and return what it printed, less the last newline."""
    environment = {"PATH": os.environ["PATH"], "TZ": "UTC", "LANG": "C.UTF-8"}
    done = subprocess.run(argv, input=text, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.removesuffix("\n")


def running_cluster() -> str | None:
    """The name of the cluster that answers."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", run_slurm("scontrol", "show", "config"), re.MULTILINE)
    return None if found is None else found[1]


def missing_slurm() -> str | None:
    """The reason for which there is no Slurm to test with; None if there is one."""
    if shutil.which("sacct") is None:
        return "Slurm is not installed; as root, tests/services/slurm-up installs and starts one"
    if os.geteuid() != 0:
        return "only root can submit jobs as several users"
    try:
        if (found := running_cluster()) != CLUSTER:
            return (
                f"cluster {found} is not this checkout's own ({CLUSTER}), and no place for its jobs; if it is another "
                f"checkout's, SLURM_TEST_CLUSTER={found} shares it"
            )
        return None if run_slurm("sinfo", "-h", "-p", "gpu") else "Slurm has no partition gpu"
    except subprocess.SubprocessError as error:
        return f"Slurm does not answer ({error}); as root, tests/services/slurm-up starts one"


def submit(user: str, *options: str, script: str | None = None) -> str:
    """Submit a batch job and return its id."""
    argv = ("runuser", "-u", user, "--", "sbatch", "--parsable", "-D", "/", "-o", "/dev/null", *options)
    return run_slurm(*argv, text=script)


def submit_all() -> Submitted:
    """Submit one job of every kind; those that have to be disturbed are, once they run."""
    since = datetime.now(UTC).replace(microsecond=0)
    ids = {
        kind: submit(user, "-J", kind, *options, script=_STEPS if kind == "steps" else None)
        for kind, (user, options) in _SUBMISSIONS.items()
    }
    for kind in ("requeued", "cancelled_running"):
        _wait_until_running(ids[kind])
    run_slurm("scontrol", "requeue", ids["requeued"])
    run_slurm("scancel", *(ids[kind] for kind in ("cancelled_running", "cancelled_pending", "cancelled_array")))
    shell = ("srun", "-A", "biology", "-J", "interactive", "-D", "/", "sh", "-c", "echo $SLURM_JOB_ID; sleep 1")
    return Submitted({**ids, "interactive": run_slurm("runuser", "-u", "carol", "--", *shell)}, since)


def _wait_until_running(job_id: str) -> None:
    """Wait until the database knows that it runs; a run that is requeued earlier may have no start there."""
    accounting = ("sacct", "-nXP", "-j", job_id, "-o", "State,Start")
    wait_until(lambda: re.fullmatch(r"RUNNING\|\d.*", run_slurm(*accounting)) is not None, f"job {job_id} to run")


def _all_over(ids: Mapping[str, str]) -> bool:
    """Tell if every run has its end in the database, where it comes some seconds late, and none is to come."""
    if run_slurm("squeue", "-h", "-j", ",".join(ids.values())):
        return False
    ends = {kind: run_slurm("sacct", "-nXDP", "-j", job_id, "-o", "End").split() for kind, job_id in ids.items()}
    return all(end and "Unknown" not in end for end in ends.values()) and len(ends["requeued"]) == RUNS_OF_REQUEUED


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Look twice a second; fail the test when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for {what}")
        time.sleep(0.5)


@pytest.fixture(scope="session")
def slurm_jobs() -> SlurmJobs:
    """The submitted jobs, when all of them are over."""
    if reason := missing_slurm():
        pytest.skip(reason)
    submitted = handed_over(SUBMITTED, Submitted)
    wait_until(lambda: _all_over(submitted.ids), "all jobs to end", DEADLINE)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)  # a job may have ended in this very second
    wait_until(lambda: datetime.now(UTC) > until, "the next second")
    return SlurmJobs(submitted.ids, submitted.since, until)
