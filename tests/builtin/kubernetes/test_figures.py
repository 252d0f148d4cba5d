"""CPU time and memory from a Prometheus that is there, away, slow or wrong: nothing is lost or held up for long."""

import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from auditord_hookspecs import AuditordError, Record, Window
from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import NOW, make_pod, over, running
from tests.host_certificates import Authority

pytestmark = pytest.mark.anyio
CPU, MEMORY = "pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"


@dataclass
class FakePrometheus:
    """Answers instant queries.

    Args:
        values: of each series, by the metric's name.
        status: of every answer.
        body: instead of every answer.
        queries: what was asked.
    """

    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    status: int = 200
    body: str | None = None
    hang: bool = False
    token: str | None = None
    queries: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        if self.hang:
            raise web.HTTPGatewayTimeout
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized")
        if self.body is not None:
            return web.Response(status=self.status, text=self.body)
        found = [texts for name, texts in self.values.items() if name in request.query["query"]]
        samples: list[Any] = [{"metric": {}, "value": [1.5, text]} for texts in found for text in texts]
        data = {"resultType": "vector", "result": samples}
        return web.json_response({"status": "success", "data": data}, status=self.status)


@asynccontextmanager
async def prometheus(
    prom: FakePrometheus, prefix: str = "", trust: ssl.SSLContext | None = None
) -> AsyncGenerator[FakePrometheus]:
    app = web.Application()
    app.router.add_get(f"{prefix}/api/v1/query", prom.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
        scheme = "http" if trust is None else "https"
        prom.url = f"{scheme}://localhost:{runner.addresses[0][1]}{prefix}"
        yield prom
    finally:
        await runner.cleanup()


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


async def test_a_record_has_the_figures_of_its_end(site: Site) -> None:
    async with prometheus(FakePrometheus({CPU: ["1234.56"], MEMORY: ["987654321"]}), "/k8s") as prom:
        site.server.put(over(make_pod(), NOW - timedelta(seconds=1)))
        [record] = await site.collect(prometheus={"url": prom.url}, components="auditor")
    assert amounts(record) == {
        "naive_cpu_time": 2 * (3600 - 6),
        "memory_limit": 2**30,
        "cpu": 1235,
        "memory": 987654321,
    }
    assert [query["time"] for query in prom.queries] == [f"{(NOW - timedelta(seconds=1)).timestamp():.3f}"] * 2
    assert prom.queries[0]["query"] == f'sum(max_over_time({CPU}{{namespace="grid",pod="job1"}}[3600s]))'
    assert site.context.pending_values == {}


async def test_tls_and_a_token(site: Site, tmp_path: Path) -> None:
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority = Authority(tmp_path)
    host = authority.issue("localhost")
    trust.load_cert_chain(host.certificate, host.key)
    async with prometheus(FakePrometheus({CPU: ["1"], MEMORY: ["2"]}, token="s3cret"), trust=trust) as prom:  # noqa: S106 a test's
        site.server.put(over(make_pod(), NOW))
        options = {"url": prom.url, "tls": {"ca": authority.file}, "token": "s3cret"}
        [record] = await site.collect(prometheus=options)
    assert (amounts(record)["TotalCPU"], amounts(record)["MaxRSS"]) == (1, 2)


@pytest.mark.parametrize(
    "prom",
    [
        FakePrometheus(),
        FakePrometheus({CPU: ["1", "2"]}),
        FakePrometheus({CPU: ["NaN"], MEMORY: ["-1"]}),
        FakePrometheus(body="<html>", status=404),
        FakePrometheus(
            body=json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}), status=400
        ),
        FakePrometheus(body=json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}})),
    ],
)
async def test_no_figures_after_some_attempts_means_none(site: Site, prom: FakePrometheus) -> None:
    async with prometheus(prom):
        options = {"prometheus": {"url": prom.url}}
        site.server.put(over(make_pod(), NOW))
        for _ in range(2):
            assert await site.collect(**options) == []
            assert await site.collect(**options) == []  # not before the pause is over
            site.context.moment += timedelta(minutes=5)
        [record] = await site.collect(**options)
        assert "TotalCPU" not in amounts(record)
        assert len(prom.queries) == 6
        assert await site.collect(**options) == []


