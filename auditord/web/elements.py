"""Incremental splitting of a JSON array or of lines into elements, and decoding of large arrays with pauses.

The buffer holds no more than the longest element. msgspec finds the end of a value: if other text follows the value,
its error names the byte where that text begins. That costs an exception for each element, so elements that begin like
the second one are decoded together. The text before the last such beginning is a list of whole elements if msgspec
decodes it as a list, because the text before a byte decides whether it is inside a string. Nothing else is scanned in
Python. Decoding a body of 64 MiB in one go would block all other requests for seconds.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from auditord.web.bodies import BodyTooLarge
from auditord.web.requests import MAX_RECORD_SIZE, decode_posted, refuse_repeated
from auditord_hookspecs import AuditordError, InvalidRecord, Record
from auditord_hookspecs.wire import SharedParts, decode_records

_Place: TypeAlias = Literal["start", "first", "element", "behind", "end"]

_value: Final = msgspec.json.Decoder(msgspec.Raw)
_values: Final = msgspec.json.Decoder(list[msgspec.Raw])
_BLANKS: Final = b" \t\r\n"
_blank: Final = re.compile(rb"[ \t\r\n]*")
_behind: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_byte: Final = re.compile(r" \(byte (\d+)\)")
_LONG: Final = 65_536
_LONGEST_BEGINNING: Final = 200
_TRUNCATED: Final = "truncated"


SURELY_SMALL: Final = 2_000
"""The size in bytes up to which any JSON has a wire text within the clients' limit. A digit may become ``1.0``, a
backslash ``\\u005c``, ``1e15`` sixteen digits; nothing grows more than fivefold."""

_SMALL_PARTS: Final = 700
"""The size of components and meta, in bytes, up to which a record with any id has such a wire text."""

_AT_ONCE: Final = 512 * 1024
"""Bytes to decode in one go: a thousand records of jobs, in some milliseconds. In pieces it takes twice as long."""

_BETWEEN_PAUSES: Final = 50

_VALUE: Final = 50
"""Bytes of memory that a value takes besides its text."""

_MOST_GROWTH: Final = 8
"""The most memory of an array's records, as a multiple of its text. Three to five is usual; long lists of texts of one
or two characters take sixteen."""


class NoArray(AuditordError):
    """The text is not a JSON array.

    Remedy:
        post a JSON array of records, or a single record to /record.
    """


class TooLong(AuditordError):
    """An element has more bytes than are allowed.

    Remedy:
        shorten the record: the message names the limit, which holds for every route and cannot be configured.
    """


def _limit(size: int, longest: int) -> None:
    if size > longest:
        raise TooLong(f"an element has more than {longest} bytes")


class Elements(Protocol):
    """Splits a text into elements."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the elements that end in this piece. The iterator must be exhausted."""
        ...

    def end(self) -> Iterator[bytes]:
        """Yield the elements that remain at the end of the text."""
        ...


