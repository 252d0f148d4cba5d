"""Large arrays are decoded like small ones, with pauses for everybody else."""

import asyncio
from typing import Any

import msgspec
import pytest

from auditord.web.bodies import BodyTooLarge
from auditord.web.elements import decode_array
from auditord.web.requests import MAX_RECORD_SIZE, decode_posted
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.wire import decode_records
from tests.api_server import record

pytestmark = pytest.mark.anyio

MANY = [record(f"r-{number:05}") for number in range(3_000)]


def text(records: list[Any]) -> bytes:
    return msgspec.json.encode(records)


async def test_a_large_array_is_what_it_would_be_at_once() -> None:
    large = [*MANY, record("long", meta={"k": ["v" * 200] * 50})]
    found = await decode_array(text(large))
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
        await decode_array(text([*MANY[:7], bad, *MANY]))
    assert str(large.value).startswith(str(small.value))
    assert "$[7]" in str(large.value)


@pytest.mark.parametrize("body", [b"{}", text(MANY)[:-1], text(MANY) + b"x", b"[" + b" " * 1_000_000])
async def test_what_is_no_array_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidRecord):
        await decode_array(body)


async def test_others_have_their_turns_meanwhile() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await decode_array(text(MANY))
    task.cancel()
    assert turns >= len(text(MANY)) // (1 << 17)


async def test_what_would_take_many_times_its_size_is_refused() -> None:
    bad = record("bad", meta={"k": ["a"] * 200_000})
    with pytest.raises(BodyTooLarge, match="small values"):
        await decode_array(text([bad, bad]))


async def test_so_is_a_record_that_nobody_would_write() -> None:
    with pytest.raises(InvalidRecord, match="more than"):
        await decode_array(text([record("bad", meta={"k": ["x" * 200] * (MAX_RECORD_SIZE // 200)})]))


PLAIN = msgspec.json.encode(record("a", meta={"name": ["b"], "stop_time": ["x"]}))
OPEN = b'{"record_id":"b","components":[],"start_time":"2026-01-01T00:00:00Z"}'
NULLS = b'{"meta":null,"stop_time":null,'


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (b'{"record_id"', b'{"record_id":"z","record_id"', "`record_id` more than once - at `$[1]`"),
        (b'"stop_time":"2', b'"stop_time":null,"stop_time":"2', "`stop_time` more than once"),
        (b'"amount":8', b'"amount":8,"am\\u006funt":8', "`amount` more than once - at `$[1].components[0]`"),
        (b'"value":12.5', b'"value" :1,"value" : 12.5', "`value` more than once - at `$[1].components[0].scores[0]`"),
        (b'"amount":8', b'"amount" :1,"amount":8', "`amount` more than once - at `$[1].components[0]`"),
        (b'"amount":8', b'"amount"\n:1,"amount":8', "`amount` more than once - at `$[1].components[0]`"),
        (b'"meta":{', b'"meta":null, "meta":{', "`meta` more than once"),
    ],
)
async def test_a_member_that_is_there_twice_is_refused(old: bytes, new: bytes, place: str) -> None:
    twice = PLAIN.replace(old, new, 1)
    with pytest.raises(InvalidRecord, match="more than once"):
        decode_posted(twice)
    for repeat in (1, 3_000):  # an array that is read at once, and one that is read in pieces
        with pytest.raises(InvalidRecord) as refused:
            await decode_array(b"[%b,%b%b]" % (PLAIN, twice, b",%b" % OPEN * repeat))
        assert place in str(refused.value)


@pytest.mark.parametrize(
    ("component", "rest"),
    [
        (b"meta", b'"stop_time":null'),
        (b"Cores", b'"meta":{"a":["stop_time"]}'),
        (b"Cores", b'"meta":{"stop_time":["a"]}'),
        (b"Cores", b'"stop_time":null,"meta":{"runtime":["a"]}'),
    ],
)
async def test_no_name_hides_a_member_that_is_there_twice(component: bytes, rest: bytes) -> None:
    twice = b'{"record_id":"b","start_time":"2026-01-01T00:00:00Z",%b,' % rest
    twice += b'"components":[{"name":"%b","amount":1,"amount":9,"scores":[]}]}' % component
    with pytest.raises(InvalidRecord, match="`amount` more than once"):
        decode_posted(twice)
    with pytest.raises(InvalidRecord, match=r"`amount` more than once - at `\$\[1\]"):
        await decode_array(b"[%b,%b]" % (PLAIN, twice))
    decode_posted(twice.replace(b'"amount":1,', b""))


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace(b'"meta":{', b'"meta":{"name":["b"],'),  # AUDITOR takes the last one, as well
        PLAIN.replace(b"{", b'{"runtime":1,"runtime":2,"other":{"a":1,"a":2},"long":%b,' % (b"9" * 5_000), 1),
        PLAIN.replace(b'["x"]', b'["x\\":y"]'),
        OPEN,
        OPEN.replace(b"{", NULLS),
        OPEN.replace(b":", b" : ", 3),
    ],
)
async def test_other_members_may_be_there_more_than_once_or_not_at_all(text: bytes) -> None:
    assert (await decode_array(b"[%b,%b]" % (text, PLAIN))).records == [decode_posted(text), decode_posted(PLAIN)]


@pytest.mark.parametrize("text", [PLAIN, OPEN.replace(b"{", NULLS, 1), PLAIN.replace(b"{", b'{"runtime":3600,', 1)])
async def test_usual_records_are_read_once(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.web.requests._refuse_in_record", None)
    decode_posted(text)
    await decode_array(b"[%b,%b]" % (text, text))
