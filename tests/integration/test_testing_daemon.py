"""The daemon that authors start inside their tests is the real one."""

from collections.abc import AsyncIterator, Iterable
from types import ModuleType
from urllib.error import HTTPError

import pytest

import auditord_builtin.local
from auditord.errors import ConfigurationError
from auditord.testing import make_record
from auditord.testing.daemon import StartDaemon
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, Quarantined, RunConfig, hookimpl


async def collect(config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    del config
    number = (context.checkpoint or 0) + 1
    yield Batch([make_record(f"job-{number}", user_id="alice")], [Quarantined("bad", {}, "no")], checkpoint=number)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[RunConfig]]:
    yield CollectorKind(name="counting", config=RunConfig, collect=collect)


@pytest.fixture
def module() -> ModuleType:
    module = ModuleType("counting")
    module.auditord_collectors = auditord_collectors  # type: ignore[attr-defined] # that is how modules work
    return module


def test_a_collector_runs_and_its_records_are_served(auditord_daemon: StartDaemon, module: ModuleType) -> None:
    daemon = auditord_daemon({"collectors": {"jobs": {"kind": "counting"}}}, modules=[module])
    report = daemon.finish_run("jobs")
    assert (report.error, report.records, report.quarantined) == (None, 1, 1)
    assert [record.record_id for record in daemon.records("meta[user_id][c]=alice")] == ["job-1"]
    with pytest.raises(HTTPError, match="404"):
        daemon.get("/nowhere")


def test_a_batch_of_wrong_types_names_the_collector_and_stores_nothing(auditord_daemon: StartDaemon) -> None:
    async def collect(_: RunConfig, __: CollectorContext) -> AsyncIterator[Batch]:
        yield Batch([make_record("job-1")], skipped=1)  # type: ignore[arg-type] # the mistake

    kind = CollectorKind(name="counting", config=RunConfig, collect=collect)
    module = ModuleType("miscounting")
    module.auditord_collectors = hookimpl(lambda: [kind])  # type: ignore[attr-defined] # that is how modules work
    daemon = auditord_daemon({"collectors": {"jobs": {"kind": "counting"}}}, modules=[module])
    report = daemon.finish_run("jobs")
    assert (report.error, report.records) == ("TypeError: jobs: skipped of a batch is 1, not a Mapping", 0)
    assert daemon.records() == []


def test_the_next_daemon_goes_on_where_the_last_one_stopped(auditord_daemon: StartDaemon, module: ModuleType) -> None:
    for expected in (["job-1"], ["job-1", "job-2"]):
        daemon = auditord_daemon({"collectors": {"jobs": {"kind": "counting"}}}, modules=[module])
        daemon.finish_run("jobs")
        assert [record.record_id for record in daemon.records("sort_by[asc]=record_id")] == expected


def test_what_the_configuration_says_wrongly_is_said_to_the_test(auditord_daemon: StartDaemon) -> None:
    with pytest.raises(ConfigurationError, match="counting"):
        auditord_daemon({"collectors": {"jobs": {"kind": "counting"}}})


def test_a_module_that_is_installed_too_is_loaded_once(auditord_daemon: StartDaemon) -> None:
    daemon = auditord_daemon(modules=[auditord_builtin.local])
    assert daemon.records() == []
