"""Jobs of a real pool, which ``tests/services/condor-up`` makes, read through chroot: records say what they held."""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Generator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import Record
from auditord_hookspecs.checks import Severity
from tests.real_context import RealContext

SERVICE: Final = Path(__file__).parents[2] / "services" / "condor-up"
ROOT: Final = Path("/var/lib/auditord-test/condor/root")
PATIENCE: Final = 180.0
RAN_FOR: Final = 3
"""The least seconds for which a job runs before it is held."""
HELD_FOR: Final = 8
"""The least seconds between the hold of a job and its removal, which must not count."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (ROOT / "usr/sbin/condor_master").exists(),
        reason="needs root and a pool of HTCondor: run tests/services/condor-up",
    ),
]


@pytest.fixture
def _pool(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)  # HTCondor's library sets it when other tests import it
    was_running = (ROOT.parent / "pid").exists()
    subprocess.run([SERVICE], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    yield
    if not was_running:
        subprocess.run([SERVICE, "--stop"], check=True, timeout=PATIENCE)


def call(*argv: str, text: str = "") -> str:
    """Run a program in the pool's folder as the user alice."""
    command = ["chroot", str(ROOT), "runuser", "-u", "alice", "--", *argv]
    done = subprocess.run(command, check=True, timeout=PATIENCE, input=text, capture_output=True, text=True)
    return done.stdout.strip()


def submit(*lines: str, seconds: int, universe: str = "vanilla") -> str:
    """Submit a job that sleeps, and return its number."""
    job = (f"universe = {universe}", "executable = /bin/sleep", f"arguments = {seconds}", "initialdir = /home/alice")
    return call("condor_submit", "-terse", text="\n".join((*job, "request_memory = 100", *lines, "queue\n"))).split()[0]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {call('condor_q', '-all', '-nobatch')}"
        time.sleep(0.3)


def status_of(job: str) -> str:
    return call("condor_q", job, "-af", "JobStatus")


def has_status_for(job: str, status: str, seconds: int) -> bool:
    """Return whether the job has had the status for this long."""
    found, since = call("condor_q", job, "-af", "JobStatus", "EnteredCurrentStatus").split()
    return found == status and time.time() - int(since) >= seconds


def times_of(job: str) -> dict[str, int]:
    names = ("JobCurrentStartDate", "EnteredCurrentStatus", "LastRemoteWallClockTime")
    values = call("condor_history", job, "-limit", "1", "-af", *names).split()
    return {name: int(float(value)) for name, value in zip(names, values, strict=True)}


async def collect(jobs: Collection[str], since: datetime, **options: Any) -> dict[str, Record]:
    """Collect the records of these jobs, by their numbers. An interrupted test may have left others."""
    context = RealContext(moment=datetime.now(UTC))
    config = HTCondorConfig.model_validate({"earliest_datetime": since, **options})
    records = await context.keep(HTCONDOR.collect(config, context))
    found = [(number, record) for record in records if (number := record.record_id.split("#")[1]) in jobs]
    assert len(found) == len(jobs)
    return dict(found)


@pytest.mark.usefixtures("_pool")
async def test_records_of_a_real_pool_are_what_its_jobs_held() -> None:
    since, chroot = datetime.now(UTC).replace(microsecond=0), ["chroot", str(ROOT)]
    held = submit("request_cpus = 4", seconds=600)
    plain = submit("request_cpus = 2", "request_gpus = 1", "+HEPscore23 = 999", seconds=3)
    parallel = submit("machine_count = 3", "request_cpus = 2", "request_gpus = 1", seconds=3, universe="parallel")
    for status, least, act in (("2", RAN_FOR, "condor_hold"), ("5", HELD_FOR, "condor_rm")):
        wait_until(partial(has_status_for, held, status, least), f"status {status}")
        call(act, held)
    wait_until(lambda: not any(map(status_of, (held, plain, parallel))), "all jobs are over")

    jobs = (held, plain, parallel)
    records = await collect(jobs, since, through=chroot)
    amounts = {job: {each.name: each.amount for each in record.components} for job, record in records.items()}
    assert [amounts[job]["Cores"] for job in jobs] == [4, 2, 6]
    assert amounts[parallel]["Memory"] == 300
    assert [amounts[job].get("GPU") for job in jobs] == [0, 1, 3]
    scores = [{score.name: score.value for score in records[job].components[0].scores} for job in jobs]
    assert scores == [{"HEPSPEC": 14.37}] * 3, "neither the digit of SI2K nor the user's own attribute"
    times, runtime = times_of(held), records[held].runtime
    assert runtime is not None
    assert abs(runtime - times["LastRemoteWallClockTime"]) <= 1
    whole = times["EnteredCurrentStatus"] - times["JobCurrentStartDate"]
    assert runtime >= RAN_FOR - 1
    assert whole - runtime >= HELD_FOR - 1

    for options in ({"output": "json"}, {"output": "jsonl"}, {"schedd_names": ["ap1@test"]}):
        assert await collect(jobs, since, through=chroot, **options) == records
    history = ROOT / call("condor_config_val", "HISTORY").lstrip("/")
    assert await collect(jobs, since, history_paths=[history]) == records
    by_auditor = await collect(jobs, since, through=chroot, components="auditor")
    assert by_auditor[held].runtime == whole

    context = RealContext(moment=datetime.now(UTC))
    assert HTCONDOR.check is not None
    for names, severity in (((), Severity.OK), (("ap1@test",), Severity.OK), (("nobody@test",), Severity.FAILURE)):
        chosen = HTCondorConfig(through=tuple(chroot), schedd_names=names)
        findings = [each async for each in HTCONDOR.check(chosen, context)]
        assert [each.severity for each in findings] == [severity]
