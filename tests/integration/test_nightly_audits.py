"""The nightly audit and the gauges about the host, as ``/metrics`` of a daemon shows them."""

import json
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import anyio
import pytest
from click.testing import CliRunner

from auditord.actions import Observer
from auditord.audit.values import AuditReport, AuditRequest, DayCounts
from auditord.cli import auditord
from auditord.config.model import AuditSection
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.tasks.audits import NightlyAudits
from auditord.testing import make_record
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import AuditordError, Batch, CollectorContext, CollectorKind, RunConfig, hookimpl

NOW: Final = datetime(2026, 3, 10, 3, 23, tzinfo=UTC)


class Auditor:
    """Answers audits as a test says."""

    def __init__(self, **counts: dict[str, int]) -> None:
        self.days = [DayCounts(day, "A", each) for day, each in counts.items()]
        self.asked: list[AuditRequest] = []
        self.error: str | None = None
        self.raises: BaseException | None = None

    async def audit(self, request: AuditRequest, _: Observer | None) -> AuditReport:
        self.asked.append(request)
        if self.raises is not None:
            raise self.raises
        return AuditReport(request.instance, "", "", self.days, {}, [], error=self.error)


def sampled(audits: NightlyAudits) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value for family in audits.collect() for sample in family.samples
    }


async def one_night(audits: NightlyAudits, auditor: Auditor) -> None:
    nights = len(auditor.asked)
    async with anyio.create_task_group() as group:
        group.start_soon(audits.run, lambda: NOW)
        assert audits.turn.tick()
        with anyio.fail_after(60):
            while len(auditor.asked) == nights or audits.turn.running:  # noqa: ASYNC110 see below
                await anyio.sleep(0.01)  # the loop that is tested sets no event
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_night_is_counted_by_day_and_kept_over_a_restart(tmp_path: Path) -> None:
    auditor: Any = Auditor(
        **{"2026-03-08": {"stored": 5, "missing": 2, "unclosed": 1}, "2026-03-09": {"extra": 1, "quarantined": 4}}
    )
    expected = {
        ("auditord_source_missing_records", "slurm", "2026-03-07"): 0,
        ("auditord_source_missing_records", "slurm", "2026-03-08"): 3,
        ("auditord_source_missing_records", "slurm", "2026-03-09"): 4,
        ("auditord_audit_last_success_timestamp_seconds", "slurm"): NOW.timestamp(),
    }
    async with Spool.opened(tmp_path, lambda: NOW) as spool:
        audits = NightlyAudits(AuditSection(), lambda: ["slurm"], auditor, spool)
        assert sampled(audits) == {}
        await one_night(audits, auditor)
        assert sampled(audits) == expected
        restarted = NightlyAudits(AuditSection(), lambda: ["slurm"], auditor, spool)
        await restarted.restore()
        assert sampled(restarted) == expected
    [asked] = auditor.asked
    assert (asked.window.start, asked.window.stop) == (
        datetime(2026, 3, 7, tzinfo=UTC),
        datetime(2026, 3, 10, tzinfo=UTC),
    )
    assert (asked.repair, asked.replace) == (False, None)


@pytest.mark.anyio
async def test_a_night_that_failed_leaves_what_was_known(tmp_path: Path) -> None:
    auditor: Any = Auditor(**{"2026-03-08": {"missing": 2}})
    async with Spool.opened(tmp_path, lambda: NOW) as spool:
        audits = NightlyAudits(AuditSection(days=1), lambda: ["slurm"], auditor, spool)
        await one_night(audits, auditor)
        before = sampled(audits)
        auditor.error = "sacct was killed"
        await one_night(audits, auditor)
        assert sampled(audits) == before != {}


