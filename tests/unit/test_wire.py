"""The codec of the wire contract: what is taken, what is refused, what is written."""

import json
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from auditord_hookspecs import Component, InvalidRecord, Record, Score
from auditord_hookspecs.wire import (
    decode_record,
    decode_records,
    decode_update,
    encode_part,
    encode_record,
    encode_records,
    format_time,
    parse_time,
)

START = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)


def body(**members: str) -> bytes:
    fields = {"record_id": '"r"', "components": "[]", "start_time": '"2024-02-03T04:05:06Z"'} | members
    return ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode()


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-03T04:05:06Z",
        "2024-02-03t04:05:06z",
        "2024-02-03 04:05:06 UTC",
        "2024-2-3T4:5:6+00:00",
        "2024-02-03T06:05:06+0200",
        "2024-02-02T23:05:06-05:00",
        "2024-02-03T04:05:06.000000999Z",
    ],
)
def test_relaxed_times_are_the_same_instant(text: str) -> None:
    assert parse_time(text) == START
    assert decode_record(body(start_time=f'"{text}"')).start_time == START


@pytest.mark.parametrize("text", ["2024-02-03T04:05:60Z", "2024-02-03 05:05:60.000000999 +01:00", "2024-2-3T4:5:60Z"])
def test_a_leap_second_is_the_first_of_the_next_minute(text: str) -> None:
    assert parse_time(text) == START + timedelta(seconds=54)
    assert decode_record(body(start_time=f'"{text}"')).start_time == START + timedelta(seconds=54)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0000-01-01T00:00:00Z", "year 0 is out of range|year must be in"),  # the second from Python 3.14 on
        ("9999-12-31T23:59:60Z", "out of range"),
        ("9999-12-31T23:59:59-01:00", "out of range in UTC"),
        ("+10000-01-01T00:00:00Z", "expected a time"),
        ("2024-02-03T04:05:61Z", "second"),
    ],
)
def test_times_that_cannot_be_kept_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        decode_record(body(start_time=f'"{text}"'))


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+14:00", "2024-02-30T00:00:00Z"])
def test_a_refused_time_is_named_once(text: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        parse_time(text)
    assert str(caught.value).count("Parsing") == 1


@pytest.mark.parametrize("name", ["\x1c", "\x1d", "\x1e", "\x1f", " \x1f"])
def test_separators_are_names_to_auditor_and_so_they_are_here(name: str) -> None:
    assert decode_record(body(record_id=json.dumps(name))).record_id == name


@pytest.mark.parametrize("name", ["", " ", "\t", "\x0b", "\x85", "\xa0", "\u2003", "\u3000"])
def test_white_space_is_no_name(name: str) -> None:
    with pytest.raises(InvalidRecord):
        decode_record(body(record_id=json.dumps(name)))


@pytest.mark.parametrize(
    "text", ["2024-02-03T04:05:06", "2024-02-30T04:05:06Z", "yesterday", "2024-02-03", "1706933106"]
)
def test_times_without_zone_or_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidRecord, match="failed"):
        decode_record(body(start_time=f'"{text}"'))


def test_nanoseconds_are_truncated_never_rounded() -> None:
    record = decode_record(body(start_time='"2024-02-03T04:05:06.123456999Z"'))
    assert record.start_time.microsecond == 123456


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "06Z"), (500_000, "06.500Z"), (123, "06.000123Z"), (1_000, "06.001Z")]
)
def test_times_are_written_with_the_shortest_exact_fraction(micros: int, text: str) -> None:
    assert format_time(START.replace(microsecond=micros)) == "2024-02-03T04:05:" + text


@pytest.mark.parametrize("micros", [0, 1, 999, 1_000, 120_000, 500_000, 999_999])
@pytest.mark.parametrize("year", [1, 999, 1969, 2024, 9999])
def test_records_are_written_with_such_times(year: int, micros: int) -> None:
    start = START.replace(year=year, microsecond=micros)
    stop = start.astimezone(timezone(timedelta(hours=2)))
    document = encode_record(Record("r", start, (), stop))
    assert f'"start_time":"{format_time(start)}","stop_time":"{format_time(start)}"'.encode() in document


@pytest.mark.parametrize(
    ("seconds", "micros", "runtime"),
    [
        (0, 0, 0),
        (0, 999_999, 0),
        (0, -999_999, 0),
        (-1, 0, -1),
        (-1, -1, -1),
        (-2, 1, -1),
        (86_400 * 400, 5, 34_560_000),
    ],
)
def test_run_times_are_truncated_toward_zero(seconds: int, micros: int, runtime: int) -> None:
    stop = START + timedelta(seconds=seconds, microseconds=micros)
    assert Record("r", START, (), stop).runtime == runtime


