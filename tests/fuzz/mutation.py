"""Inputs for parsers: recorded real ones, changed in a few places as a mistake or an attacker would change them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from hypothesis import strategies as st

Change: TypeAlias = Callable[[bytes, bytes, bytes, bytes], bytes]
"""Makes a text of what stands before a place, there and behind it, and of a piece to put there."""

CHANGES: Final = 6
"""Of an input, at most."""

LONGEST: Final = 1 << 20
"""Bytes of an input: repetitions stop there."""

_DRAWN: Final = Struct(">BHBHxx")  # kind, place, length, piece; and two bytes that stand for themselves
_REPEATED: Final = 1_200
"""Times: more than Python's limit of recursion."""

TROUBLE: Final = (
    *(
        b"",
        b"\0",
        b"\n",
        b"\r\n",
        b"\t",
        b" ",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xe2\x80\xae",
        b"\xf0\x9f\x98\x80",
        b"\xef\xbb\xbf",
    ),
    *(
        b'"',
        b"'",
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b",",
        b":",
        b"=",
        b"|",
        b"&",
        b";",
        b"%",
        b"%00",
        b"%ff",
        b"+",
        b"-",
        b".",
    ),
    *(b"{", b"}", b"[", b"]", b"(", b")", b"<", b">", b"*", b"&a", b"*a", b"!!", b"#", b"~", b"?"),
    *(b"0", b"-1", b"1e999", b"1e-999", b"NaN", b"-Infinity", b"9223372036854775808", b"18446744073709551616", b"0x1g"),
    *(b"1" * 5_000, b"null", b"true", b"9999-12-31T23:59:59Z", b"0001-01-01T00:00:00+23:59", b"2024-02-30T25:61:61Z"),
)
"""Pieces that parsers have stumbled over."""


def mutated(samples: Sequence[bytes], words: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """A sample with some changes.

    All choices are in one draw of bytes, since Hypothesis takes longer for a draw than most parsers for a text. Zeros
    change nothing, so that a finding shrinks to the fewest changes.

    Args:
        samples: real inputs.
        words: of the format, besides :data:`TROUBLE`.
    """
    size = 2 + CHANGES * _DRAWN.size
    return st.binary(min_size=size, max_size=size).map(partial(_mutated, samples, [*words, *TROUBLE]))


def _mutated(samples: Sequence[bytes], pieces: Sequence[bytes], drawn: bytes) -> bytes:
    text = samples[drawn[0] % len(samples)]
    most = drawn[1] % (CHANGES + 1)
    for change, place, length, piece in _changes(drawn[2:], [*pieces, *samples]):
        if most:
            start = place % (len(text) + 1)
            text = change(text[:start], text[start : start + length], text[start + length :], piece)[:LONGEST]
            most -= 1
    return text


def _changes(drawn: bytes, pieces: Sequence[bytes]) -> Iterator[tuple[Change, int, int, bytes]]:
    for start in range(0, len(drawn), _DRAWN.size):
        part: bytes = drawn[start : start + _DRAWN.size]
        numbers: tuple[int, int, int, int] = _DRAWN.unpack(part)
        kind, place, length, piece = numbers
        chosen = pieces[piece // 2 % len(pieces)] if piece % 2 == 0 else part[-2:]
        yield _CHANGES[kind % len(_CHANGES)], place, length % 64, chosen


_CHANGES: Final[Sequence[Change]] = (
    lambda before, there, behind, _: before + there + behind,
    lambda before, _, behind, piece: before + piece + behind,
    lambda before, there, behind, piece: before + piece + there + behind,
    lambda before, _there, behind, _piece: before + behind,
    lambda before, there, behind, _: before + there * 3 + behind,
    lambda before, there, behind, piece: before + (piece[:4] or there[:4]) * _REPEATED + there + behind,
    lambda before, _there, _behind, _piece: before,
    lambda before, there, behind, _: before + bytes(byte ^ 0x20 for byte in there) + behind,
)
"""Nothing, replace, insert, remove, repeat, nest, cut off, change case."""
