"""A day's work: a real daemon collects and serves, is backed up under load, loses its store, and heals.

The source is a cluster whose jobs end all the time; at the end the store has each of them once.
"""

import json
import re
import shutil
import sys
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Self

import pytest

import auditord
from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import PROGRAM, Site

SACCT: Final = Path(__file__).parents[1] / "many_jobs_sacct.py"
JOBS: Final = 40_000
SPAN: Final = timedelta(hours=2)
BEFORE: Final = timedelta(minutes=10)
"""So many jobs end within the span, which began so long ago."""
RECORD: Final[dict[str, Any]] = {  # Any: JSON
    "meta": None,
    "components": [],
    "start_time": "2026-01-01T00:00:00Z",
    "stop_time": "2026-01-01T01:00:00Z",
}


def sites(tmp_path: Path, store: str | None) -> Site:
    """A cluster whose jobs end all the time, and its daemon."""
    first = datetime.now(UTC).replace(microsecond=0) - BEFORE
    sacct = [sys.executable, "-S", str(SACCT), str(JOBS), f"{first.timestamp():.0f}", f"{SPAN.total_seconds():.0f}"]
    earliest = (first - timedelta(minutes=1)).isoformat()
    return Site(tmp_path, store=store, sacct=sacct, earliest_datetime=earliest, meta=[], interval="1s")


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return sites(tmp_path, request.getfixturevalue("postgres_url") if request.param == "postgresql" else None)


class Client:
    """Posts records one after another, and knows when each was answered."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._stop = Event()
        self._thread = Thread(target=self._post_all)
        self.answered: dict[str, datetime] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def has_posted(self, number: int) -> bool:
        """Tell if so many records have been answered."""
        return len(self.answered) >= number

    def _post_all(self) -> None:
        for number in count():
            if self._stop.is_set():
                return
            name = f"client-{number}"
            document = {**RECORD, "record_id": name}
            with suppress(OSError):
                self._post(document)
                self.answered[name] = datetime.now(UTC)

    def _post(self, document: dict[str, Any]) -> None:
        request = urllib.request.Request(  # noqa: S310 our own server
            f"{self._url()}/record", json.dumps(document).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 the same
            assert answer.status == 200


def test_a_store_that_is_lost_heals_from_a_backup_under_load(site: Site) -> None:
    place = site.path / "backups"
    with site.daemon() as daemon:
        site.wait_for_run()
        with Client(site.url) as client:
            backup_under_load(site, client, place)
            manifest = backup_under_load(site, client, place)
            collected = collected_jobs(site)
            wait_until(lambda: collected_jobs(site) > collected, site.last_words)
            daemon.kill()
    site.lose_the_store()
    refused = site.command("run")
    assert "auditord restore FOLDER" in refused.stderr
    done = site.command("restore", str(place))
    assert done.returncode == 0, done.stderr
    assert f"What clients posted between {manifest['made_at']} and" in done.stdout
    with site.daemon():
        wait_until(lambda: collected_jobs(site) > collected + 10, site.last_words)
        wait_until(site.delivered, site.last_words)
        found = [record["record_id"] for record in site.served()]
    assert len(found) == len(set(found))
    jobs = sorted(int(name.rpartition("-")[2]) for name in found if not name.startswith("client-"))
    assert jobs == list(range(1, len(jobs) + 1))
    assert len(jobs) > collected
    made_at = datetime.fromisoformat(manifest["made_at"])
    assert {name for name, at in client.answered.items() if at < made_at} <= set(found)


def backup_under_load(site: Site, client: Client, place: Path) -> Any:  # Any: JSON
    """The manifest of a backup that was made while records were posted and collected."""
    wait_until(partial(client.has_posted, len(client.answered) + 20), site.last_words)
    dump = () if site.store is None else ("--dump",)
    made = site.command("backup", str(place), *dump, "--output", "json")
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


def collected_jobs(site: Site) -> int:
    """The number of jobs that have been read of the source."""
    [(number,)] = site.rows("SELECT count(*) FROM seen WHERE task = 'slurm'") or [(0,)]
    return int(number)


def test_both_lost_is_as_the_backup_and_then_as_the_source(tmp_path: Path) -> None:
    site = sites(tmp_path, None)
    with site.daemon():
        site.wait_for_run()
        assert site.command("backup", str(site.path / "backups")).returncode == 0
    shutil.rmtree(site.state)
    assert site.command("restore", str(site.path / "backups")).returncode == 0
    assert_as_the_source(site)


def test_both_come_back_by_the_recipe_of_the_manual(tmp_path: Path, postgres_url: str) -> None:
    site = sites(tmp_path, postgres_url)
    with site.daemon():
        site.wait_for_run()
        follow_the_manual("pg_dump", site)
        dumped = collected_jobs(site)
        wait_until(lambda: collected_jobs(site) > dumped, site.last_words)
    shutil.rmtree(site.state)
    site.lose_the_store()
    follow_the_manual("pg_restore", site)
    assert_as_the_source(site)


def follow_the_manual(program: str, site: Site) -> None:
    """Type what the chapter says that has to be typed, with this program among it."""
    manual = (Path(auditord.__file__).parent / "manual/backup.md").read_text()
    [session] = re.findall(rf"```console\n([^`]*# {program} [^`]*)```", manual)
    typed = re.sub("^# ", "", session, flags=re.MULTILINE).replace("/backup/auditord", str(site.path / "backups"))
    typed = re.sub("^auditord", f"{PROGRAM} --config {site.file}", typed, flags=re.MULTILINE)
    done = site.run(("env", f"STORE_URL={site.store}", "bash", "-euxc", typed))
    assert done.returncode == 0, done.stderr


def assert_as_the_source(site: Site) -> None:
    """Let the collector and a daemon go on: each job of the source is there once."""
    assert site.command("collect", "slurm").returncode == 0
    with site.daemon():
        site.wait_for_run()
        jobs = sorted(int(record["record_id"].rpartition("-")[2]) for record in site.served())
    assert jobs == list(range(1, len(jobs) + 1))
    assert len(jobs) > 3_000
