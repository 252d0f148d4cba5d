"""The elements of a JSON array, or the lines of a text, as they come: no more is held than the longest of them.

msgspec finds the end of a value at its own speed: given a value with something behind it, its error names the byte
where that begins. So an element is looked at twice, and nothing else is scanned in Python.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from auditord_hookspecs import AuditordError

_Place: TypeAlias = Literal["start", "first", "element", "behind", "end"]

_value: Final = msgspec.json.Decoder(msgspec.Raw)
_BLANKS: Final = b" \t\r\n"
_blank: Final = re.compile(rb"[ \t\r\n]*")
_behind: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_byte: Final = re.compile(r" \(byte (\d+)\)")
_LONG: Final = 65_536
_TRUNCATED: Final = "truncated"


class NoArray(AuditordError):
    """The text is no JSON array."""


class TooLong(AuditordError):
    """An element has more bytes than are taken."""


def _limit(size: int, longest: int) -> None:
    if size > longest:
        raise TooLong(f"an element has more than {longest} bytes")


class Elements(Protocol):
    """Takes a text apart."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The elements that end in this piece; to be iterated to its end."""
        ...

    def end(self) -> Iterator[bytes]:
        """What is left when the text ends."""
        ...


class LineElements:
    """Implements :class:`Elements` for lines; blank ones are none.

    Args:
        longest: bytes of a line; a longer one raises :class:`TooLong`.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._begun: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that end in this piece."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            yield from self._ended(line)
        if rest:
            self._begun.append(rest)
            _limit(sum(map(len, self._begun)), self._longest)

    def end(self) -> Iterator[bytes]:
        """The last line, if nothing ends it."""
        return self._ended(b"")

    def _ended(self, rest: bytes) -> Iterator[bytes]:
        line = b"".join([*self._begun, rest])
        self._begun.clear()
        return (part for part in line.splitlines() if part.strip())


class ArrayElements:
    """Implements :class:`Elements` for a JSON array. Elements may be any values.

    Both methods raise :class:`NoArray` at the first byte that fits no array.

    Args:
        longest: bytes of an element; a longer one raises :class:`TooLong`.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._text = bytearray()
        self._place: _Place = "start"
        self._enough = 1
        self._count = 0

    @property
    def held(self) -> int:
        """Bytes that wait for what follows them."""
        return len(self._text)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The elements that end in this piece."""
        self._text += piece
        if len(self._text) < self._enough:  # a long element is not looked at again before it has doubled
            return
        at = self._behind_blanks(0)
        while at < len(self._text):
            following = self._next(at)
            if following is None:
                break
            element, end = following
            at = self._behind_blanks(end)
            if element:
                yield element
        del self._text[:at]
        _limit(len(self._text), self._longest)
        self._enough = 2 * len(self._text) if len(self._text) > _LONG else 1

    def end(self) -> Iterator[bytes]:
        """Nothing, once the array has been closed."""
        self._enough = 1
        yield from self.feed(b"")
        if self._place != "end":
            raise NoArray("it ends too early" if self._text or self._place != "start" else "it is empty")

    def _next(self, at: int) -> tuple[bytes, int] | None:
        """An element (empty for a bracket or a comma) and where it ends; None if more of the text is needed."""
        match self._place, self._text[at]:
            case "start", 0x5B:
                return self._passed("first", at)
            case (("first" | "behind"), 0x5D):
                return self._passed("end", at)
            case "behind", 0x2C:
                return self._passed("element", at)
            case (("first" | "element"), _):
                return self._element(at)
            case _:
                raise NoArray(f"{self._text[at : at + 1].decode(errors='backslashreplace')!r} is out of place")

    def _passed(self, place: _Place, at: int) -> tuple[bytes, int]:
        self._place = place
        return b"", at + 1

    def _element(self, at: int) -> tuple[bytes, int] | None:
        end = self._end_of_value(at)
        if end is None:
            return None
        _limit(end - at, self._longest)
        self._place = "behind"
        self._count += 1
        return bytes(self._text[at:end]).rstrip(_BLANKS), end

    def _behind_blanks(self, at: int) -> int:
        found = _blank.match(self._text, at)
        return at if found is None else found.end()

    def _end_of_value(self, at: int) -> int | None:
        with memoryview(self._text) as text, text[at:] as rest:
            try:
                _value.decode(rest)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                said = str(error)
            else:
                return None  # the next byte is awaited, which tells that it has ended
        if (found := _behind.search(said)) is not None:
            return at + int(found[1]) - 1
        if _TRUNCATED in said or _is_at(len(self._text) - at, said):
            return None
        raise NoArray(f"element {self._count}: {_byte.sub('', said)}")


def _is_at(end: int, said: str) -> bool:
    """Whether only the end of the text is at fault: ``-`` alone is no number, ``-1`` is."""
    return (found := _byte.search(said)) is not None and int(found[1]) >= end
