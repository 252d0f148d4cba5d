"""Objects out of a stream of bytes: AUDITOR writes JSON objects one after another, with nothing in between.

White space and newlines between them are accepted, as auditord or a proxy may write them; anything else is not.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from auditord.client.connection import MAX_OBJECT_BYTES
from auditord.client.errors import CutAnswer, InvalidAnswer
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

T = TypeVar("T")

# Where one object ends and another begins. In one object, braces never meet like this: in a list a comma is between
# them, and in a text the quote would have to end the text, after which no member's name can follow.
_BETWEEN: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"[^ \t\r\n,:}\]])')
# The same at the very end: of the next object, nothing has come but its brace.
_CUT_OFF: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"?\Z)')


class Framer(Generic[T]):
    """Cuts a stream into objects, wherever its pieces were cut; keeps no more than the one that is not complete.

    Args:
        source: the server, for messages.
        decode: makes of the text of an object what is wanted; raises InvalidRecord with msgspec's words.
        max_object_bytes: how large an object may be.
    """

    def __init__(self, source: str, decode: Callable[[bytes], T], max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._source = source
        self._decode = decode
        self._max_object_bytes = max_object_bytes
        self._rest = bytearray()
        self._searched = 0
        self._records = 0

    def feed(self, piece: bytes) -> Iterator[T]:
        """The objects that are known to be complete; take all of them before the next piece.

        Raises:
            InvalidAnswer: what comes is no record.
        """
        self._rest += piece
        begin = 0
        for match in _BETWEEN.finditer(self._rest, self._searched):
            yield self._record(bytes(self._rest[begin : match.end()]))
            begin = match.end()
        self._keep_from(begin)

    def _keep_from(self, begin: int) -> None:
        self._rest = self._rest[begin:]
        # Whatever is still to be found begins with the last brace or behind it.
        self._searched = max(self._rest.rfind(b"}"), self._searched - begin, 0)
        if len(self._rest) > self._max_object_bytes:
            raise InvalidAnswer(f"{self._source} sends an object of more than {self._max_object_bytes} bytes")

    def finish(self) -> Iterator[T]:
        """The last object, now that the stream has ended.

        Raises:
            CutAnswer: it is not complete.
            InvalidAnswer: it is none.
        """
        rest = bytes(self._rest).strip()
        self._rest.clear()
        if match := _CUT_OFF.search(rest):
            yield self._record(rest[: match.end()])
            rest = rest[match.end() :]
        if rest:
            yield self._record(rest)

    def _record(self, text: bytes) -> T:
        try:
            record = self._decode(text)
        except InvalidRecord as error:
            after = f"after {self._records} records"
            if "truncated" in str(error):  # msgspec's word for an end within a value
                raise CutAnswer(f"the answer of {self._source} ended within a record, {after}: ask again") from error
            raise InvalidAnswer(f"{self._source} sent something that is no record, {after}: {error}") from error
        self._records += 1
        return record


class RecordFramer(Framer[Record]):
    """Cuts a stream into records."""

    def __init__(self, source: str, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        super().__init__(source, decode_record, max_object_bytes)


class TextFramer(Framer[bytes]):
    """Cuts a stream into the texts of its objects, whether they are valid records or not."""

    def __init__(self, source: str, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        super().__init__(source, _as_text, max_object_bytes)


def _as_text(text: bytes) -> bytes:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise InvalidRecord(str(error)) from error
    return text
