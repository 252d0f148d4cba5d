"""Plugins work on the records that their option ``source`` names, and keep their state where it belongs."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from auditord.client import ClientError, CutAnswer, UnsupportedQuery
from auditord.contexts.plugins import open_records
from auditord.testing import EPOCH, make_record
from auditord_hookspecs import (
    AggregateQuery,
    ComponentUsage,
    PluginConfig,
    PluginContext,
    PluginKind,
    RecordQuery,
    hookimpl,
)
from auditord_hookspecs import query as queries
from auditord_hookspecs.sources import RemoteSource
from tests.fake_auditor import FakeAuditor, Fault, fake_auditor

JOBS = [make_record(f"job-{number}", start=EPOCH + number * timedelta(hours=1), cores=number) for number in range(4)]
SUMS = AggregateQuery(usage=(ComponentUsage("Cores"),))


@pytest.fixture
def auditor() -> Iterable[FakeAuditor]:
    with fake_auditor() as running:
        running.add(JOBS)
        yield running


def summing() -> ModuleType:
    async def run(config: PluginConfig, context: PluginContext) -> None:
        del config
        groups = (await context.records.aggregate(SUMS)).groups
        await context.save_state([*(context.state or []), groups[0].usage[0].sums.amount if groups else None])

    @hookimpl
    def auditord_plugins() -> Iterable[PluginKind[Any]]:
        yield PluginKind(name="summing", config=PluginConfig, run=run)

    module = ModuleType("acme_summing")
    vars(module)["auditord_plugins"] = auditord_plugins
    return module


def states(database: Path) -> dict[str, str]:
    with closing(sqlite3.connect(database)) as connection:
        return {
            task: bytes(value).decode() for task, value in connection.execute("SELECT task, value FROM plugin_state")
        }


def test_each_plugin_works_on_its_source(
    auditord_daemon: Callable[..., Any], auditor: FakeAuditor, tmp_path: Path
) -> None:
    plugins = {
        "here": {"kind": "summing", "run_at_start": True, "interval": "1d"},
        "there": {
            "kind": "summing",
            "run_at_start": True,
            "interval": "1d",
            "source": {"url": auditor.url, "timeout": "5s"},
        },
        "cut": {"kind": "summing", "run_at_start": True, "interval": "1d", "source": {"url": auditor.url + "/cut"}},
    }
    daemon = auditord_daemon({"plugins": plugins}, modules=[summing()])
    reports = {name: daemon.finish_run(name) for name in plugins}
    assert (reports["here"].error, reports["there"].error) == (None, None)
    assert "404" in reports["cut"].error
    assert states(tmp_path / "state/records.db") == {"here": "[null]"}
    assert states(tmp_path / "state/spool.db") == {"there": "[6]"}


async def ids(url: str, query: RecordQuery) -> list[str]:
    config = PluginConfig.model_validate({"source": {"url": url}})
    async with open_records(config, None) as records, records.stream(query) as stream:
        return [record.record_id async for record in stream]


def test_what_the_wire_contract_cannot_ask_for_is_looked_at_here(auditor: FakeAuditor) -> None:
    auditor.add([make_record("open", runtime=None, site_id="a"), make_record("closed", site_id="b")])
    order = queries.Order(queries.SortField.START)
    late = queries.TimeCompares(queries.TimeField.START, queries.Comparison.GTE, EPOCH)
    assert anyio.run(ids, auditor.url, RecordQuery(queries.AllOf((queries.IsOpen(), late)), order)) == ["open"]
    assert anyio.run(ids, auditor.url, RecordQuery(queries.MetaContainsAny("site_id", ("b", "c")), order)) == ["closed"]
    with pytest.raises(UnsupportedQuery):
        anyio.run(ids, auditor.url, RecordQuery(queries.IsOpen(), order, limit=1))


def test_a_cut_answer_raises(auditor: FakeAuditor) -> None:
    auditor.fault = lambda _method, _target: Fault.CUT
    with pytest.raises(CutAnswer):
        anyio.run(ids, auditor.url, RecordQuery())


@pytest.mark.parametrize("url", ["auditor:8000", "ftp://auditor", "http://me:secret@auditor", "http://auditor?x=1"])
def test_a_source_needs_the_url_of_a_server(url: str) -> None:
    with pytest.raises(ValidationError):
        PluginConfig.model_validate({"source": {"url": url}})


def test_the_token_is_not_printed() -> None:
    config = PluginConfig.model_validate({"source": {"url": "https://auditor:8443/", "token": "geheim"}})
    assert isinstance(config.source, RemoteSource)
    assert config.source.url == "https://auditor:8443"
    assert "geheim" not in repr(config)


def test_tls_files_that_cannot_be_read_fail_the_run(tmp_path: Path) -> None:
    async def work() -> None:
        tls = {"ca": str(tmp_path / "none.pem")}
        config = PluginConfig.model_validate({"source": {"url": "https://a", "tls": tls}})
        async with open_records(config, None):
            pass

    with pytest.raises(ClientError, match=r"none\.pem"):
        anyio.run(work)
