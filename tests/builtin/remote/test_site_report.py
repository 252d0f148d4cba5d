"""The plugin ``site_report``, against a hub that answers as it is made to."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from auditord.testing import FakePluginContext
from auditord_builtin.remote.site_report import SiteReportConfig, report
from auditord_hookspecs import AuditordError, Component, Record

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def job(name: str, day: int, month: int = 11) -> Record:
    start = datetime(2026, month, day, tzinfo=UTC)
    return Record(name, start, (Component("Cores", 4, ()),), start.replace(hour=1), {"site_id": ("A",)})


RECORDS = [job("a", 20), job("b", 20), job("c", 23), job("old", 1, month=9)]


class Hub:
    """A server that says which days differ."""

    def __init__(self) -> None:
        self.differing: list[object] = []
        self.status = 200
        self.received: list[tuple[str, object]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.received.append((request.path, await request.json()))
        comparison = {"records": 3, "missing": len(self.differing), "extra": 0, "differing": self.differing}
        return web.json_response(comparison, status=self.status)

    def lack(self, day: date) -> None:
        sums = {"site": "A", "day": day.isoformat()}
        self.differing = [
            {"reported": {**sums, "records": 2, "core_seconds": 28_800}, "stored": {**sums, "records": 1}}
        ]


@pytest.fixture
async def hub() -> AsyncIterator[tuple[Hub, SiteReportConfig]]:
    one, application = Hub(), web.Application()
    application.router.add_put("/api/v1/site_reports/{reporter}", one.answer)
    async with TestServer(application) as server:
        yield one, SiteReportConfig(url=str(server.make_url("/")), reporter="ce 1", days=30)


async def test_it_reports_days_and_not_records(hub: tuple[Hub, SiteReportConfig]) -> None:
    there, config = hub
    await report(config, FakePluginContext(stored=RECORDS, moment=NOW))
    [(path, body)] = there.received
    assert path == "/api/v1/site_reports/ce 1"
    sums = {"site": "A", "runtime": 7_200, "core_seconds": 28_800, "records": 2, "day": "2026-11-20"}
    today = {"site": "A", "runtime": 3_600, "core_seconds": 14_400, "records": 1, "day": "2026-11-23"}
    assert body == {"sent_at": "2026-11-23T12:00:00Z", "first_day": "2026-10-25", "days": [sums, today]}


async def test_a_past_day_that_lacks_records_is_said_once(
    hub: tuple[Hub, SiteReportConfig], caplog: pytest.LogCaptureFixture
) -> None:
    there, config = hub
    context = FakePluginContext(stored=RECORDS, moment=NOW)
    there.lack(date(2026, 11, 20))
    await report(config, context)
    await report(config, context)
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "A on 2026-11-20: 2 records and 28,800 core seconds here, 1 record and 0 core seconds at the hub" in said
    there.differing = []
    await report(config, context)
    assert context.state == []


async def test_what_came_today_may_be_on_its_way(
    hub: tuple[Hub, SiteReportConfig], caplog: pytest.LogCaptureFixture
) -> None:
    there, config = hub
    there.lack(NOW.date())
    await report(config, FakePluginContext(stored=RECORDS, moment=NOW))
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


async def test_a_dry_run_sends_nothing(hub: tuple[Hub, SiteReportConfig]) -> None:
    there, config = hub
    context = FakePluginContext(stored=RECORDS, moment=NOW, dry_run=True)
    await report(config, context)
    assert (there.received, context.shown) == ([], ["would report 3 records on 2 days of sites"])


@pytest.mark.parametrize("status", [403, 404, 503])
async def test_a_hub_that_refuses_fails_the_run(hub: tuple[Hub, SiteReportConfig], status: int) -> None:
    there, config = hub
    there.status = status
    with pytest.raises(AuditordError, match=str(status)):
        await report(config, FakePluginContext(stored=RECORDS, moment=NOW))


async def test_a_server_that_is_no_hub_fails_the_run(hub: tuple[Hub, SiteReportConfig]) -> None:
    there, config = hub
    there.differing = [json.loads("{}")]
    with pytest.raises(AuditordError, match="without a comparison"):
        await report(config, FakePluginContext(stored=RECORDS, moment=NOW))
