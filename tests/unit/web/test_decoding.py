"""Large arrays are decoded like small ones, with pauses for everybody else."""

import asyncio
from typing import Any

import msgspec
import pytest

from auditord.web.bodies import BodyTooLarge
from auditord.web.elements import LARGEST_RECORD, decoded, decoded_body
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.wire import decode_records
from tests.api_server import record

pytestmark = pytest.mark.anyio

MANY = [record(f"r-{number:05}") for number in range(3_000)]


def text(records: list[Any]) -> bytes:
    return msgspec.json.encode(records)


async def test_a_large_array_is_what_it_would_be_at_once() -> None:
    large = [*MANY, record("long", meta={"k": ["v" * 200] * 50})]
    found = await decoded_body(text(large))
    assert found.records == decode_records(text(large))
    assert [each.record_id for each in found.longish] == ["long"]


@pytest.mark.parametrize(
    "bad",
    [record("bad", runtime="x", start_time="soon"), record("bad", components=7), {"record_id": "bad"}, 7],
)
async def test_what_is_wrong_is_said_as_of_a_small_one(bad: object) -> None:
    with pytest.raises(InvalidRecord) as small:
        decode_records(text([*MANY[:7], bad]))
    with pytest.raises(InvalidRecord) as large:
        await decoded([text([*MANY[:7], bad, *MANY])])
    assert str(large.value).startswith(str(small.value))
    assert "$[7]" in str(large.value)


@pytest.mark.parametrize("body", [b"{}", text(MANY)[:-1], text(MANY) + b"x", b"[" + b" " * 1_000_000])
async def test_what_is_no_array_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidRecord):
        await decoded_body(body)


async def test_others_have_their_turns_meanwhile() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await decoded_body(text(MANY))
    task.cancel()
    assert turns >= len(MANY) / 100


async def test_what_would_take_many_times_its_size_is_refused() -> None:
    bad = record("bad", meta={"k": ["a"] * 200_000})
    with pytest.raises(BodyTooLarge, match="small values"):
        await decoded_body(text([bad, bad]))


async def test_so_is_a_record_that_nobody_would_write() -> None:
    with pytest.raises(BodyTooLarge, match="more than"):
        await decoded_body(text([record("bad", meta={"k": ["x" * 200] * (LARGEST_RECORD // 200)})]))