class LineElements:
    """Implements :class:`Elements` for lines; blank ones are skipped.

    Args:
        longest: the most bytes of a line; a longer one raises :class:`TooLong`.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that end in this piece."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            yield from self._ended(line)
        if rest:
            self._parts.append(rest)
            _limit(sum(map(len, self._parts)), self._longest)

    def end(self) -> Iterator[bytes]:
        """Return the last line if no line end follows it."""
        return self._ended(b"")

    def _ended(self, rest: bytes) -> Iterator[bytes]:
        line = b"".join([*self._parts, rest])
        self._parts.clear()
        return (part for part in line.splitlines() if part.strip())


class ArrayElements:
    """Implements :class:`Elements` for a JSON array. Elements may be any values.

    Both methods raise :class:`NoArray` at the first byte that cannot belong to an array.

    Args:
        longest: the most bytes of an element; a longer one raises :class:`TooLong`.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._text = bytearray()
        self._place: _Place = "start"
        self._enough = 1
        self._count = 0
        self._beginning = b""

    @property
    def held(self) -> int:
        """The number of buffered bytes, which belong to incomplete elements."""
        return len(self._text)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the elements that end in this piece."""
        self._text += piece
        if len(self._text) < self._enough:  # a long element is parsed again only once it has doubled
            return
        at, together = self._behind_blanks(0), True
        while at < len(self._text):
            if together and self._place == "behind" and self._text[at] == ord(","):
                together = False
                many, at = self._similar(at)
                yield from many
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
        """Yield the remaining elements: none if the array is closed."""
        self._enough = 1
        yield from self.feed(b"")
        if self._place != "end":
            raise NoArray("it ends too early" if self._text or self._place != "start" else "it is empty")

    def _next(self, at: int) -> tuple[bytes, int] | None:
        """Return an element (empty for a bracket or a comma) and its end; None if more text is needed."""
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

    def _similar(self, at: int) -> tuple[Sequence[bytes], int]:
        """Return the elements from a comma to the last comma before an equal beginning, and the position of that comma.

        The beginning is the text up to the first colon. Return no elements if they are not valid JSON; they are then
        read one by one, up to the error.
        """
        if not self._beginning:
            colon = self._text.find(b":", at, at + _LONGEST_BEGINNING)
            self._beginning = bytes(self._text[at : colon + 1])
        end = self._text.rfind(self._beginning, at) if self._beginning else at
        if end <= at:
            return (), at
        try:
            found = [bytes(each) for each in _values.decode(b"[%b]" % bytes(self._text[at + 1 : end]))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return (), at
        if not found:  # two commas in a row
            return (), at
        _limit(max(map(len, found)), self._longest)
        self._count += len(found)
        return found, end

    def _behind_blanks(self, at: int) -> int:
        found = _blank.match(self._text, at)
        return at if found is None else found.end()

    def _end_of_value(self, at: int) -> int | None:
        with memoryview(self._text) as text, text[at:] as rest:
            try:
                _value.decode(rest)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                message = str(error)
            else:
                return None  # only a following byte shows that the value has ended
        if (found := _behind.search(message)) is not None:
            return at + int(found[1]) - 1
        # If the error is at the end of the text, more text may resolve it: ``-`` is not a number, ``-1`` is.
        fault = _byte.search(message)
        if _TRUNCATED in message or (fault is not None and int(fault[1]) >= len(self._text) - at):
            return None
        raise NoArray(f"element {self._count}: {_byte.sub('', message)}")


@dataclass(slots=True)
class Decoded:
    """Records of a body.

    Args:
        longish: records whose wire text may be larger than clients can read.
    """

    records: list[Record] = field(default_factory=list[Record])
    longish: list[Record] = field(default_factory=list[Record])


async def decoded(pieces: Iterable[bytes]) -> Decoded:
    """Return the records of an array that arrives in pieces, pausing for other requests.

    Raises:
        InvalidRecord: a record is invalid or too large, or the text is not an array.
        BodyTooLarge: the records would take too much memory.
    """
    found, elements, growth, shared = Decoded(), ArrayElements(MAX_RECORD_SIZE), _Growth(), SharedParts()
    try:
        for piece in pieces:
            some = list[bytes]()
            for element in elements.feed(piece):
                growth.add(element)
                some.append(element)
                if len(some) == _BETWEEN_PAUSES:
                    _decode(some, found, shared)
                    some.clear()
                    await asyncio.sleep(0)
            _decode(some, found, shared)
            await asyncio.sleep(0)
        _decode(list(elements.end()), found, shared)
    except NoArray as error:
        raise InvalidRecord(f"The body is not a JSON array: {error}") from error
    except TooLong as error:
        raise InvalidRecord(str(error)) from error
    return found


async def decoded_body(body: bytes) -> Decoded:
    """Return the records of a complete array.

    Raises:
        InvalidRecord, BodyTooLarge: see :func:`decoded`.
    """
    if len(body) <= _AT_ONCE:
        records = decode_records(body, shared := SharedParts())
        refuse_repeated(body, records)
        are_small = len(body) <= SURELY_SMALL or 0 < shared.longest <= _SMALL_PARTS
        return Decoded(records, [] if are_small else _longish(records, _values.decode(body)))
    return await decoded(body[begin : begin + _AT_ONCE] for begin in range(0, len(body), _AT_ONCE))


class _Growth:
    """Refuses arrays whose records would take too many times the size of their text."""

    def __init__(self) -> None:
        self._text = _AT_ONCE
        self._memory = 0

    def add(self, element: bytes) -> None:
        self._text += len(element)
        self._memory += len(element) + _VALUE * element.count(b",")
        if self._memory > _MOST_GROWTH * self._text:
            raise BodyTooLarge(f"its many small values would take more than {_MOST_GROWTH} times its size")


def _decode(elements: Sequence[bytes], found: Decoded, shared: SharedParts) -> None:
    try:
        records = decode_records(text := b"[%b]" % b",".join(elements), shared)
        refuse_repeated(text, records)
    except InvalidRecord:
        records = [_decoded_at(len(found.records) + at, element) for at, element in enumerate(elements)]
    found.records += records
    found.longish += _longish(records, elements)


def _longish(records: Sequence[Record], elements: Sequence[Sized]) -> list[Record]:
    if max(map(len, elements), default=0) <= SURELY_SMALL:
        return []  # nearly always
    return [record for record, element in zip(records, elements, strict=True) if len(element) > SURELY_SMALL]


def _decoded_at(position: int, element: bytes) -> Record:
    """Decode one element. An error names its place within the whole array."""
    try:
        return decode_posted(element)
    except InvalidRecord as error:
        text, place = str(error), f"`$[{position}]"
        placed = text.replace("`$", place, 1) if "`$" in text else f"{text} - at {place}`"
        raise InvalidRecord(placed) from error
