"""Bulk adding under /api/v1: a verdict per record, whatever becomes of the others."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auditord.duplicates import Duplicates
from auditord_hookspecs import Insert
from tests.api_server import AWAY, Answer, Api, api_server, record

pytestmark = pytest.mark.anyio

NEGATIVE: dict[str, object] = {"name": "Cores", "amount": -1, "scores": []}
OPEN = record("drone", stop_time=None)
STORED = [record("run"), OPEN, record("site")]
SUBMITTED = [
    record("new"),
    record("run"),  # the same
    record("run", meta={"site_id": ["elsewhere"]}),  # the same run with other content
    record("run", start_time="2025-01-01T00:00:00Z"),  # another run
    record("drone"),  # closes it
    record("drone", stop_time=None),  # late news
    record("new"),  # the same as the first one
    record("twice", start_time="2026-01-01T00:00:00Z"),
    record("twice", start_time="2025-01-01T00:00:00Z"),
]
VERDICTS = {
    Duplicates.SAME_RUN: ["added", "same", "different", "exists", "closed", "same", "same", "added", "exists"],
    Duplicates.REFUSE: ["added", "exists", "exists", "exists", "exists", "exists", "exists", "added", "exists"],
    Duplicates.IGNORE: ["added", "same", "different", "different", "closed", "same", "same", "added", "different"],
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_server(tmp_path) as server:
        yield server


def verdicts(answer: Answer) -> list[str]:
    found = answer.json["verdicts"]
    assert [each["position"] for each in found] == list(range(len(found)))
    counts = {name: [each["verdict"] for each in found].count(name) for name in answer.json["counts"]}
    assert answer.json["counts"] == counts
    assert sum(counts.values()) == len(found)
    return [each["verdict"] for each in found]


@pytest.mark.parametrize("duplicates", Duplicates)
@pytest.mark.parametrize("content_type", ["application/json", "application/x-ndjson; charset=utf-8"])
async def test_every_record_has_its_verdict(tmp_path: Path, duplicates: Duplicates, content_type: str) -> None:
    async with api_server(tmp_path, duplicates=duplicates) as api:
        assert verdicts(await api.post(STORED)) == ["added"] * 3
        body = msgspec.json.encode(SUBMITTED)
        if "ndjson" in content_type:
            body = b"\r\n\n".join(map(msgspec.json.encode, SUBMITTED))
        answer = await api.post(body, content_type)
        assert verdicts(answer) == VERDICTS[duplicates]
        assert [each["record_id"] for each in answer.json["verdicts"]] == [each["record_id"] for each in SUBMITTED]
        assert answer.status == (200 if "exists" not in VERDICTS[duplicates] else 207)
        refused = [each for each in answer.json["verdicts"] if each["verdict"] == "exists"]
        assert all("another start time" in each["reason"] for each in refused)
        assert sorted(await api.ids("")) == ["drone", "new", "run", "site", "twice"]
        assert (await api.ids("open=true") == []) is (duplicates is not Duplicates.REFUSE)


async def test_invalid_records_are_named_and_harm_no_others(api: Api) -> None:
    bad: list[Any] = [
        record("no start", start_time=None),
        record("amount", components=[NEGATIVE]),
        {"nothing": 1},
        7,
        record("zone", start_time="2026-01-01T00:00:00"),
        record("", start_time="2026-01-01T00:00:00Z"),
        record("nul\0"),
    ]
    mixed = [item for pair in zip(bad, [record(f"good-{n}") for n in range(len(bad))], strict=True) for item in pair]
    answer = await api.post(mixed)
    assert answer.status == 207
    assert verdicts(answer) == ["invalid", "added"] * len(bad)
    invalid = [each for each in answer.json["verdicts"] if each["verdict"] == "invalid"]
    assert [each.get("record_id") for each in invalid] == ["no start", "amount", None, None, "zone", "", "nul\0"]
    assert all(each["reason"] for each in invalid)
    assert "start_time" in invalid[0]["reason"]
    assert await api.ids("") == [f"good-{n}" for n in range(len(bad))]


async def test_a_broken_line_harms_no_others(api: Api) -> None:
    lines = [msgspec.json.encode(record("a")), b'{"record_id":"cut', b"\xff\xfe", msgspec.json.encode(record("b"))]
    answer = await api.post(b"\n".join(lines), "application/x-ndjson")
    assert verdicts(answer) == ["added", "invalid", "invalid", "added"]
    assert await api.ids("") == ["a", "b"]


async def test_a_deeply_nested_record_is_invalid_and_nothing_else(api: Api) -> None:
    lines = [b'{"record_id":' + b"[" * 100_000, msgspec.json.encode(record("b"))]
    assert verdicts(await api.post(b"\n".join(lines), "application/x-ndjson")) == ["invalid", "added"]


@pytest.mark.parametrize("body", [b"", b"{", b"7", msgspec.json.encode(record("one")), b"[1,", b"[" * 100_000, b"\xff"])
async def test_a_body_that_is_no_array_is_refused_whole(api: Api, body: bytes) -> None:
    answer = await api.post(body)
    assert (answer.status, answer.problem["parameter"]) == (400, "body")
    assert "array" in answer.problem["remedy"]
    assert await api.ids("") == []


async def test_nothing_to_add(api: Api) -> None:
    for answer in (await api.post([]), await api.post(b"\n\n", "application/x-ndjson")):
        assert (answer.status, answer.json) == (200, {"counts": {}, "verdicts": []})


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/xml"])
async def test_other_content_types_are_refused(api: Api, content_type: str) -> None:
    answer = await api.ask("POST", "/api/v1/records", b"[]", {"Content-Type": content_type})
    assert (answer.status, answer.problem["parameter"]) == (415, "Content-Type")
    assert "application/x-ndjson" in answer.problem["remedy"]


async def test_packed_bodies(api: Api) -> None:
    packed = gzip.compress(msgspec.json.encode([record("packed")]))
    assert verdicts(await api.ask("POST", "/api/v1/records", packed, {"Content-Encoding": "gzip"})) == ["added"]
    bomb = gzip.compress(b"[" + b" " * (2 << 20) + b"]")
    assert (await api.ask("POST", "/api/v1/records", bomb, {"Content-Encoding": "gzip"})).problem["status"] == 413
    broken = await api.ask("POST", "/api/v1/records", b"xx", {"Content-Encoding": "gzip"})
    assert (broken.status, broken.problem["parameter"]) == (415, "Content-Encoding")


async def test_a_body_that_is_too_large_names_the_option(api: Api) -> None:
    answer = await api.post(b"[" + b" " * (2 << 20) + b"]")
    assert (answer.status, "api.max_body" in answer.problem["remedy"]) == (413, True)


async def test_many_records_at_once(tmp_path: Path) -> None:
    async with api_server(tmp_path, max_body=64 << 20) as api:
        many = [record(f"r-{number:05}") for number in range(5_500)]
        many[4_321] = record("bad", start_time="soon")
        answer = await api.post(many)
        assert answer.json["counts"] == {"added": 5_499, "invalid": 1}
        assert answer.json["verdicts"][4_321]["verdict"] == "invalid"
        lines = (await api.get("/api/v1/records?format=ndjson")).lines
        assert [each["record_id"] for each in lines] == [
            each["record_id"] for each in many if each["record_id"] != "bad"
        ]


async def test_records_are_queued_while_the_store_is_away(api: Api) -> None:
    api.faults.store = AWAY
    answer = await api.post([record("a"), record("bad", start_time="soon"), record("b")])
    assert (answer.status, verdicts(answer)) == (207, ["queued", "invalid", "queued"])
    entries = [queued.entry for queued in await api.spool.claim("local", 10)]
    assert [entry.record.record_id for entry in entries if isinstance(entry, Insert)] == ["a", "b"]
    assert api.registry.get_sample_value("auditord_http_spooled_records_total") == 2


async def test_what_nobody_can_keep_is_never_called_kept(tmp_path: Path) -> None:
    async with api_server(tmp_path, max_body=64 << 20) as api:
        api.faults.stores_left, api.faults.spool = 2, AWAY
        answer = await api.post([record(f"r-{number:05}") for number in range(5_000)])
        assert answer.status == 503
        assert "not handled" in answer.problem["remedy"]
        handled = answer.problem["handled"]["verdicts"]
        assert [each["verdict"] for each in handled] == ["added"] * 2_000
        assert (await api.store.counts()).total == 2_000


async def test_without_a_sender_nothing_is_queued(tmp_path: Path) -> None:
    async with api_server(tmp_path, destinations=()) as api:
        api.faults.store = AWAY
        answer = await api.post([record("a")])
        assert (answer.status, answer.problem["handled"]["verdicts"]) == (503, [])


async def test_a_record_that_the_database_refuses_is_invalid_alone(api: Api) -> None:
    far = record("far", start_time="0001-01-01T00:00:00Z", stop_time="9999-12-31T23:59:59Z")
    answer = await api.post([record("a"), far, record("b")])
    assert verdicts(answer) == ["added", "added", "added"]  # both ends of time fit


async def test_large_records_are_counted(api: Api) -> None:
    await api.post([record("large", meta={"k": ["v" * 250] * 50})])
    assert api.registry.get_sample_value("auditord_http_large_records_total") == 1