@pytest.mark.anyio
@pytest.mark.parametrize("error", [AuditordError("no sacct"), TypeError("a bug of the kind"), SystemExit(1)])
async def test_an_error_of_one_collector_ends_neither_the_daemon_nor_the_night(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    auditor: Any = Auditor()
    auditor.raises = error
    async with Spool.opened(tmp_path, lambda: NOW) as spool:
        await one_night(NightlyAudits(AuditSection(), lambda: ["broken", "slurm"], auditor, spool), auditor)
    assert [asked.instance for asked in auditor.asked] == ["broken", "slurm"]
    assert "the audit of broken failed" in caplog.text
    assert str(error) in caplog.text


@pytest.mark.anyio
async def test_a_result_that_cannot_be_stored_ends_no_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    auditor: Any = Auditor(**{"2026-03-08": {"missing": 2}})
    async with Spool.opened(tmp_path, lambda: NOW):
        pass
    async with Spool.opened_read_only(tmp_path, lambda: NOW) as spool:
        await one_night(NightlyAudits(AuditSection(), lambda: ["slurm"], auditor, spool), auditor)
    assert "2 records are missing" in caplog.text
    assert re.search(r"the audit of slurm failed: .*spool\.db", caplog.text)


def listing() -> ModuleType:
    async def collect(_: RunConfig, __: CollectorContext) -> AsyncGenerator[Batch, None]:
        yield Batch()

    @hookimpl
    def auditord_collectors() -> list[CollectorKind[Any]]:
        return [CollectorKind(name="listing", config=RunConfig, collect=collect, inventory=collect)]

    module = ModuleType("listing")
    setattr(module, "auditord_collectors", auditord_collectors)  # noqa: B010 modules have no such attribute
    return module


def fill(state: Path, silent: int = 0) -> None:
    async def work() -> None:
        records = [
            make_record(f"r{n}", start=datetime.now(UTC) - n * timedelta(days=1), site_id="A", user_id=f"u{n}")
            for n in range(1 + silent, 6 + silent)
        ]
        async with open_store(f"sqlite://{state / 'records.db'}", counted_keys=("site_id",)) as store:
            await store.add_all(records, Provenance(NOW), Duplicates.SAME_RUN, atomic=False)

    state.mkdir(mode=0o750)
    anyio.run(work)


def wait_for(daemon: TestDaemon, pattern: str) -> str:
    async def work() -> str:
        with anyio.fail_after(60):
            while not re.search(pattern, text := daemon.get("/metrics").decode()):  # noqa: ASYNC110 another thread's
                await anyio.sleep(0.05)
        return text

    return anyio.run(work)


def test_the_host_is_shown_and_users_are_not(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    wanted = ["RecordCount", "RecordCountPerSite", "RecordCountPerUser"]
    sections = {
        "collectors": {"jobs": {"kind": "listing", "interval": "5m"}},
        "metrics": {"database": {"interval": "20ms", "metrics": wanted}},
    }
    with running_daemon(tmp_path, sections, [listing()]) as daemon:
        text = wait_for(daemon, r'auditord_site_silence_seconds\{site="A"\}')
        wait_for(daemon, r'num_records_database_per_site\{site="A"\} 5')
        state = re.escape(str(daemon.state_dir))
        assert "auditord_store_up 1.0" in text
        assert re.search(rf'auditord_disk_free_bytes{{path="{state}"}} \S+', text)
        assert 'auditord_run_interval_seconds{kind="listing",section="collectors",task="jobs"} 300.0' in text
        assert 'auditord_site_usual_interval_seconds{site="A"} 86400.0' in text
        assert "per_user" not in daemon.get("/metrics").decode()
        assert "u1" not in daemon.get("/metrics").decode()


def test_a_daemon_outlives_the_file_system_of_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.tasks.gauges._HOST_SECONDS", 0.05)
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o750)
    with running_daemon(tmp_path, {"store": {"url": f"sqlite://{folder}/records.db"}}) as daemon:
        free = f'auditord_disk_free_bytes{{path="{folder}"}}'
        wait_for(daemon, re.escape(free))
        folder.rename(tmp_path / "unmounted")
        wait_for(daemon, rf"(?s)\A(?!.*{re.escape(free)})")
        assert daemon.get("/health_check") == b""


def test_a_gap_is_named_by_health_and_status(tmp_path: Path) -> None:
    fill(tmp_path / "state", silent=10)
    with running_daemon(tmp_path, {}) as daemon:
        wait_for(daemon, r'auditord_site_silence_seconds\{site="A"\}')
        [(site, last)] = json.loads(daemon.get("/api/v1/health"))["gaps"].items()
        assert (site, datetime.now(UTC) - datetime.fromisoformat(last) > timedelta(days=9)) == ("A", True)
        shown = CliRunner().invoke(auditord, ("status", "--config", str(tmp_path / "auditord.json")))
        assert f"gap         A: no job has ended there since {last}" in shown.stdout
    left = CliRunner().invoke(auditord, ("status", "--config", str(tmp_path / "auditord.json")))
    assert f"gap         A: no job has ended there since {last}" in left.stdout
