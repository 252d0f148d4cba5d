"""Arrays and lines taken apart as they come: the same elements wherever the pieces end."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.web.elements import ArrayElements, Elements, LineElements, NoArray, TooLong

LONG = 1 << 20

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def fed(elements: Elements, text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    found = [element for begin, end in pairwise(places) for element in elements.feed(text[begin:end])]
    return [*found, *elements.end()]


@settings(deadline=None, max_examples=100)
@given(st.lists(values, max_size=8), st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from([None, 1]))
def test_an_array_comes_apart_wherever_it_is_cut(array: list[Any], cuts: list[int], indent: int | None) -> None:
    text = json.dumps(array, indent=indent).encode()
    found = fed(ArrayElements(LONG), text, cuts)
    assert [msgspec.json.decode(element) for element in found] == msgspec.json.decode(text)


@settings(deadline=None, max_examples=100)
@given(st.lists(values, max_size=8), st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from(["\n", "\r\n\n"]))
def test_so_do_lines(array: list[Any], cuts: list[int], between: str) -> None:
    text = between.join(json.dumps(value) for value in array).encode()
    assert [json.loads(element) for element in fed(LineElements(LONG), text, cuts)] == array


@settings(deadline=None, max_examples=100)
@given(
    st.binary(max_size=60) | st.text(alphabet='[]{},:"01a \n', max_size=60).map(str.encode),
    st.lists(st.integers(0, 60)),
)
def test_what_msgspec_takes_for_an_array_is_one_and_nothing_else(text: bytes, cuts: list[int]) -> None:
    try:
        wanted = [bytes(each) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises(NoArray):
            fed(ArrayElements(LONG), text, cuts)
    else:
        assert fed(ArrayElements(LONG), text, cuts) == wanted


@pytest.mark.parametrize("rest", [b'x{"a":3},{"a":4}]', b'},{"a":3}]', b', ,{"a":3}]'])
def test_nothing_else_than_one_comma_parts_elements_that_begin_alike(rest: bytes) -> None:
    elements = ArrayElements(LONG)
    assert list(elements.feed(b'[{"a":1},{"a":2}')) == [b'{"a":1}']
    with pytest.raises(NoArray):
        list(elements.feed(rest))


def test_the_end_of_a_value_is_where_msgspec_says_it_is() -> None:
    """Should msgspec word its errors differently, this fails before anything else does."""
    assert fed(ArrayElements(LONG), b'[ {"a": [1]} , 2 ,"]"\n]', []) == [b'{"a": [1]}', b"2", b'"]"']


@pytest.mark.parametrize("text", [b"[" + b" " * LONG * 2 + b"]", b"[" + b"0," * (LONG // 8) + b"0]"])
def test_no_more_is_held_than_an_element(text: bytes) -> None:
    elements = ArrayElements(100)
    for begin in range(0, len(text), 65_536):
        for element in elements.feed(text[begin : begin + 65_536]):
            assert element == b"0"
        assert elements.held < 100
    assert not list(elements.end())


@pytest.mark.parametrize("elements", [ArrayElements(LONG), LineElements(LONG)], ids=["array", "lines"])
def test_an_element_without_end_is_refused(elements: Elements) -> None:
    assert not list(elements.feed(b'["' + b"x" * (LONG // 2)))
    with pytest.raises(TooLong):
        list(elements.feed(b"x" * LONG))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it is empty"),
        (b"[1,", "too early"),
        (b"[1", "too early"),
        (b"[1,2]]", "']' is out of place"),
        (b"{}", "'{' is out of place"),
        (b"[1,]", "element 1"),
        (b"[1 2]", "'2' is out of place"),
        (b'[1,{"a":}]', "element 1: JSON is malformed: invalid character"),
        (b"[" * 100_000, "recursion|it ends too early"),  # the second from Python 3.14 on
    ],
)
def test_what_is_wrong_is_said(text: bytes, said: str) -> None:
    with pytest.raises(NoArray, match=said.replace("[", r"\[").replace("]", r"\]").replace("{", r"\{")):
        fed(ArrayElements(LONG), text, [])
