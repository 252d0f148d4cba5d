"""Records of a large array, decoded with pauses: a body of 64 MiB would otherwise hold up everybody for seconds."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from auditord.web.bodies import BodyTooLarge
from auditord.web.elements import ArrayElements, NoArray, TooLong
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record, decode_records

LARGEST_RECORD: Final = 1 << 20
"""Bytes of the text of one record; those of a job have some hundred."""

SURELY_SMALL: Final = 2_000
"""Bytes of JSON whose wire text is within the clients' limit whatever is in it: a digit may become ``1.0``, a
backslash ``\\u005c``, ``1e15`` sixteen digits; nothing grows more than fivefold."""

_AT_ONCE: Final = 256 * 1024
"""Bytes that are decoded in one go: some milliseconds."""

_BETWEEN_PAUSES: Final = 50

_VALUE: Final = 50
"""Bytes that a value takes beside its text."""

_MOST_GROWTH: Final = 8
"""How many times its text an array may take as records; three to five times is usual, long lists of texts of one or two
characters take sixteen times as much."""


@dataclass(slots=True)
class Decoded:
    """Records of a body.

    Args:
        records: all of them.
        longish: those whose wire text may be larger than clients can read.
    """

    records: list[Record] = field(default_factory=list[Record])
    longish: list[Record] = field(default_factory=list[Record])


def decoded_at_once(body: bytes) -> Decoded:
    """The records of an array that is small.

    Raises:
        InvalidRecord: of one of them, or it is no array.
    """
    records = decode_records(body)
    return Decoded(records, records if len(body) > SURELY_SMALL else [])


async def decoded(pieces: Iterable[bytes]) -> Decoded:
    """The records of an array that comes in pieces.

    Raises:
        InvalidRecord: of one of them, or it is no array.
        BodyTooLarge: an element is too large, or all of them would take too much memory.
    """
    found, elements, growth = Decoded(), ArrayElements(LARGEST_RECORD), _Growth()
    try:
        for piece in pieces:
            for element in elements.feed(piece):
                growth.add(element)
                _decode(element, found)
                if len(found.records) % _BETWEEN_PAUSES == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        for element in elements.end():
            _decode(element, found)
    except NoArray as error:
        raise InvalidRecord(f"The body is no JSON array: {error}") from error
    except TooLong as error:
        raise BodyTooLarge(str(error)) from error
    return found


async def decoded_body(body: bytes) -> Decoded:
    """The same for a text that is there."""
    if len(body) <= _AT_ONCE:
        return decoded_at_once(body)
    return await decoded(body[begin : begin + _AT_ONCE] for begin in range(0, len(body), _AT_ONCE))


class _Growth:
    """Refuses arrays that would take too many times their size."""

    def __init__(self) -> None:
        self._text = _AT_ONCE
        self._memory = 0

    def add(self, element: bytes) -> None:
        """Count one element."""
        self._text += len(element)
        self._memory += len(element) + _VALUE * element.count(b",")
        if self._memory > _MOST_GROWTH * self._text:
            raise BodyTooLarge(f"its many small values would take more than {_MOST_GROWTH} times its size")


def _decode(element: bytes, found: Decoded) -> None:
    try:
        record = decode_record(element)
    except InvalidRecord as error:
        raise InvalidRecord(_placed(str(error), len(found.records))) from error
    found.records.append(record)
    if len(element) > SURELY_SMALL:
        found.longish.append(record)


def _placed(text: str, position: int) -> str:
    """What is wrong with one element, as it is said of the array."""
    place = f"`$[{position}]"
    return text.replace("`$", place, 1) if "`$" in text else f"{text} - at {place}`"
