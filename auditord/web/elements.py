"""Splitting of arrays and of lines into elements, and decoding of large arrays with pauses for other requests.

An array is cut before objects that begin with a member of records. msgspec tells whether such a cut is right: only the
text before a byte decides whether the byte is inside a string or an object. A decoder of ``list[msgspec.Raw]`` could
split the whole array in one call, but 64 MiB of ``0,`` would take two gigabytes.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from auditord.web.bodies import BodyTooLarge
from auditord.web.requests import MAX_RECORD_SIZE, decode_posted, refuse_repeated
from auditord_hookspecs import AuditordError, InvalidRecord, Record
from auditord_hookspecs.wire import SharedParts, decode_records

SURELY_SMALL: Final = 2_000
"""The size in bytes up to which any JSON has a wire text within the clients' limit. A digit may become ``1.0``, a
backslash ``\\u005c``, ``1e15`` sixteen digits; nothing grows more than fivefold."""

_AT_ONCE: Final = 64 * 1024
"""Bytes to decode between pauses: 200 records of jobs, in about a millisecond."""

_MOST_ELEMENTS: Final = 1_000_000
"""The most elements of an array that cannot be cut. Each takes 56 bytes besides its text."""

_VALUE: Final = 50
"""Bytes of memory that a value takes besides its text."""

_MOST_GROWTH: Final = 8
"""The most memory of an array's records, as a multiple of its text. Three to five is usual; long lists of texts of one
or two characters take sixteen."""

_SLACK: Final = 512 * 1024
"""Bytes of text for which records may take more."""

_values: Final = msgspec.json.Decoder(list[msgspec.Raw])
_begin: Final = re.compile(rb'[ \t\r\n]*\[[ \t\r\n]*(?:\{[ \t\r\n]*"([^"\\]{1,100})")?')
_MEMBERS: Final = (b"record_id", b"meta", b"components", b"start_time", b"stop_time", b"runtime")


class NoArray(AuditordError):
    """The text is not a JSON array of records.

    Remedy:
        post a JSON array of records, or a single record to /record.
    """


class TooLong(AuditordError):
    """An element has more bytes than are allowed.

    Remedy:
        shorten the record: the message names the limit, which holds for every route and cannot be configured.
    """


class LineElements:
    """Splits a text into lines as it arrives; blank ones are skipped.

    Args:
        longest: the most bytes of a line; a longer one raises :class:`TooLong`.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []

    def feed(self, piece: bytes) -> Sequence[bytes]:
        *lines, rest = piece.split(b"\n")
        found = [part for line in lines for part in self._end_line(line)]
        if rest:
            self._parts.append(rest)
            _limit(sum(map(len, self._parts)), self._longest)
        return found

    def end(self) -> Sequence[bytes]:
        """Return the last line if no line end follows it."""
        return self._end_line(b"")

    def _end_line(self, rest: bytes) -> Sequence[bytes]:
        line = b"".join([*self._parts, rest])
        self._parts.clear()
        return [part for part in line.splitlines() if part.strip()]


class Slice(NamedTuple):
    """Consecutive elements of an array: as a JSON array, and each one's JSON."""

    text: bytes
    elements: Sequence[msgspec.Raw]


def split_array(text: bytes | bytearray, longest: int = MAX_RECORD_SIZE) -> Iterator[Slice]:
    """Yield the elements of an array of records in slices of some 64 KiB. Elements may be any values.

    Args:
        text: the JSON of the array.
        longest: the most bytes of an element.

    Raises:
        NoArray: the text is not an array, or has very many elements that do not look like records.
        TooLong: an element is longer.
    """
    begin = _begin.match(text)
    if begin is None:
        raise NoArray("it does not begin with '['" if text.strip() else "it is empty")
    names = b"|".join(map(re.escape, (*_MEMBERS, begin[1] or _MEMBERS[0])))
    cuts = re.compile(rb',[ \t\r\n]*\{[ \t\r\n]*"(?:%b)"' % names)
    whole, at, count = memoryview(text), text.index(b"[") + 1, 0
    while at:
        cut = cuts.search(text, at + _AT_ONCE, at + 2 * _AT_ONCE + longest)
        found = None if cut is None else _split(b"".join((b"[", whole[at : cut.start()], b"]")))
        if cut is not None and isinstance(found, Slice) and found.elements:
            at = cut.start() + 1
        else:  # the last slice, or a cut inside an element, or invalid JSON
            if len(text) - at > 2 * _MOST_ELEMENTS and text.count(b",", at) > _MOST_ELEMENTS:
                raise NoArray(f"behind element {count} are more than {_MOST_ELEMENTS} values that are not records")
            found, at = _split(b"".join((b"[", whole[at:]))), 0
        if isinstance(found, str):
            raise NoArray(f"behind element {count}: {found}" if count else found)
        if len(found.text) > longest:
            _limit(max(map(len, found.elements)), longest)
        count += len(found.elements)
        yield found


def _split(text: bytes) -> Slice | str:
    """Return the elements of an array, or the reason why the text is not one."""
    try:
        return Slice(text, _values.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)


def _limit(size: int, longest: int) -> None:
    if size > longest:
        raise TooLong(f"an element has more than {longest} bytes")


@dataclass(slots=True)
class Decoded:
    """Records of a body.

    Args:
        records: all of them.
        longish: records whose wire text may be larger than clients can read.
    """

    records: list[Record] = field(default_factory=list[Record])
    longish: list[Record] = field(default_factory=list[Record])


async def decode_array(text: bytes | bytearray) -> Decoded:
    """Return the records of an array, pausing for other requests.

    Raises:
        InvalidRecord: a record is invalid or too large, or the text is not an array.
        BodyTooLarge: the records would take too much memory.
    """
    found, shared, size, memory = Decoded(), SharedParts(), _SLACK, 0
    try:
        for part in split_array(text):
            size += len(part.text)
            memory += len(part.text) + _VALUE * part.text.count(b",")
            if memory > _MOST_GROWTH * size:
                raise BodyTooLarge(f"its many small values would take more than {_MOST_GROWTH} times its size")
            if found.records:
                await asyncio.sleep(0)
            records = _decode(part, len(found.records), shared)
            found.records += records
            if max(map(len, part.elements), default=0) > SURELY_SMALL:
                pairs = zip(records, part.elements, strict=True)
                found.longish += [record for record, element in pairs if len(element) > SURELY_SMALL]
    except NoArray as error:
        raise InvalidRecord(f"The body is not a JSON array: {error}") from error
    except TooLong as error:
        raise InvalidRecord(str(error)) from error
    return found


def _decode(part: Slice, before: int, shared: SharedParts) -> Sequence[Record]:
    """Decode a slice. Errors name the position within the whole array.

    Args:
        part: the slice.
        before: the number of elements before it.
        shared: components and meta to share with other slices.
    """
    try:
        records = decode_records(part.text, shared)
        refuse_repeated(part.text, records)
    except InvalidRecord:
        found = list[Record]()
        for position, element in enumerate(part.elements, start=before):
            try:
                found.append(decode_posted(bytes(element)))
            except InvalidRecord as error:
                text, path = str(error), f"`$[{position}]"
                placed = text.replace("`$", path, 1) if "`$" in text else f"{text} - at {path}`"
                raise InvalidRecord(placed) from error
        return found
    return records