@pytest.mark.parametrize("prom", [FakePrometheus(hang=True), FakePrometheus(body="{}", status=503), None])
async def test_one_that_is_away_stops_nothing_and_is_waited_for(site: Site, prom: FakePrometheus | None) -> None:
    async with prometheus(prom or FakePrometheus()) as there:
        options = {"prometheus": {"url": there.url if prom else "http://127.0.0.1:9", "patience": "1h"}}
        for number in range(8):
            site.server.put(over(make_pod(f"job{number}"), NOW))
        assert await site.collect(**options) == []
        assert len(there.queries) <= 4  # one that is away is not asked about all of them
        site.context.moment += timedelta(minutes=30)
        assert await site.collect(**options) == []
        assert {value["attempts"] for value in site.context.pending_values.values()} == {0}
        site.context.moment += timedelta(minutes=30)
        assert len(await site.collect(**options)) == 8


async def test_one_that_comes_back_is_asked_again(site: Site) -> None:
    async with prometheus(FakePrometheus(status=500, body="")) as prom:
        options = {"prometheus": {"url": prom.url}}
        site.server.put(over(make_pod(), NOW))
        assert await site.collect(**options) == []
        prom.status, prom.body, prom.values = 200, None, {CPU: ["7"], MEMORY: ["8"]}
        assert [amounts(record)["TotalCPU"] for record in await site.collect(**options)] == [7]


async def test_a_clock_that_was_ahead_makes_no_pod_wait_for_longer(site: Site) -> None:
    async with prometheus(FakePrometheus({CPU: ["1"], MEMORY: ["2"]})) as prom:
        site.server.put(over(make_pod(), NOW))
        site.context.moment = NOW + timedelta(days=30)
        assert await site.collect(prometheus={"url": "http://127.0.0.1:9"}) == []
        site.context.moment = NOW + timedelta(hours=1)
        assert await site.collect(prometheus={"url": "http://127.0.0.1:9"}) == []
        [record] = await site.collect(prometheus={"url": prom.url})
    assert (amounts(record)["TotalCPU"], amounts(record)["MaxRSS"]) == (1, 2)


async def test_half_of_the_figures_are_kept_while_the_others_are_waited_for(site: Site) -> None:
    async with prometheus(FakePrometheus({CPU: ["7"]})) as prom:
        options = {"prometheus": {"url": prom.url}}
        site.server.put(over(make_pod(), NOW))
        assert await site.collect(**options) == []
        prom.values = {}
        site.context.moment += timedelta(minutes=5)
        assert await site.collect(**options) == []
        site.context.moment += timedelta(minutes=5)
        [record] = await site.collect(**options)
        assert (amounts(record)["TotalCPU"], "MaxRSS" in amounts(record)) == (7, False)


async def test_records_that_wait_go_out_without_the_api_server_and_without_the_option(site: Site) -> None:
    async with prometheus(FakePrometheus()) as prom:
        site.server.put(over(make_pod(), NOW))
        assert await site.collect(prometheus={"url": prom.url}) == []
        site.server.faults.down = True
        with pytest.raises(AuditordError, match="503"):
            await site.collect()
        assert [len(batch.records) for batch in site.context.kept][-1] == 1


async def test_dry_runs_and_periods_wait_for_nobody(site: Site) -> None:
    async with prometheus(FakePrometheus()) as prom:
        site.server.put(over(make_pod(), NOW))
        site.context.dry_run = True
        assert len(await site.collect(prometheus={"url": prom.url})) == 1
        site.context.dry_run, site.context.checkpoint = False, None
        site.context.remembered.clear()
        site.context.window = Window(NOW, NOW + timedelta(seconds=1))
        assert len(await site.collect(prometheus={"url": prom.url})) == 1
        assert site.context.pending_values == {}


async def test_a_period_leaves_pods_that_wait_to_the_next_run(site: Site) -> None:
    """A record without figures would be there first, and those that come later would only be noted as a difference."""
    async with prometheus(FakePrometheus(status=503, body="starting")) as prom:
        site.server.put(over(make_pod("waits"), NOW))
        site.server.put(over(make_pod("later"), NOW + timedelta(hours=1)))
        options = {"prometheus": {"url": prom.url}}
        assert await site.collect(**options) == []
        site.context.window = Window(NOW, NOW + timedelta(minutes=1))
        assert await site.collect(**options) == []
        assert {"waits for its metrics": 1} in [batch.skipped for batch in site.context.kept]
        site.context.window, prom.status, prom.body = None, 200, None
        prom.values = {CPU: ["7"], MEMORY: ["8"]}
        assert [amounts(record)["TotalCPU"] for record in await site.collect(**options)] == [7, 7]


async def test_open_records_wait_for_nothing(site: Site) -> None:
    async with prometheus(FakePrometheus()) as prom:
        site.server.put(running(make_pod()))
        [record] = await site.collect(prometheus={"url": prom.url}, open_records=True)
        assert (record.stop_time, prom.queries) == (None, [])
