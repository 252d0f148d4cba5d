"""Records out of a stream that may be cut anywhere into pieces, or for good."""

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord.client import ClientError, CutAnswer, InvalidAnswer
from auditord.client.exchange import RecordFramer, TextFramer
from auditord.testing import make_record
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.wire import encode_record

START = datetime(2026, 11, 20, tzinfo=UTC)
NASTY = ['}{"', '}{"record_id":"', "\\", '\\"}', '"', "{", "} {", '}\n{"x', "a\\u005c", '\\\\"}{"', "ключ"]


def frame(pieces: Iterable[bytes]) -> list[Record]:
    framer = RecordFramer("http://far")
    records = [record for piece in pieces for record in framer.feed(piece)]
    return [*records, *framer.finish()]


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(edges)]


texts = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8))
names = texts.filter(lambda text: not text.isspace() and "\0" not in text)
components = st.builds(
    Component, names, st.integers(0, 9), st.lists(st.builds(Score, names, st.just(1.5)), max_size=2).map(tuple)
)
records = st.builds(
    Record,
    names,
    st.just(START),
    st.lists(components, max_size=3).map(tuple),
    st.one_of(st.none(), st.just(START)),
    st.one_of(st.none(), st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2)),
)


@given(
    st.lists(records, max_size=5),
    st.sampled_from([b"", b"\n", b" \r\n\t"]),
    st.lists(st.integers(0, 10**6), max_size=9),
)
def test_any_records_in_any_pieces(expected: Sequence[Record], between: bytes, places: Sequence[int]) -> None:
    stream = between.join(map(encode_record, expected)) + between
    assert frame(cut(stream, places)) == list(expected)


def test_escapes_may_be_written_in_either_way() -> None:
    text = rb'{"record_id":"a\\","components":[],"start_time":"2026-11-20T00:00:00Z","meta":{"k":["}{\"","\"}{"]}}'
    assert [record.record_id for record in frame([text, text])] == ["a\\", "a\\"]


def test_an_end_inside_a_record_is_noticed_wherever_it_is() -> None:
    stream = encode_record(make_record("a", site_id="S")) + encode_record(make_record("b", site_id="S"))
    ends = {len(encode_record(make_record("a", site_id="S"))), len(stream)}
    for end in range(1, len(stream) + 1):
        if end in ends:
            assert frame([stream[:end]])
        else:
            with pytest.raises(CutAnswer, match=r"http://far ended within a record, after (0 records|1 record)"):
                frame([stream[:end]])


@pytest.mark.parametrize(
    "stream",
    [
        b"[]",
        b"<html>{}</html>",
        b'{"error":"no"}',
        b"null",
        b"}",
        b"[" + encode_record(make_record()) + b"]",
        encode_record(make_record("a")) + b"," + encode_record(make_record("b")),
        encode_record(make_record("a")) + b"UNEXPECTED_ERROR",
        encode_record(make_record("a")).replace(b'"runtime":3600', b'"components":7'),
    ],
)
def test_what_is_no_stream_of_records_is_refused(stream: bytes) -> None:
    with pytest.raises((InvalidAnswer, CutAnswer)):
        frame(bytes([byte]) for byte in stream)


def test_memory_is_bounded() -> None:
    framer = RecordFramer("http://far", max_object_bytes=10_000)
    for _ in range(10):
        assert list(framer.feed(b"x" * 1_000)) == []
    with pytest.raises(InvalidAnswer, match="more than 10000 bytes"):
        list(framer.feed(b"x"))


def test_errors_have_one_root() -> None:
    assert issubclass(CutAnswer, ClientError)
    assert issubclass(InvalidAnswer, ClientError)


def test_texts_are_cut_apart_even_if_they_are_no_records() -> None:
    good, bad = encode_record(make_record()), b'{"record_id":"x","components":null}'
    framer = TextFramer("http://far")
    assert [*framer.feed(good + bad + good[:9]), *framer.feed(good[9:]), *framer.finish()] == [good, bad, good]


def test_a_text_that_ends_in_its_middle_is_a_cut() -> None:
    framer = TextFramer("http://far")
    assert list(framer.feed(b'{"record_id":"x","comp')) == []
    with pytest.raises(CutAnswer, match="ended within a record, after 0 records"):
        list(framer.finish())
