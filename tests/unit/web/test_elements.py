"""Arrays and lines split into elements: the same elements wherever they are cut."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.web import elements as module
from auditord.web.elements import LineElements, NoArray, TooLong, split_array

LONG = 1 << 20

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
near_cuts = st.sampled_from(['{"record_id":', ',{"meta":', '",{"record_id"', ', {"a"', "}", "]", ","])
records = st.recursive(
    values | near_cuts,
    lambda inner: (
        st.dictionaries(st.sampled_from(["record_id", "meta", "a", 'b"']) | near_cuts, inner, max_size=4)
        | st.lists(inner, max_size=4)
    ),
    max_leaves=12,
)


def split(text: bytes, longest: int = LONG) -> Sequence[bytes]:
    return [bytes(each) for part in split_array(text, longest) for each in part.elements]


def fed(text: bytes, cuts: list[int]) -> Sequence[bytes]:
    lines = LineElements(LONG)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    found = [element for begin, end in pairwise(places) for element in lines.feed(text[begin:end])]
    return [*found, *lines.end()]


@settings(deadline=None, max_examples=300)
@given(
    array=st.lists(records, max_size=8),
    indent=st.sampled_from([None, 1]),
    at_once=st.integers(0, 200),
)
def test_an_array_gives_its_elements_wherever_it_may_be_cut(array: list[Any], indent: int | None, at_once: int) -> None:
    text = json.dumps(array, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        assert list(map(msgspec.json.decode, split(text))) == msgspec.json.decode(text)


@settings(deadline=None, max_examples=100)
@given(st.lists(values, max_size=8), st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from(["\n", "\r\n\n"]))
def test_so_do_lines(array: list[Any], cuts: list[int], between: str) -> None:
    text = between.join(json.dumps(value) for value in array).encode()
    assert [json.loads(element) for element in fed(text, cuts)] == array


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=60)
    | st.text(alphabet='[]{},:"01a \n', max_size=60).map(str.encode)
    | st.lists(st.sampled_from(['{"meta":1}', '{"meta"', ",", ":", "[", "]", "}", " ", '"', "1"]), max_size=20).map(
        lambda parts: "[{}]".format("".join(parts)).encode()
    ),
    st.integers(0, 20),
)
def test_what_msgspec_takes_for_an_array_is_one_and_nothing_else(text: bytes, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        try:
            wanted = [bytes(each) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]
        except (msgspec.DecodeError, UnicodeDecodeError):
            with pytest.raises(NoArray):
                split(text)
        else:
            assert split(text) == wanted


def test_an_array_of_records_is_cut_however_they_begin() -> None:
    array = [
        {name: "x" * 500, "k": [{"a": 1}, {"b": 2}]} for name in ("other", "record_id", "meta") for _ in range(500)
    ]
    for indent in (None, 2):
        parts = list(split_array(json.dumps(array, indent=indent).encode()))
        assert len(parts) > len(array) * 500 // (1 << 17)
        assert max(len(part.text) for part in parts) < 1 << 17


def test_an_array_of_other_values_is_refused_before_it_takes_much_memory() -> None:
    with pytest.raises(NoArray, match="1000000 values that are not records"):
        split(b"[" + b"0," * 2_000_000 + b"0]")
    assert len(split(b"[" + b"0," * 10_000 + b"0]")) == 10_001


def test_an_element_that_is_too_long_is_refused() -> None:
    with pytest.raises(TooLong):
        split(b'[1,"%b"]' % (b"x" * LONG))
    lines = LineElements(LONG)
    assert not lines.feed(b'["' + b"x" * (LONG // 2))
    with pytest.raises(TooLong):
        lines.feed(b"x" * LONG)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it is empty"),
        (b"[1,", "truncated"),
        (b"[1", "truncated"),
        (b"[1,2]]", "trailing characters"),
        (b"{}", "does not begin with '['"),
        (b"[1,]", "trailing comma"),
        (b"[1 2]", "expected ',' or ']'"),
        (b'[1,{"a":}]', "JSON is malformed: invalid character"),
        (b"[" * 100_000, "recursion|truncated"),  # the second from Python 3.14 on
    ],
)
def test_what_is_wrong_is_said(text: bytes, said: str) -> None:
    with pytest.raises(NoArray, match=said.replace("[", r"\[").replace("]", r"\]")):
        split(text)


def test_what_is_wrong_in_a_later_part_is_said_with_its_place() -> None:
    array = json.dumps([{"record_id": "x" * 500} for _ in range(1_000)])
    with pytest.raises(NoArray, match=r"behind element \d{3}: JSON is malformed"):
        split(array[:-1].encode() + b"x")
