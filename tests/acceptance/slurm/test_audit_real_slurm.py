"""Audits of a real Slurm by the installed command, beside a daemon and without one."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site
from tests.slurm_accounting import expected_records, never_started
from tests.slurm_jobs import SlurmJobs

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1_200)]

FAULTS_LEFT: Final = 3


def period(jobs: SlurmJobs) -> tuple[str, ...]:
    return ("--from", jobs.since.isoformat(), "--to", jobs.until.isoformat())


def audited(site: Site, jobs: SlurmJobs, *words: str) -> tuple[int, Any]:  # Any: JSON
    """Exit code and report of an audit."""
    ended = site.command("audit", "slurm", *period(jobs), "--output", "json", *words)
    assert ended.returncode in {0, FAULTS_LEFT}, ended.stderr
    [report] = json.loads(ended.stdout)
    return ended.returncode, report


def total(report: Any, state: str) -> int:  # Any: JSON
    return sum(day["counts"].get(state, 0) for day in report["days"])


def lose(site: Site, record_id: str) -> None:
    """Take a record out of the store behind everybody's back, as a disk fault or a wrong restore would."""
    with closing(sqlite3.connect(site.state / "records.db")) as connection, connection:
        deleted = connection.execute("DELETE FROM records WHERE record_id = ?", (record_id,))
        assert deleted.rowcount == 1


def test_store_and_accounting_are_compared_and_repaired(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    ids = ",".join(slurm_jobs.ids.values())
    site = Site(tmp_path, sacct=["sacct", f"--jobs={ids}"], earliest_datetime=slurm_jobs.since.isoformat())
    expected = expected_records(slurm_jobs)
    lost, changed = sorted(expected)[:2]
    with site.daemon():
        site.wait_for_run()
        code, report = audited(site, slurm_jobs)
        assert (code, total(report, "stored"), report["discrepancies"]) == (0, len(expected), [])
        assert report["skipped"]["never started"] == len(never_started(slurm_jobs))
        assert report["horizon"] == "1970-01-01T00:00:00Z"  # this slurmdbd purges nothing
        post_extra(site)
        words = ("records", "correct", changed, "--component", "Cores=77", "--reason", "test", "--yes")
        assert site.command(*words).returncode == 0
    lose(site, lost)
    code, report = audited(site, slurm_jobs)  # no daemon runs now
    assert code == FAULTS_LEFT
    found = {discrepancy["record_id"]: discrepancy["state"] for discrepancy in report["discrepancies"]}
    assert found == {lost: "missing", changed: "different", "slurm-999999999": "extra"}
    with site.daemon():
        site.wait_for_run()
        code, report = audited(site, slurm_jobs, "--repair", "--replace", "what Slurm says counts")
        assert (code, report["repaired"], report["replaced"]) == (FAULTS_LEFT, 1, 1)  # the extra one is still there
        wait_until(site.delivered, site.last_words)
        gone = ("records", "delete", "slurm-999999999", "--reason", "no such job", "--yes")
        assert site.command(*gone).returncode == 0
        code, report = audited(site, slurm_jobs)
        assert (code, report["discrepancies"]) == (0, [])
        assert {record["record_id"] for record in site.served()} == set(expected)
        text = site.command("audit", "slurm", *period(slurm_jobs))
        assert f"{len(expected)} stored, no discrepancies" in text.stderr
        assert "what Slurm says counts" in site.command("records", "history", changed).stdout


def post_extra(site: Site) -> None:
    """Post a record of a job that Slurm has never had, between two that it had."""
    like = site.served()[0]
    body = json.dumps({**like, "record_id": "slurm-999999999"}).encode()
    request = Request(f"{site.url()}/record", body, {"Content-Type": "application/json"})  # noqa: S310 our own server
    with urlopen(request, timeout=60) as answer:  # noqa: S310 the same
        assert answer.status == 200