@pytest.mark.parametrize(
    "members",
    [
        {"record_id": '""'},
        {"record_id": '" \\t"'},
        {"record_id": '"a\\u0000b"'},
        {"record_id": '"' + "x" * 257 + '"'},
        {"record_id": '"a' + "\\u0301" * 600 + '"'},
        {"record_id": '"\\ud800"'},
        {"components": "null"},
        {"components": '[{"name":"c","amount":1.0,"scores":[]}]'},
        {"components": '[{"name":"c","amount":-1,"scores":[]}]'},
        {"components": '[{"name":"c","amount":9223372036854775808,"scores":[]}]'},
        {"components": '[{"name":"c","amount":1}]'},
        {"components": '[{"name":"c","amount":1,"scores":[{"name":"s","value":null}]}]'},
        {"components": '[{"name":"c","amount":1,"scores":[{"name":"s","value":-0.5}]}]'},
        {"meta": '{"k":"v"}'},
        {"meta": '{"":["v"]}'},
        {"meta": '{"k":[" "]}'},
        {"start_time": "1706933106"},
        {"start_time": '"9999-12-31T23:59:59-01:00"'},
        {"start_time": '"0001-01-01T00:00:00+01:00"'},
    ],
)
def test_what_breaks_a_rule_is_refused(members: dict[str, str]) -> None:
    with pytest.raises(InvalidRecord):
        decode_record(body(**members))


def test_a_number_out_of_range_is_refused_with_its_name_and_the_rule() -> None:
    with pytest.raises(InvalidRecord, match=r"'-4' failed: the amount of component 'Cores' must be from 0 to 2\*\*63"):
        Component("Cores", -4, ())
    with pytest.raises(InvalidRecord, match="'inf' failed: the value of score 'HS23' must be finite and at least 0"):
        Score("HS23", float("inf"))


@pytest.mark.parametrize("garbage", [b"", b"{", b"[" * 100_000, b"\xff", b'{"record_id":"a\xff"}', b"null", b"[1]"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_record(garbage)


def test_names_are_counted_in_graphemes() -> None:
    family = "e\u0301" * 256
    assert decode_record(body(record_id=f'"{family}"')).record_id == family


def test_unknown_members_are_ignored() -> None:
    assert decode_record(body(runtime="39964", colour='"blue"')).record_id == "r"


def test_a_bulk_error_names_the_position() -> None:
    with pytest.raises(InvalidRecord, match=r"\$\[1\]"):
        decode_records(b"[" + body() + b"," + body(record_id='""') + b"]")


def test_bodies_share_no_dictionary_that_a_module_could_change() -> None:
    one = body(meta='{"user_id":["alice"]}')
    (first,), (second, third) = decode_records(b"[%b]" % one), decode_records(b"[%b,%b]" % (one, one))
    assert first.meta == second.meta
    assert first.meta is not second.meta
    assert second.meta is third.meta  # in one body they do: ways to change it are that body's alone


def test_an_update_needs_components_and_stop_time() -> None:
    update = decode_update(body(stop_time='"2024-02-03T05:05:06Z"'))
    assert (update.record_id, update.stop_time) == ("r", START + timedelta(hours=1))
    with pytest.raises(InvalidRecord, match="stop_time"):
        decode_update(body(stop_time="null"))


def test_a_record_is_written_in_the_contracts_order() -> None:
    record = Record(
        record_id="r1",
        start_time=START.astimezone(timezone(timedelta(hours=2))),
        components=(Component("Cores", 8, (Score("HEPSPEC06", 10),)),),
        stop_time=START + timedelta(seconds=3600, milliseconds=500),
        meta={"site_id": ("s\\",)},
    )
    assert encode_record(record) == (
        rb'{"record_id":"r1","meta":{"site_id":["s\u005c"]},"components":[{"name":"Cores","amount":8,'
        rb'"scores":[{"name":"HEPSPEC06","value":10.0}]}],"start_time":"2024-02-03T04:05:06Z",'
        rb'"stop_time":"2024-02-03T05:05:06.500Z","runtime":3600}'
    )


@pytest.mark.parametrize("text", ["\\", '\\"', '"\\', "\\\\n", 'a\\u005c"', "näme|\n\t"])
def test_any_text_survives_writing_and_reading(text: str) -> None:
    record = Record(record_id=text, start_time=START, components=(), meta={})
    assert decode_record(encode_record(record)) == record
    assert b"\\\\" not in encode_record(record)
    meta, components = msgspec.Raw(encode_part(record.meta)), msgspec.Raw(encode_part(record.components))
    assert encode_records([record, record], [meta] * 2, [components] * 2) == [encode_record(record).decode()] * 2


def test_runtime_is_truncated_toward_zero() -> None:
    late = Record(
        record_id="r", start_time=START, components=(), stop_time=START - timedelta(seconds=1, milliseconds=999)
    )
    assert late.runtime == -1
    assert Record(record_id="r", start_time=START, components=()).runtime is None


@pytest.mark.parametrize("micros", [0, 1, 999, 1_000, 1_001, 123_456, 500_000, 999_000, 999_999])
@pytest.mark.parametrize("year", [1, 999, 2024, 9999])
def test_the_times_of_a_record_are_written_as_all_times(micros: int, year: int) -> None:
    moment = datetime(year, 2, 3, 4, 5, 6, micros, tzinfo=UTC)
    local = moment.astimezone(timezone(timedelta(hours=2)))
    times = f'"start_time":"{format_time(moment)}","stop_time":"{format_time(moment)}","runtime":0'
    assert times.encode() in encode_record(Record("r", local, (), local))
