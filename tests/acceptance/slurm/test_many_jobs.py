"""The real daemon and an sacct that prints a million jobs with steps at once: memory stays as it is without any."""

import logging
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site

SACCT: Final = Path(__file__).parents[2] / "many_jobs_sacct.py"
SPAN: Final = timedelta(hours=6)
MEBIBYTE: Final = 2**20


def peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def idle_peak(path: Path) -> int:
    """That of a daemon whose sacct knows no jobs."""
    path.mkdir()
    site = Site(path, sacct="true", meta=[])
    with site.daemon() as daemon:
        site.wait_for_run()
        return peak(daemon.pid)


@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("jobs", [10_000, pytest.param(1_000_000, marks=pytest.mark.benchmark)])
def test_memory_does_not_grow_with_the_jobs_of_a_slice(tmp_path: Path, jobs: int) -> None:
    first = datetime.now(UTC).replace(microsecond=0) - SPAN - timedelta(hours=1)
    sacct = [sys.executable, "-S", str(SACCT), str(jobs), f"{first.timestamp():.0f}", f"{SPAN.total_seconds():.0f}"]
    idle = idle_peak(tmp_path / "idle")
    (tmp_path / "busy").mkdir()
    site = Site(tmp_path / "busy", sacct=sacct, earliest_datetime=first.isoformat(), meta=[])
    with site.daemon() as daemon:
        wait_until(lambda: re.search(r"\d+ records.* in [0-9.]+ s", site.text()), site.last_words, 2_000)
        wait_until(site.delivered, site.last_words, 1_000)
        above = peak(daemon.pid) - idle
        assert site.status()["records"] == jobs
    figures = f"{above / MEBIBYTE:.0f} MiB above the {idle / MEBIBYTE:.0f} MiB of the idle daemon"
    logging.getLogger(__name__).info("%d jobs: %s; %s", jobs, figures, site.last_words())
    assert above <= 150 * MEBIBYTE
