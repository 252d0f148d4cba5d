"""After a restore no plugin reports sums that are still too low."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from auditord.backup.notes import RESTORED, collectors_behind, note_restore
from auditord.spool import Spool
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import RunReport
from tests.backup_site import NOW, Site

HOUR = timedelta(hours=1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, None)


async def run(spool: Spool, task: str, ended: datetime, error: str | None = None) -> None:
    await spool.record_run(RunReport(task, "slurm", ended, timedelta(0), error, 0, 0, {}))


@pytest.mark.anyio
async def test_every_collector_must_have_a_good_run(site: Site) -> None:
    async with site.opened() as (spool, _):
        assert await collectors_behind(spool, ["a", "b"]) == ()
        await run(spool, "a", NOW - HOUR)
        note_restore(site.state, NOW)
        assert await collectors_behind(spool, ["a", "b"]) == ["a", "b"]
        await run(spool, "a", NOW + HOUR, "sacct is away")
        await run(spool, "b", NOW + HOUR)
        assert await collectors_behind(spool, ["a", "b"]) == ["a"]
        await run(spool, "a", NOW + HOUR)
        assert await collectors_behind(spool, ["a", "b"]) == []
        assert not (site.state / RESTORED).exists()


@pytest.mark.anyio
async def test_both_ways_of_restoring_are_noted(site: Site) -> None:
    await site.collect(3)
    await site.deliver()
    await site.backup()
    await site.collect(5)
    await site.deliver()
    site.lose_store()
    await site.continued()
    assert (site.state / RESTORED).exists()
    (site.state / RESTORED).unlink()
    await site.restored(force=True)
    assert (site.state / RESTORED).exists()


def sections(collector: dict[str, Any]) -> dict[str, Any]:
    return {"collectors": {"jobs": collector}, "plugins": {"look": {"kind": "open_records", "interval": "1s"}}}


def test_plugins_of_a_daemon_wait(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    (tmp_path / "state").mkdir()
    note_restore(tmp_path / "state", datetime.now(UTC))
    earliest = "2026-01-01T00:00:00Z"  # or its first run begins now, reads nothing, and is a good one
    fails: dict[str, Any] = {"kind": "slurm", "sacct": "false", "meta": [], "earliest_datetime": earliest}
    with running_daemon(tmp_path, sections(fails)) as daemon:
        report = daemon.finish_run("look")
        assert report.skipped == {"after the restore, jobs must have a good run first": 1}, report
    jobs.mkdir()
    with running_daemon(tmp_path, sections({"kind": "files", "folder": str(jobs)})) as daemon:
        assert daemon.finish_run("jobs").error is None
        while daemon.finish_run("look").skipped:
            pass
    assert not (tmp_path / "state" / RESTORED).exists()
