"""The requests of the wire contract and the meaning of their answers, without any network.

AUDITOR writes JSON objects into a stream, without separators. White space and newlines between the objects are
accepted, as auditord or a proxy may write them; anything else is not.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import msgspec

from auditord.client import errors
from auditord.client.connection import MAX_OBJECT_BYTES
from auditord.client.errors import CutAnswer, InvalidAnswer
from auditord_hookspecs import HttpAnswer, InvalidRecord, Record
from auditord_hookspecs.wire import decode_record, encode_record, format_time
from auditord_hookspecs.wording import counted

T = TypeVar("T")

# Where one object ends and another begins. In one object, braces never meet like this: in a list a comma is between
# them, and in a text the quote would have to end the text, after which no member's name can follow.
_BETWEEN: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"[^ \t\r\n,:}\]])')
# The same at the very end: of the next object, nothing has come but its brace.
_CUT_OFF: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"?\Z)')


class Framer(Generic[T]):
    """Splits a stream into objects, independent of the boundaries of its pieces. Buffers only the incomplete object.

    Args:
        source: the server, for messages.
        decode: converts the text of an object into the wanted type; raises InvalidRecord with msgspec's words.
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
        """Yield the objects that are complete; consume all of them before the next chunk.

        Raises:
            InvalidAnswer: the stream holds something other than a record.
        """
        self._rest += piece
        begin = 0
        for match in _BETWEEN.finditer(self._rest, self._searched):
            yield self._record(bytes(self._rest[begin : match.end()]))
            begin = match.end()
        self._keep_from(begin)

    def _keep_from(self, begin: int) -> None:
        self._rest = self._rest[begin:]
        # Any further object begins at the last brace or behind it.
        self._searched = max(self._rest.rfind(b"}"), self._searched - begin, 0)
        if len(self._rest) > self._max_object_bytes:
            raise InvalidAnswer(f"{self._source} sends an object of more than {self._max_object_bytes} bytes")

    def finish(self) -> Iterator[T]:
        """Yield the last object, at the end of the stream.

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
            after = f"after {counted(self._records, 'record')}"
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


MAX_BODY_BYTES: Final = 2_000_000
"""AUDITOR refuses bodies above 2 MiB (2,097,152 bytes), bulk inserts as well."""

ENDLESS: Final = "the answer does not say where it ends, so that a cut would not show"

_RECORD_EXISTS: Final = b"RECORD_EXISTS"


class Chunk(msgspec.Struct, frozen=True):
    """Some records of a bulk, as one body.

    Args:
        first: the place of the first one.
        stop: the place behind the last one.
        body: a JSON array.
    """

    first: int
    stop: int
    body: bytes


def chunks(records: Iterable[Record], max_bytes: int) -> Iterator[Chunk]:
    """Split the records into bodies of at most ``max_bytes``; a larger record makes a body of its own."""
    texts: list[bytes] = []
    first = size = 0
    for record in records:
        text = encode_record(record)
        if texts and size + len(text) + 2 > max_bytes:
            yield _chunk(first, texts)
            first, size, texts = first + len(texts), 0, []
        texts.append(text)
        size += len(text) + 1  # with its comma
    if texts:
        yield _chunk(first, texts)


def _chunk(first: int, texts: list[bytes]) -> Chunk:
    return Chunk(first, first + len(texts), b"[" + b",".join(texts) + b"]")


def stop_update(record_id: str, stop_time: datetime) -> bytes:
    """Return the body of ``PUT /record``; the other required members are empty, and ignored."""
    body: dict[str, object] = {
        "record_id": record_id,
        "meta": None,
        "components": [],
        "start_time": format_time(stop_time),
        "stop_time": format_time(stop_time),
    }
    return msgspec.json.encode(body)


def check_added(answer: HttpAnswer) -> None:
    """Return if the records are stored; the released clients look at the body alone, we look at status and body.

    Raises:
        RecordExists: an id is taken. Also if the server calls that success with a warning: AUDITOR's option
            ``ignore_record_exists_error`` does so and drops the whole bulk.
        AnsweredError: the status says so.
        InvalidAnswer: something else has answered.
    """
    warning = answer.body.lstrip().startswith(b"{") and b'"warning"' in answer.body
    if answer.body == _RECORD_EXISTS or (answer.status == HTTPStatus.OK and warning):
        raise errors.RecordExists(f"{answer.request}: the record exists already ({answer.text})")
    _check_empty(answer)


def check_chunk_added(answer: HttpAnswer, chunk: Chunk) -> None:
    """Return if all records of a chunk are stored.

    Raises:
        ClientError: as :func:`check_added`; a :class:`RecordExists` names the chunk.
    """
    try:
        check_added(answer)
    except errors.RecordExists as error:
        text = f"{error} among the records {chunk.first} to {chunk.stop - 1}; none of them is stored"
        raise errors.RecordExists(text, chunk.first, chunk.stop) from None


def check_stopped(answer: HttpAnswer) -> None:
    """Return if the stop time is set.

    Raises:
        UnknownRecord: there is no such record.
        AnsweredError: the status says so.
        InvalidAnswer: something else has answered.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        raise errors.UnknownRecord(f"{answer.request}: {answer.text}")
    _check_empty(answer)


def _check_empty(answer: HttpAnswer) -> None:
    check_status(answer)
    if answer.body.strip():
        raise errors.InvalidAnswer(f"{answer.request} was answered {answer.status} with {answer.text}: is it AUDITOR?")


def read_record(answer: HttpAnswer) -> Record | None:
    """Parse a record, or return None for an unknown id (the server then answers ``null``).

    Raises:
        AnsweredError: the status says so. AUDITOR says 500 for a record that is not there, too.
        InvalidAnswer: it is no record.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    check_status(answer)
    if answer.body.strip() == b"null":
        return None
    try:
        return decode_record(answer.body)
    except InvalidRecord as error:
        raise errors.InvalidAnswer(f"{answer.request} was answered with no record: {error}") from error


def check_status(answer: HttpAnswer) -> None:
    """Return if the status is 2xx.

    Raises:
        Refused: 4xx.
        ServerFailed: 5xx.
        InvalidAnswer: anything else; redirects are not followed, since a POST would become a GET.
    """
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    text = f"{answer.request} was answered {answer.status} {answer.text}".rstrip()
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise errors.ServerFailed(text, answer.status)
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise errors.Refused(text, answer.status)
    raise errors.InvalidAnswer(f"{text}; redirects are not followed: use the server's own URL")
