"""The requests of the wire contract and the meaning of their answers, without any network."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

import msgspec

from auditord.client import errors
from auditord_hookspecs import HttpAnswer, InvalidRecord, Record
from auditord_hookspecs.wire import decode_record, encode_record, format_time

MAX_BODY_BYTES: Final = 2_000_000
"""AUDITOR refuses bodies above 2 MiB (2,097,152 bytes), bulk inserts as well."""

ENDLESS: Final = "the answer does not say where it ends, so that a cut would not show"

_RECORD_EXISTS: Final = b"RECORD_EXISTS"


@dataclass(frozen=True, slots=True)
class Chunk:
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
    """Bodies of at most so many bytes; a record that is larger alone makes a body of its own."""
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
    """The body of ``PUT /record``; everything else that must be in it is empty, and ignored."""
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
    check_status(answer)
    if answer.body.strip():
        raise errors.InvalidAnswer(f"{answer.request} was answered {answer.status} with {answer.text}: is it AUDITOR?")


def check_chunk_added(answer: HttpAnswer, chunk: Chunk) -> None:
    """Return if all records of a chunk are stored.

    Raises:
        ClientError: as :func:`check_added`; a :class:`RecordExists` names the chunk.
    """
    try:
        check_added(answer)
    except errors.RecordExists as error:
        text = f"{error} among the records {chunk.first} to {chunk.stop - 1}, none of which is stored"
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
    check_status(answer)
    if answer.body.strip():
        raise errors.InvalidAnswer(f"{answer.request} was answered {answer.status} with {answer.text}: is it AUDITOR?")


def read_record(answer: HttpAnswer) -> Record | None:
    """The record, or None if there is none (``null`` stands for an id that none can have).

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
