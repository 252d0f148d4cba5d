"""Reading under /api/v1: filters, forms, pages, problems."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from auditord_hookspecs.wire import decode_record, encode_record
from tests.api_server import AWAY, Api, api_server, record

pytestmark = pytest.mark.anyio

RECORDS = [
    record("plain"),
    record("open", stop_time=None, start_time="2026-01-02T00:00:00Z", meta={"site_id": ["B", "C"], "vo": ["x"]}),
    record("a/b c,d", start_time="2026-01-03T00:00:00.5Z", stop_time="2026-01-03T00:00:01Z", meta=None),
    record("back\\slash", start_time="2026-01-04T00:00:00Z", stop_time="2026-01-05T00:00:00Z", meta={"vo": ["y", "z"]}),
    record("empty", start_time="2026-01-05T00:00:00Z", stop_time="2026-01-05T02:00:00Z", meta={"vo": []}),
]
IN_ORDER = [str(each["record_id"]) for each in RECORDS]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_server(tmp_path) as server:
        answer = await server.post(RECORDS)
        assert answer.json["counts"] == {"added": len(RECORDS)}
        yield server


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", IN_ORDER),
        ("sort_by[desc]=start_time", IN_ORDER[::-1]),
        ("open=true", ["open"]),
        ("open=false&start_time[lt]=2026-01-04T00:00:00Z", ["plain", "a/b c,d"]),
        ("record_id=a%2Fb+c,d", ["a/b c,d"]),
        ("meta[site_id][any][]=A&meta[site_id][any][]=C", ["plain", "open"]),
        ("meta[site_id][any]=C", ["open"]),
        ("meta[vo][any][0]=z&meta[vo][any][1]=x", ["open", "back\\slash"]),
        ("meta[vo][absent]=true", ["plain", "a/b c,d"]),
        ("meta[site_id][absent]=true&meta[vo][c][]=z", ["back\\slash"]),
        ("meta[vo][c][]=y&meta[vo][c][]=z", ["back\\slash"]),
        ("meta[vo][dnc][]=x", ["back\\slash", "empty"]),
        ("component[Cores][gte]=8&runtime[gt]=3600", ["back\\slash", "empty"]),
        ("component[Cores][gt]=8", []),
        ("stop_time[gte]=2026-01-05T00:00:00Z", ["back\\slash", "empty"]),
        ("limit=2", IN_ORDER[:2]),
        ("cursor=2026-01-02T00:00:00Z,open", IN_ORDER[2:]),
        ("cursor=2026-01-02T00:00:00Z,open&sort_by[desc]=start_time", ["plain"]),
        ("limit=10001", IN_ORDER),
    ],
)
async def test_filters(api: Api, query: str, expected: list[str]) -> None:
    assert await api.ids(query) == expected
    lines = await api.get(f"/api/v1/records?format=ndjson&{query}")
    assert [each["record_id"] for each in lines.lines] == expected


@pytest.mark.parametrize(
    ("query", "parameter", "words"),
    [
        ("nonsense=1", "nonsense", "unknown field"),
        ("limit=0", "limit", "from 1 to"),
        ("limit=0&format=ndjson", "limit", "from 1 to"),
        ("limit=", "limit", "has no value"),
        ("record_id=", "record_id", "has no value"),
        ("start_time[gte]=", "start_time", "has no value"),
        ("open", "open", "has no value"),
        ("limit=x", "limit", "not an integer"),
        ("sort_by[asc]=stop_time&sort_by[desc]=stop_time", "sort_by", "once"),
        ("sort_by[asc]=nonsense", "sort_by", "expected one of"),
        ("cursor=yesterday", "cursor", "such as 2026-01-31T12:00:00Z,slurm-17"),
        ("cursor=2026-01-02T00:00:00Z,", "cursor", "empty"),
        ("cursor=yesterday,x", "cursor", "time with zone"),
        ("format=csv", "format", "json or ndjson"),
        ("open=maybe", "open", "true or false"),
        ("open[x]=true", "open", "without brackets"),
        ("meta[vo][like][]=x", "meta", "c, dnc, any, absent"),
        ("meta[vo][absent]=false", "meta", "true"),
        ("meta[vo][any][0]=x&meta[vo][any][0]=y", "meta", "more than once"),
        ("meta[vo][any][]=", "meta", "has no value"),
        ("start_time[gte]=2026-01-01T00:00:00+01:00", "start_time", "time with zone"),
        ("&".join(f"meta[vo][any][]={number}" for number in range(300)), None, "at most 250"),
        ("start_time[gte=x", None, "do not match"),
        ("record_id=%ff", None, "UTF-8"),
    ],
)
async def test_a_wrong_parameter_is_named(api: Api, query: str, parameter: str | None, words: str) -> None:
    answer = await api.get(f"/api/v1/records?{query}")
    assert answer.status == 400
    problem = answer.problem
    assert (problem.get("parameter"), words in problem["detail"]) == (parameter, True), problem
    assert "openapi" in problem["remedy"]


async def test_pages_lead_on_until_the_end(api: Api) -> None:
    target, pages = "/api/v1/records?limit=2&component[Cores][gte]=1", 0
    found: list[str] = []
    while target:
        answer = (await api.get(target)).json
        found += [each["record_id"] for each in answer["records"]]
        target, pages = answer["next"], pages + 1
    assert (found, pages) == (IN_ORDER, 3)


async def test_the_next_page_is_asked_for_as_the_first_one_was(api: Api) -> None:
    answer = await api.get("/api/v1/records?limit=1&meta[vo][absent]=true&&start_time[gte]=2026-01-01T00%3A00%3A00Z")
    assert answer.json["next"] == (
        "/api/v1/records?limit=1&meta[vo][absent]=true&start_time[gte]=2026-01-01T00%3A00%3A00Z"
        "&cursor=2026-01-01T00:00:00Z,plain"
    )
    again = await api.get(answer.json["next"])
    assert [each["record_id"] for each in again.json["records"]] == ["a/b c,d"]
    assert again.json["next"] is None


async def test_a_full_last_page_has_no_next(api: Api) -> None:
    assert (await api.get(f"/api/v1/records?limit={len(RECORDS)}")).json["next"] is None


async def test_records_are_as_they_are_on_the_wire(api: Api) -> None:
    (line,) = (await api.get("/api/v1/records?format=ndjson&record_id=back%5Cslash")).body.splitlines()
    one = await api.get("/api/v1/records/back%5Cslash")
    page = await api.get("/api/v1/records?record_id=back%5Cslash")
    assert line == one.body == (await api.get("/record/back%5Cslash")).body
    assert page.body == b'{"records":[' + line + b'],"next":null}'
    assert encode_record(decode_record(line)) == line


@pytest.mark.parametrize(
    ("accept", "query", "content_type"),
    [
        ("*/*", "", "application/json"),
        ("application/x-ndjson", "", "application/x-ndjson"),
        ("application/x-ndjson", "format=json", "application/json"),
        ("application/json", "format=ndjson", "application/x-ndjson"),
    ],
)
async def test_the_form_is_chosen(api: Api, accept: str, query: str, content_type: str) -> None:
    answer = await api.get(f"/api/v1/records?{query}", Accept=accept)
    assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)


async def test_nothing_found(api: Api) -> None:
    assert (await api.get("/api/v1/records?record_id=none")).json == {"records": [], "next": None}
    assert (await api.get("/api/v1/records?record_id=none&format=ndjson")).body == b""


async def test_another_order_than_that_of_pages_comes_as_lines(api: Api) -> None:
    for query in ("sort_by[desc]=record_id&limit=2", "sort_by[desc]=record_id&limit=2&format=json"):
        answer = await api.get(f"/api/v1/records?{query}")
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        ids = [json.loads(line)["record_id"] for line in answer.body.splitlines()]
        assert ids == sorted(IN_ORDER, reverse=True)[:2]
    behind = await api.get("/api/v1/records?sort_by[desc]=record_id&cursor=2026-01-02T00:00:00Z,open")
    ids = [json.loads(line)["record_id"] for line in behind.body.splitlines()]
    assert ids == sorted(IN_ORDER[2:], reverse=True)


@pytest.mark.parametrize("record_id", IN_ORDER)
async def test_one_record(api: Api, record_id: str) -> None:
    answer = await api.get(f"/api/v1/records/{quote(record_id, safe='')}")
    assert (answer.status, answer.json["record_id"]) == (200, record_id)
    assert list(answer.json) == ["record_id", "meta", "components", "start_time", "stop_time", "runtime"]


@pytest.mark.parametrize("record_id", ["none", "%20", "x" * 300, "%00"])
async def test_no_such_record(api: Api, record_id: str) -> None:
    answer = await api.get(f"/api/v1/records/{record_id}")
    assert (answer.status, answer.problem["parameter"]) == (404, "record_id")


async def test_an_id_that_is_no_text(api: Api) -> None:
    answer = await api.get("/api/v1/records/%ff")
    assert (answer.status, "UTF-8" in answer.problem["detail"]) == (404, True)


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/api/v2/records", "/api/v1/records/a/b", "/api/v1/nothing"])
async def test_unknown_paths(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, "/openapi.json" in answer.problem["remedy"]) == (404, True)


async def test_wrong_methods(api: Api) -> None:
    answer = await api.ask("DELETE", "/api/v1/records")
    assert (answer.status, answer.headers["Allow"], answer.problem["remedy"]) == (
        *(405, "GET, POST"),
        "use one of: GET, POST",
    )
    wire = await api.ask("DELETE", "/records")
    assert (wire.status, wire.body, wire.headers["Allow"]) == (405, b"", "GET, POST")
    assert (await api.get("/nothing")).headers.get("Content-Type") is None


@pytest.mark.parametrize("target", ["/api/v1/records", "/api/v1/records?format=ndjson", "/api/v1/records/plain"])
async def test_a_store_that_is_away_is_said_to_be(api: Api, target: str) -> None:
    api.faults.store = AWAY
    answer = await api.get(target)
    assert (answer.status, "/srv" in answer.problem["detail"]) == (503, False)
    assert "again later" in answer.problem["remedy"]


async def test_a_store_that_fails_at_the_first_page(api: Api) -> None:
    api.faults.after_pages = 0
    for form in ("json", "ndjson"):
        assert (await api.get(f"/api/v1/records?format={form}")).status == 503


async def test_a_client_that_stops_reading_stops_the_query(api: Api) -> None:
    api.faults.endless, before = True, -1
    size = len((await api.get("/record/plain")).body) * len(RECORDS)
    request = api.session.get("/api/v1/records?format=ndjson", timeout=aiohttp.ClientTimeout(60))
    async with request as answer:
        await answer.content.readexactly(1 << 20)
        while before != api.faults.pages_given:  # until every buffer is full
            before = api.faults.pages_given
            await asyncio.sleep(0.2)
        assert before * size < 32 << 20
        answer.close()
    async with asyncio.timeout(20):
        while not api.faults.streams_left:  # noqa: ASYNC110 what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("form", ["format=json&limit=10000", "format=ndjson"])
async def test_an_answer_that_fails_in_the_middle_is_cut_off(tmp_path: Path, form: str) -> None:
    async with api_server(tmp_path) as api:
        padding: dict[str, Any] = {"k": ["v" * 200] * 4}
        await api.post([record(f"{number:04}", meta=padding) for number in range(1_000)])
        assert len((await api.get(f"/api/v1/records?{form}")).body) > 800_000
        api.faults.after_pages = 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await api.get(f"/api/v1/records?{form}")
        labels = {"reason": "store_failed"}
        assert api.registry.get_sample_value("auditord_http_aborted_connections_total", labels) == 1
