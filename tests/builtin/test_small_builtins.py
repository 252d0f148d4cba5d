"""The sender ``local``, the run metrics and the plugin ``open_records``, each as its kind declares it."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from auditord.hooks import load_hooks
from auditord.testing import EPOCH, FakeCommandContext, FakePluginContext, FakeSenderContext, make_record
from auditord_builtin import local, open_records, run_metrics
from auditord_builtin.local import LocalConfig
from auditord_builtin.open_records import OpenRecordsConfig, open_records_command, open_too_long, report_open_records
from auditord_hookspecs import Insert, Record, RecordQuery, RecordsRejected, RunReport
from auditord_hookspecs.query import AllOf, Comparison, IsOpen, TimeCompares, TimeField


@pytest.mark.anyio
async def test_local_delivers_to_the_store_and_says_what_is_refused() -> None:
    (kind,) = local.auditord_senders()
    context = FakeSenderContext(refuse={"b": "another run"})
    entries = [Insert(make_record(name)) for name in "abc"]
    async with kind.open(LocalConfig(), context) as sender:
        await sender.send(entries[:1])
        with pytest.raises(RecordsRejected) as refused:
            await sender.send(entries)
    assert refused.value.reasons == {1: "another run"}
    assert context.delivered == [entries[0], entries[0], entries[2]]


class FakeDaemon:
    version = "1"
    records: Any = None


@pytest.mark.anyio
async def test_runs_are_counted_by_task_and_kind() -> None:
    registry, daemon = CollectorRegistry(), FakeDaemon()
    for instrument in run_metrics.auditord_metrics(daemon):
        registry.register(instrument)
    good = RunReport("slurm", "slurm", EPOCH, timedelta(seconds=2), records=5, quarantined=1, skipped={"pending": 3})
    await run_metrics.auditord_run_finished(daemon, good)
    await run_metrics.auditord_run_finished(daemon, RunReport("slurm", "slurm", EPOCH, timedelta(0), error="why"))
    await run_metrics.auditord_run_finished(FakeDaemon(), good)
    shown = set(generate_latest(registry).decode().splitlines())
    labels = 'kind="slurm",task="slurm"'
    assert shown >= {
        f"auditord_run_duration_seconds_count{{{labels}}} 2.0",
        f"auditord_run_failures_total{{{labels}}} 1.0",
        f"auditord_collected_records_total{{{labels}}} 5.0",
        f"auditord_quarantined_jobs_total{{{labels}}} 1.0",
        'auditord_skipped_jobs_total{kind="slurm",reason="pending",task="slurm"} 3.0',
    }


def open_for(days: int, name: str = "drone") -> Record:
    return make_record(name, start=EPOCH - timedelta(days=days), runtime=None)


def gauge() -> float:
    (family,) = open_too_long().collect()
    return next(sample.value for sample in family.samples if sample.labels == {"task": "test"})


@pytest.mark.anyio
async def test_records_open_too_long_are_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    (kind,) = open_records.auditord_plugins()
    context = FakePluginContext(stored=[open_for(9, f"drone-{number}") for number in range(25)])
    await kind.run(OpenRecordsConfig(older_than=timedelta(days=8)), context)
    assert gauge() == 25
    assert "drone-0 has been open since 2025-12-23T00:00:00+00:00" in caplog.text
    assert "drone-19" in caplog.text
    assert "drone-20" not in caplog.text
    assert "25 records have been open for too long" in caplog.text
    (query,) = context.asked
    limit = TimeCompares(TimeField.START, Comparison.LT, EPOCH - timedelta(days=8))
    assert query.where == AllOf((IsOpen(), limit))


@pytest.mark.anyio
async def test_a_dry_run_shows_and_changes_nothing() -> None:
    open_too_long().labels("test").set(7)
    context = FakePluginContext(stored=[open_for(9)], dry_run=True)
    await report_open_records(OpenRecordsConfig(), context)
    assert context.shown[1] == "1 record has been open for too long"
    assert gauge() == 7


class CutStream(FakePluginContext):
    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record], None]:
        del query

        async def each() -> AsyncIterator[Record]:
            yield open_for(9)
            raise ConnectionError("the store is away")

        yield each()


@pytest.mark.anyio
async def test_a_store_that_fails_half_way_changes_no_figure() -> None:
    open_too_long().labels("test").set(7)
    with pytest.raises(ConnectionError):
        await report_open_records(OpenRecordsConfig(), CutStream())
    assert gauge() == 7


def test_the_command_prints_records_as_json() -> None:
    host = FakeCommandContext({"open": ("open_records", OpenRecordsConfig())}, FakePluginContext(stored=[open_for(9)]))
    done = CliRunner().invoke(open_records_command, ["--output", "json"], obj=host)
    assert [(each["record_id"], each["stop_time"]) for each in json.loads(done.stdout)] == [("drone", None)]


def test_every_plugin_but_open_records_says_what_its_run_may_do() -> None:
    assert [name for name, kind in load_hooks([]).kinds.plugins.items() if kind.effect is None] == ["open_records"]
