"""Everything that Slurm changes afterwards, under kills: the store equals the accounting run by run in the end.

Jobs are requeued after their ends and while they run, resized, suspended and cancelled, slurmdbd is away for a
while, and the daemon is killed all the time. ``AUDITORD_TEST_KILLS`` says how often (10).
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from tests.acceptance.slurm.daemon import Site
from tests.slurm_accounting import Row, has_started, instant, sacct
from tests.slurm_jobs import FOLDER, missing_slurm, run_slurm, submit, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1_500)]

KILLS: Final = int(os.environ.get("AUDITORD_TEST_KILLS", "10"))
SLURMDBD: Final = FOLDER / "run" / "slurmdbd.pid"
REQUEUED: Final = 3

Counted: TypeAlias = tuple[str, datetime, datetime, int]
"""Job id, start, end and cores of a run."""


def submit_all() -> Mapping[str, Sequence[str]]:
    """Jobs by what will be done to them."""
    physics = ("-A", "physics", "--mem=20")
    finishing = [submit("alice", *physics, "--requeue", "--wrap", "sleep 2; exit 3") for _ in range(REQUEUED)]
    return {
        "requeue after the end": finishing,
        "requeue while it runs": [submit("bob", *physics, "--requeue", "--wrap", "sleep 25")],
        "resize": [submit("alice", *physics, "-N", "2", "-n", "2", "--wrap", "sleep 45") for _ in range(2)],
        "suspend": [submit("bob", *physics, "--wrap", "sleep 30") for _ in range(2)],
        "cancel": [submit("bob", *physics, "--wrap", "sleep 600")],
        "let end": [submit("alice", *physics, "--wrap", f"sleep {number % 7}") for number in range(20)],
        "array": [submit("alice", *physics, "-a", "1-20", "--wrap", "sleep 1")],
    }


def states_of(job_id: str) -> set[str]:
    return {row["State"].split()[0] for row in sacct(job_id, "State")}


def change(jobs: Mapping[str, Sequence[str]]) -> None:
    """Do to the jobs what is to be done while they run; suspended ones go on."""
    running = [job for kind in ("requeue while it runs", "resize", "suspend", "cancel") for job in jobs[kind]]
    wait_until(lambda: all(states_of(job) == {"RUNNING"} for job in running), "all of them to run")
    for job in jobs["resize"]:
        run_slurm("scontrol", "update", f"JobId={job}", "NumNodes=1")
    for job in jobs["suspend"]:
        run_slurm("scontrol", "suspend", job)
    run_slurm("scancel", *jobs["cancel"])
    run_slurm("scontrol", "requeue", *jobs["requeue while it runs"])
    for job in jobs["suspend"]:
        run_slurm("scontrol", "resume", job)


def counted(row: Row) -> Counted:
    """A run of sacct's; a later row of a resized job begins with the resizing."""
    start = max(instant(row["Start"]), instant(row["Submit"]))
    return row["JobID"], start, instant(row["End"]), int(row["NCPUS"])


def accounted(jobs: Mapping[str, Sequence[str]]) -> Counter[Counted]:
    columns = ("State", "Submit", "Start", "End", "NCPUS", "NodeList")
    rows = [row for ids in jobs.values() for job in ids for row in sacct(job, *columns)]
    return Counter(counted(row) for row in rows if has_started(row))


def stored(site: Site) -> Counter[Counted]:
    return Counter(
        (
            record["record_id"].split("-")[1],
            datetime.fromisoformat(record["start_time"]),
            datetime.fromisoformat(record["stop_time"]),
            next(each["amount"] for each in record["components"] if each["name"] == "Cores"),
        )
        for record in site.served()
    )


def all_over(jobs: Mapping[str, Sequence[str]]) -> bool:
    ids = [job for each in jobs.values() for job in each]
    ends = [row["End"] for job in ids for row in sacct(job, "End")]
    return not run_slurm("squeue", "-h", "-j", ",".join(ids)) and "Unknown" not in ends


def stop_slurmdbd() -> None:
    pid = int(SLURMDBD.read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "slurmdbd to stop")


def start_slurmdbd() -> None:
    subprocess.run(["slurmdbd"], check=True, timeout=60)
    wait_until(lambda: _answers("sacctmgr", "-nP", "show", "cluster"), "slurmdbd to answer")


def _answers(*argv: str) -> bool:
    try:
        return bool(run_slurm(*argv))
    except subprocess.SubprocessError:
        return False


def killed(site: Site, times: int, pauses: random.Random) -> None:
    """Let the daemon live for moments."""
    for _ in range(times):
        with site.daemon():
            time.sleep(pauses.uniform(0.5, 3))  # any moment is the right one: no condition is waited for


@pytest.mark.skipif(missing_slurm() is not None, reason=missing_slurm() or "")
def test_store_and_accounting_are_equal_run_by_run_whatever_is_changed(tmp_path: Path) -> None:
    since = datetime.now(UTC).replace(microsecond=0)
    jobs = submit_all()
    ids = ",".join(job for each in jobs.values() for job in each)
    options: dict[str, Any] = {"interval": "500ms", "rescan_every": "1s", "rescan_window": "1h", "meta": []}
    site = Site(tmp_path, sacct=["sacct", f"--jobs={ids}"], earliest_datetime=since.isoformat(), **options)
    pauses = random.Random(50)  # noqa: S311 no secret
    change(jobs)
    killed(site, KILLS // 3, pauses)
    wait_until(lambda: all(states_of(job) == {"FAILED"} for job in jobs["requeue after the end"]), "these to end")
    with site.daemon():
        site.wait_for_run()  # so these runs are stored before Slurm changes them
    stop_slurmdbd()
    try:
        run_slurm("scontrol", "requeue", ",".join(jobs["requeue after the end"]))
        again = submit("alice", "-A", "physics", "--mem=20", "-a", "1-20", "--wrap", "sleep 1")
        jobs = {**jobs, "in the outage": [again]}
        site.configure(sacct=["sacct", f"--jobs={ids},{again}"], earliest_datetime=since.isoformat(), **options)
        killed(site, KILLS // 3, pauses)
    finally:
        start_slurmdbd()
    killed(site, KILLS - 2 * (KILLS // 3), pauses)
    wait_until(lambda: all_over(jobs), "all jobs to end", 420)
    with site.daemon():
        site.wait_for_run()
        expected, found = accounted(jobs), stored(site)
        quarantined = site.rows("SELECT task, source_id, reason FROM quarantine")
    assert {"REQUEUED", "FAILED"} <= states_of(jobs["requeue after the end"][0])
    assert quarantined == []
    assert found == expected
    assert max(expected.values()) == 1
