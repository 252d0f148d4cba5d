"""The real daemon and the real command when sacct is broken: one clear message, nothing lost; no Slurm is needed."""

import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from auditord_builtin.slurm.demo import RECORDED, SACCT, replay
from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site

RECORDS = 75
"""The number of records of the recorded accounting (tests/builtin/slurm/test_demo.py)."""

UNREACHABLE = (
    "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:dbd:6819"
)

# What it does, and what the operator must be shown.
FAULTS = {
    "is missing": ("", "cannot start: no program '{sacct}' (PATH="),
    "may not be run": ("", "cannot start: Permission denied"),
    "hangs": ("sleep 600", "was killed after 1 s without output"),
    "fails": (
        f"echo '{UNREACHABLE}' >&2; echo 'sacct: error: Gave up.' >&2; exit 1",
        "exit code 1: sacct: error: ",
    ),
    "fails half-way": (
        f'{{real}} "$@" 2>/dev/null | head -n 3; echo "{UNREACHABLE}" >&2; exit 1',
        "exit code 1: sacct: error: ",
    ),
    "complains and exits with 0": (f"echo '{UNREACHABLE}' >&2", f"sacct: {UNREACHABLE}"),
    "dies": ("kill -9 $$", "was killed by signal SIGKILL"),
    "prints garbage": ("echo 'Segmentation fault'", "sacct: the output is cut off or is not a table: it ends in"),
    "is cut off": (
        '{real} "$@" 2>/dev/null | head -c 5000',
        "sacct: the output is cut off or is not a table: it ends in",
    ),
    "never stops": ("yes", "was killed: it printed more than 1000000 bytes"),
}


class Sacct:
    """A program that plays sacct over recorded accounting, or misbehaves as set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def breaks(self, fault: str) -> None:
        body, _ = FAULTS[fault]
        self._write(body.replace("{real}", self._real()))
        if fault == "is missing":
            self.path.unlink()
        if fault == "may not be run":
            self.path.chmod(0o644)

    def recovers(self) -> None:
        self._write(f'exec {self._real()} "$@"')

    def _real(self) -> str:
        return f"{sys.executable} -IS {SACCT}"

    def _write(self, body: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{body}\n")
        new.chmod(0o755)
        new.replace(self.path)


@pytest.fixture
def sacct(tmp_path: Path) -> Sacct:
    return Sacct(tmp_path / "sacct")


@pytest.fixture
def site(tmp_path: Path, sacct: Sacct) -> Site:
    options: dict[str, Any] = {**replay(), "sacct": str(sacct.path), "meta": []}
    return Site(tmp_path, **options, sacct_timeout="1s", sacct_max_output=1_000_000, interval="300ms")


def nothing_has_happened(site: Site) -> None:
    """Nothing was read: where to begin is known, and nothing else."""
    assert datetime.fromisoformat(site.checkpoint()["until"]) == RECORDED.start
    assert site.rows("SELECT count(*) FROM queue UNION SELECT count(*) FROM quarantine") == [(0,)]
    assert site.rows("SELECT count(*) FROM seen") == [(0,)]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_command_says_what_is_wrong_and_does_its_work_later(site: Site, sacct: Sacct, fault: str) -> None:
    sacct.breaks(fault)
    failed = site.command("collect", "slurm", "--once")
    lines = failed.stderr.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("slurm: 0 records; 0 quarantined"))
    attempts, reason = lines[:at], lines[at + 1 :]
    assert (failed.returncode, failed.stdout) == (1, "")
    assert all("each call of sacct queries" in line for line in attempts), (
        "at a limit less is asked for, down to a second"
    )
    assert " ".join(reason).startswith("failed: ")
    assert FAULTS[fault][1].format(sacct=sacct.path) in " ".join(reason)
    nothing_has_happened(site)
    sacct.recovers()
    done = site.command("collect", "slurm", "--once")
    assert (done.returncode, done.stderr.split(";")[0]) == (0, f"slurm: {RECORDS} records")
    assert site.status()["records"] == RECORDS


def test_the_daemon_says_what_is_wrong_and_does_its_work_later(site: Site, sacct: Sacct) -> None:
    sacct.breaks("is missing")
    with site.daemon():
        for fault, (_, reason) in FAULTS.items():
            seen = len(site.text())
            sacct.breaks(fault)
            wait_until(partial(is_logged, site, seen, reason.format(sacct=sacct.path)), site.last_words)
        nothing_has_happened(site)
        logged = [line for line in site.text().splitlines() if "ERROR" in line]
        assert all(" ERROR slurm: run failed: " in line for line in logged)
        assert "Traceback" not in site.text()
        [instance] = site.status()["instances"]
        assert instance["failures"] >= len(FAULTS)
        assert "printed more than" in instance["error"]
        sacct.recovers()
        wait_until(lambda: f"INFO slurm: {RECORDS} records" in site.text(), site.last_words)
        wait_until(site.delivered, site.last_words)
        assert len(site.served()) == RECORDS
        [instance] = site.status()["instances"]
        assert (instance["failures"], instance["error"]) == (0, None)


def is_logged(site: Site, seen: int, reason: str) -> bool:
    return any("run failed" in line and reason in line for line in site.text()[seen:].splitlines())
