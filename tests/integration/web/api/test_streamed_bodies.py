"""Bodies are taken as they come: what they cost does not grow with them, and verdicts are counted, not piled up."""

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from auditord.web.api import adding
from auditord.web.bodies import LARGEST_RATIO
from auditord.web.requests import MAX_RECORD_SIZE
from tests.api_server import Api, api_server, record

pytestmark = pytest.mark.anyio

MANY = 12_000
ZEROS = b"[" + b"0," * (8 << 20) + b"0]"
ROUTES = [("POST", "/api/v1/records"), ("POST", "/records"), ("POST", "/record"), ("PUT", "/record")]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_server(tmp_path, max_body=64 << 20) as server:
        yield server


async def sent(api: Api, method: str, target: str, body: bytes) -> int:
    """The status of the answer; 0 where there was none."""
    try:
        return (await api.ask(method, target, body, {"Content-Encoding": "gzip"})).status
    except aiohttp.ClientError:
        return 0


@pytest.mark.parametrize(("method", "target"), ROUTES)
async def test_what_unpacks_to_a_thousand_times_its_size_costs_little(api: Api, method: str, target: str) -> None:
    body = gzip.compress(ZEROS, 9)
    assert len(ZEROS) > 2 * LARGEST_RATIO * len(body)
    tracemalloc.start()
    try:
        status = await sent(api, method, target, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == (413 if method == "PUT" or target == "/api/v1/records" else 0)
    assert peak < len(ZEROS)


@pytest.mark.parametrize("target", ["/records", "/api/v1/records"])
async def test_an_array_of_tiny_values_costs_little(api: Api, target: str) -> None:
    tracemalloc.start()
    try:
        answer = await api.ask("POST", target, ZEROS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status == 400
    assert b"values that are not records" in answer.body
    assert peak < 4 * len(ZEROS)


async def test_others_are_served_meanwhile(api: Api) -> None:
    lines = b"\n".join(msgspec.json.encode(record(f"r-{number:05}")) for number in range(MANY))
    sending = asyncio.create_task(api.post(lines, "application/x-ndjson"))
    asked = 0
    while not sending.done():
        assert (await api.get("/health_check")).status == 200
        asked += 1
    assert (await sending).json["counts"] == {"added": MANY}
    assert asked > 3


async def test_of_many_records_those_that_failed_are_listed(api: Api) -> None:
    records = [record(f"r-{number:05}") for number in range(MANY)]
    records[11_000] = record("bad", start_time="soon")
    answer = await api.post(records)
    assert (answer.status, answer.json["counts"]) == (207, {"added": MANY - 1, "invalid": 1})
    assert [(each["position"], each["verdict"]) for each in answer.json["verdicts"]] == [(11_000, "invalid")]
    assert answer.json["unlisted"] == MANY - 1


async def test_all_of_them_are_listed_if_that_is_asked_for(api: Api) -> None:
    answer = await api.ask("POST", "/api/v1/records?verdicts=all", [record(f"r-{n:05}") for n in range(MANY)])
    assert [each["position"] for each in answer.json["verdicts"]] == list(range(MANY))
    assert "unlisted" not in answer.json


async def test_of_few_records_only_the_failed_ones_if_that_is_asked_for(api: Api) -> None:
    answer = await api.ask("POST", "/api/v1/records?verdicts=failed", [record("a"), 7, record("b")])
    assert answer.json["counts"] == {"added": 2, "invalid": 1}
    assert [each["position"] for each in answer.json["verdicts"]] == [1]
    assert answer.json["unlisted"] == 2


async def test_another_request_is_refused(api: Api) -> None:
    answer = await api.ask("POST", "/api/v1/records?verdicts=some", [record("a")])
    assert (answer.status, answer.problem["parameter"]) == (400, "verdicts")


async def test_even_all_has_an_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "LISTED_ON_DEMAND", 5)
    answer = await api.ask("POST", "/api/v1/records?verdicts=all", [record(f"r-{number}") for number in range(9)])
    assert (len(answer.json["verdicts"]), answer.json["unlisted"], answer.json["counts"]) == (5, 4, {"added": 9})


async def test_after_too_much_nonsense_the_rest_is_not_looked_at(api: Api) -> None:
    answer = await api.post([record("a"), *[0] * (adding.MAX_INVALID + 5_000), record("b")])
    assert answer.status == 400
    assert "the rest was ignored" in answer.problem["detail"]
    counts = answer.problem["handled"]["counts"]
    assert counts["added"] == 1
    assert adding.MAX_INVALID < counts["invalid"] < adding.MAX_INVALID + 2_000
    assert await api.ids("") == ["a"]


async def test_what_was_stored_before_a_fault_is_reported(api: Api) -> None:
    text = msgspec.json.encode([record(f"r-{number:05}") for number in range(2_500)])
    answer = await api.post(text[:-1] + b"x")
    assert answer.status == 400
    assert answer.problem["handled"]["counts"] == {"added": 2_000}
    assert (await api.store.counts()).total == 2_000


async def test_a_line_that_never_ends_is_refused(api: Api) -> None:
    answer = await api.post(
        msgspec.json.encode(record("a")) + b"\n" + b"x" * (MAX_RECORD_SIZE + 1), "application/x-ndjson"
    )
    assert answer.status == 413
    assert f"more than {MAX_RECORD_SIZE} bytes" in answer.problem["detail"]
    assert "shorten" in answer.problem["remedy"]
    assert "max_body" not in answer.problem["remedy"]


@pytest.mark.parametrize("target", ["/records", "/api/v1/records"])
async def test_equal_records_unpack_however_small_they_were(api: Api, target: str) -> None:
    text = msgspec.json.encode([record(f"slurm-{number}") for number in range(20_000)])
    body = gzip.compress(text, 9)
    assert len(text) > 60 * len(body)
    answer = await api.ask("POST", target, body, {"Content-Encoding": "gzip"})
    assert answer.status == 200
    assert (await api.store.counts()).total == 20_000


async def test_a_large_body_on_the_wire_is_refused_as_a_small_one_is(api: Api) -> None:
    records = [record(f"r-{number:05}") for number in range(5_000)]
    records[4_321] = record("bad", components=7)
    answer = await api.ask("POST", "/records", records)
    assert answer.status == 400
    assert b"$[4321].components" in answer.body
    assert (await api.store.counts()).total == 0


async def test_what_a_large_body_holds_is_stored_whole(api: Api) -> None:
    assert (await api.ask("POST", "/records", [record(f"r-{number:05}") for number in range(5_000)])).status == 200
    assert (await api.store.counts()).total == 5_000
