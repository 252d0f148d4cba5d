"""The real daemon over the real Slurm: what it serves equals the accounting, job by job, whatever happens to it."""

import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site
from tests.json_objects import objects
from tests.slurm_accounting import Plain, base_id, expected_records, never_started, own, sacct
from tests.slurm_jobs import SlurmJobs, run_slurm, submit

pytestmark = pytest.mark.slurm

FIGURES = {"task": "slurm", "kind": "slurm"}


def only(jobs: SlurmJobs) -> list[str]:
    """Sacct, for the tests' own jobs alone, so that counts can be compared whoever else uses the Slurm."""
    return ["sacct", f"--jobs={','.join(jobs.ids.values())}"]


def period(jobs: SlurmJobs) -> tuple[str, ...]:
    return ("--from", jobs.since.isoformat(), "--to", jobs.until.isoformat())


def test_what_is_served_equals_the_accounting_job_by_job(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    site = Site(tmp_path, earliest_datetime=slurm_jobs.since.isoformat())
    expected = expected_records(slurm_jobs)
    with site.daemon():
        site.wait_for_run()
        assert own(site.served(), slurm_jobs) == expected
    kinds = {kind: [name for name in expected if base_id(name) == job_id] for kind, job_id in slurm_jobs.ids.items()}
    counts = {kind: len(names) for kind, names in kinds.items() if len(names) != 1}
    assert counts == {"requeued": 2, "array": 4, "het": 2, "cancelled_pending": 0, "cancelled_array": 0}


def test_what_never_started_is_counted_once_with_the_reason(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    site = Site(tmp_path, sacct=only(slurm_jobs), earliest_datetime=slurm_jobs.since.isoformat())
    skipped = len(never_started(slurm_jobs))
    assert skipped == 2
    with site.daemon():
        site.wait_for_run()
        [instance] = site.status()["instances"]
        assert (instance["records"], instance["quarantined"], instance["error"]) == (len(site.served()), 0, None)
        assert instance["skipped"] == {"never started": skipped}
        assert site.command("collect", "slurm", "--once").returncode == 0
        assert site.metric("auditord_skipped_jobs_total", reason="never started", **FIGURES) == skipped
        assert number_of_runs(site) == 2


def test_collecting_again_adds_and_changes_nothing(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    # Every run also looks far back, so every job is found many times.
    options = {"rescan_every": "0s", "interval": "500ms"}
    site = Site(tmp_path, sacct=only(slurm_jobs), earliest_datetime=slurm_jobs.since.isoformat(), **options)
    count = len(expected_records(slurm_jobs))
    with site.daemon():
        site.wait_for_run()
        before = site.fetch("/records")
        assert len(objects(before)) == count
        once = site.command("collect", "slurm", "--once")
        assert (once.returncode, once.stderr.split(" (")[0]) == (0, "slurm: 0 records; 0 quarantined")
        again = site.command("collect", "slurm", *period(slurm_jobs))
        said = [line.partition(";")[0] for line in again.stderr.splitlines()]  # and what some records lack
        assert (again.returncode, f"slurm: {count} records" in said) == (0, True), again.stderr
        runs = site.metric("auditord_run_duration_seconds_count", **FIGURES) or 0
        wait_until(
            lambda: (site.metric("auditord_run_duration_seconds_count", **FIGURES) or 0) > runs + 1, site.last_words
        )
        wait_until(site.delivered, site.last_words)
        assert site.fetch("/records") == before
        assert site.metric("auditord_collected_records_total", **FIGURES) == count
        nothing_is_wrong(site)


def number_of_runs(site: Site) -> float:
    return site.metric("auditord_run_duration_seconds_count", **FIGURES) or 0


def nothing_is_wrong(site: Site) -> None:
    """No record came with other content, and nothing is in quarantine."""
    assert site.command("records", "--differences", "--output", "ndjson").stdout == ""
    assert site.rows("SELECT reason FROM quarantine") == []


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_loses_and_doubles_nothing(slurm_jobs: SlurmJobs, tmp_path: Path, seed: int) -> None:
    # Pages from a minute on, empty ones long before the first job, and an sacct that takes its time: a run of seconds.
    beginning = slurm_jobs.since - timedelta(days=20)
    site = Site(tmp_path, sacct=slow_sacct(tmp_path), slice="1m", earliest_datetime=beginning.isoformat())
    chance, reached = random.Random(seed), [beginning]  # noqa: S311 moments, no secrets
    while len(reached) < 7:
        goal = reached[-1] + chance.uniform(0, 0.5) * (slurm_jobs.until - reached[-1])
        queued = chance.random() < 0.5  # then the kill hits what is on its way into the store
        with site.daemon() as process:
            wait_until(partial(has_come_to, site, goal, queued=queued), site.last_words)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
        reached.append(read_until(site, beginning))
    assert reached == sorted(reached)
    assert len(set(reached)) > 4, "kills came in the middle of a run"
    with site.daemon():
        site.wait_for_run()
        assert own(site.served(), slurm_jobs) == expected_records(slurm_jobs)
        nothing_is_wrong(site)


def has_come_to(site: Site, goal: datetime, *, queued: bool) -> bool:
    if queued and site.rows("SELECT 1 FROM queue LIMIT 1"):
        return True
    return read_until(site, datetime.min.replace(tzinfo=UTC)) >= goal


def slow_sacct(folder: Path) -> str:
    return program(folder, 'sleep 0.04; sacct "$@"; code=$?; sleep 0.04; exit $code')


def program(folder: Path, body: str) -> str:
    """A shell script in place of sacct."""
    path = folder / "sacct"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def read_until(site: Site, beginning: datetime) -> datetime:
    checkpoint = site.checkpoint()
    return datetime.fromisoformat(checkpoint["until"]) if checkpoint else beginning


def test_a_running_job_is_open_until_its_end_closes_it_with_the_full_record(
    slurm_jobs: SlurmJobs, tmp_path: Path
) -> None:
    job_id = submit("alice", "-A", "physics", "-J", "open", "-n", "2", "--wrap", "srun sleep 600")
    jobs = SlurmJobs({"open": job_id}, slurm_jobs.until, slurm_jobs.until)
    beginning = slurm_jobs.until.isoformat()
    site = Site(tmp_path, sacct=only(jobs), open_records=True, interval="500ms", earliest_datetime=beginning)
    with site.daemon():
        wait_until(site.served, site.last_words)
        [opened] = site.served()
        assert (opened["record_id"], opened["stop_time"]) == (f"slurm-{job_id}", None)
        assert opened["start_time"] == sacct(job_id, "Start")[0]["Start"] + "Z"
        run_slurm("scancel", job_id)
        wait_until(lambda: site.served()[0]["stop_time"], site.last_words)
        assert own(site.served(), jobs) == expected_records(jobs)
        nothing_is_wrong(site)


def test_with_open_records_both_runs_of_a_requeued_job_are_there(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    earliest = slurm_jobs.since.isoformat()
    site = Site(tmp_path, sacct=only(slurm_jobs), open_records=True, earliest_datetime=earliest)
    with site.daemon():
        site.wait_for_run()
        served = own(site.served(), slurm_jobs)
        nothing_is_wrong(site)
    assert runs_of(served) == runs_of(expected_records(slurm_jobs))
    requeued = f"slurm-{slurm_jobs.ids['requeued']}"
    assert served[requeued]["meta"]["state"] == ["REQUEUED"], "the run that began first has the plain id"


def runs_of(records: Mapping[str, Plain]) -> list[tuple[str, datetime, datetime]]:
    """Job, start and end; which of two runs has the plain id differs."""
    return sorted((base_id(name), record["start_time"], record["stop_time"]) for name, record in records.items())
