"""Years of accounting in a day: filled, backed up, released to the lake, corrected, lost, restored, healed and audited.

Two clusters are the source: one whose jobs ended evenly over three years, and one whose jobs end all the time.
``AUDITORD_TEST_YEARS_JOBS`` is the number of jobs of the first one; 1,000,000 is the size of a site.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site

JOBS: Final = int(os.environ.get("AUDITORD_TEST_YEARS_JOBS", "3000"))
YEARS: Final = timedelta(days=3 * 365)
LONGEST: Final = 60.0 + JOBS / 200
"""Seconds for what a site of this size does within a fraction of it."""
HOURS: Final = timedelta(hours=2)

pytestmark = [pytest.mark.timeout(7_200)]


class YearsSite(Site):
    """Both clusters, and a lake that alone has what ended more than a year ago.

    Args:
        path: an empty folder.
        store: the record store's URL in PostgreSQL; None for the embedded one.
    """

    patience = 3_600.0

    def __init__(self, path: Path, store: str | None) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        self.first, self.today = now - YEARS, now - timedelta(minutes=10)
        super().__init__(path, store=store)

    def configure(self, *, lake: bool = False, **_: Any) -> None:  # Any: YAML
        """Write the configuration."""
        document: dict[str, Any] = {  # Any: YAML
            "state_dir": str(self.state),
            "api": {"listen": ["127.0.0.1:0"]},
            "collectors": {
                "history": self._collector(JOBS, self.first, YEARS - HOURS, "1h"),
                "slurm": self._collector(20_000, self.today, HOURS, "1s"),
            },
            "lake": {"enabled": lake, "name": "site", "keep_months": 12, "interval": "1000d"},
        }
        self.write(document)

    def _collector(self, jobs: int, first: datetime, span: timedelta, interval: str) -> Any:  # Any: YAML
        program = str(Path(__file__).parents[1] / "many_jobs_sacct.py")
        sacct = [sys.executable, "-S", program, str(jobs), f"{first.timestamp():.0f}", f"{span.total_seconds():.0f}"]
        return {
            "kind": "slurm",
            "sacct": sacct,
            "record_prefix": "history" if first == self.first else "slurm",
            "earliest_datetime": (first - timedelta(minutes=1)).isoformat(),
            "sites": [{"name": "old" if first == self.first else "new"}],
            "interval": interval,
            "lag": "0s",
            "components": [{"name": "Cores", "key": "NCPUS"}],
        }

    def done(self, *words: str, code: int = 0) -> str:
        """The output of a command that has to end so."""
        ended = self.command(*words)
        assert ended.returncode == code, ended.stdout + ended.stderr + self.last_words()
        return ended.stdout

    def months(self) -> Any:  # Any: JSON
        """Jobs and core hours of the three years by month."""
        measures = ("--measure", "jobs", "--measure", "core-hours", "--by", "none", "--filter", "site=old")
        period = ("--from", self.first.isoformat(), "--to", self.today.isoformat())
        return json.loads(self.done("report", "usage", *measures, *period, "--output", "json"))

    def released(self) -> int:
        """The number of records that the lake alone has."""
        return int(self.metric("auditord_lake_released_records") or 0)

    def collected(self, task: str) -> int:
        """The number of jobs that a collector has read."""
        [(number,)] = self.rows(f"SELECT count(*) FROM seen WHERE task = '{task}'") or [(0,)]  # noqa: S608 ours
        return int(number)


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> YearsSite:
    if request.param == "sqlite":
        return YearsSite(tmp_path, None)
    new_url: Callable[[], str] = request.getfixturevalue("new_postgres_url")
    return YearsSite(tmp_path, new_url())


def test_years_in_a_day(site: YearsSite) -> None:
    backups = str(site.path / "backups")
    dump = () if site.store is None else ("--dump",)
    with site.daemon():
        wait_until(lambda: f"history: {JOBS:,} records" in site.text(), site.last_words, LONGEST)
        wait_until(site.delivered, site.last_words, LONGEST)
        first_day = site.months()
        assert first_day["total"] == {"jobs": JOBS, "core-hours": pytest.approx(JOBS * 4 / 60)}
        site.done("backup", backups, *dump)
    site.configure(lake=True)  # after the backup, which has everything in the record store
    with site.daemon() as daemon:
        site.url()  # it is ready
        collected = site.collected("slurm")
        site.done("lake", "run")
        site.done("lake", "verify")
        assert site.released() > JOBS / 2
        assert site.months() == first_day
        wait_until(lambda: site.collected("slurm") > collected + 10, site.last_words, LONGEST)
        correct = ("records", "correct", "history-7", "--component", "Cores=400", "--reason", "counted wrong", "--yes")
        site.done(*correct)
        assert site.months() != first_day
        daemon.kill()
    site.lose_the_store()
    site.done("restore", backups)
    with site.daemon():
        wait_until(lambda: site.collected("slurm") > collected + 20, site.last_words, LONGEST)
        wait_until(site.delivered, site.last_words, LONGEST)
        assert site.months() == first_day  # the correction has to be made again, as the restore says
        site.done("lake", "run")
        site.done("lake", "verify")
        assert site.months() == first_day
        until, read = datetime.now(UTC).replace(microsecond=0), site.collected("slurm")
        wait_until(lambda: site.collected("slurm") > read + 10, site.last_words, LONGEST)  # of jobs that ended later
        wait_until(site.delivered, site.last_words, LONGEST)
        period = ("--from", site.first.isoformat(), "--to", until.isoformat())
        for task, least in (("history", JOBS), ("slurm", collected + 20)):
            [report] = json.loads(site.done("audit", task, *period, "--output", "json"))
            assert report["discrepancies"] == []
            assert sum(day["counts"].get("stored", 0) for day in report["days"]) >= least
