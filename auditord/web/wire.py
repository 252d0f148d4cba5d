"""AUDITOR's routes: records are written with ``POST`` and ``PUT``, and read with ``GET``.

The released clients never check the status of a POST. They take any answer for success, except for the body
``RECORD_EXISTS``, and delete the record from their queues. So a POST is answered only once its records are durable or
kept for an operator. Otherwise the connection is aborted, which the clients do notice. They do check the status of a
PUT.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from aiohttp import web

from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.ingest import Ingest, Stopped, writing_roles
from auditord.store import Verdict
from auditord.store.lake import LakeUnavailable
from auditord.web.access import audit
from auditord.web.answers import IGNORED, JSON, NULL, RECORD_EXISTS, STORED, Answer, json_error, plain_text
from auditord.web.bodies import BodyTooLarge, UnreadableBody
from auditord.web.dispatch import Abort, HttpMetrics
from auditord.web.elements import SURELY_SMALL, Decoded, decode_array
from auditord.web.operations import Operation
from auditord.web.record_query import InvalidQuery, read_query
from auditord.web.requests import (
    MAX_RECORD_SIZE,
    RecordsFor,
    decode_posted,
    path_for_logs,
    read_body,
    read_target,
    refuse_repeated,
    sender_of,
    unpack_json,
)
from auditord.web.streams import StreamedAnswers
from auditord_hookspecs import InvalidRecord, Permission, Record
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import (
    MAX_CLIENT_OBJECT_BYTES,
    decode_update,
    encode_record,
)

log = logging.getLogger(__name__)


class ReadHandlers(msgspec.Struct, frozen=True):
    """Handles the routes that read."""

    records: RecordsFor
    answers: StreamedAnswers

    @Operation("GET", "/record/{record_id}", "", "a record", Permission.READ)
    async def get_one(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``GET /record/{record_id}``: one object; ``null`` for an invalid id; 404 where AUDITOR says 500."""
        try:
            record_id = read_target(request.raw_path).segment(-1)
            check_name(record_id)
        except (InvalidRecord, UnicodeDecodeError):
            return NULL
        try:
            text = await self.records(request).get(record_id)
        except StoreUnavailable as error:
            return _unavailable(request, error)
        return Answer(200, text, JSON) if text is not None else json_error(404, f"no record has the id '{record_id}'")

    @Operation("GET", "/records", "", "records, one object after another", Permission.READ)
    async def get_many(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``GET /records?…`` with the matching objects, concatenated without a separator.

        Headers are sent with the first chunk, so a query that fails before is a 500. A later error cuts the connection,
        because a truncated answer must never look complete.
        """
        try:
            query = read_query(request.raw_path.partition("?")[2])
        except InvalidQuery as error:
            return json_error(400, str(error))
        try:
            return await self.answers.send(request, self.records(request).stream(query), JSON)
        except StoreUnavailable as error:
            return _unavailable(request, error)


def _unavailable(request: web.BaseRequest, error: StoreUnavailable) -> Answer:
    log.error("%s %s was answered 500: %s", request.method, path_for_logs(request), error)
    if isinstance(error, LakeUnavailable):
        return json_error(500, f"{error.summary}: run `auditord lake verify`; the daemon's log has the reason")
    return json_error(500, "The record store is not available; try again later.")


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """The shared fields of handlers that write records.

    Args:
        duplicates: how to treat known ids.
        max_body: the most bytes of a body, compressed or not.
    """

    ingest: Ingest
    duplicates: Duplicates
    max_body: int
    now: Callable[[], datetime]
    metrics: HttpMetrics


class WriteHandlers(RecordWriter):
    @Operation("POST", "/record", "", "add a record", Permission.WRITE)
    def add_one(self, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        """Answer ``POST /record``: add one record, a JSON object."""
        return self._receive(request, are_many=False)

    @Operation("POST", "/records", "", "add records, all or none", Permission.WRITE)
    def add_many(self, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        """Answer ``POST /records``: add an array of records, all or nothing."""
        return self._receive(request, are_many=True)

    async def _receive(self, request: web.BaseRequest, *, are_many: bool) -> Answer:
        principal, provenance = sender_of(request, self.now())
        body = b""
        try:
            body = await read_body(request, self.max_body)
            text = await unpack_json(request, body, self.max_body)
            if are_many:
                found = await decode_array(text)
            else:
                record = decode_posted(bytes(text))
                found = Decoded([record], [record] if len(text) > SURELY_SMALL else [])
            outcomes = await self.ingest.accept(
                found.records, principal, provenance, atomic=True, duplicates=self.duplicates
            )
        except BodyTooLarge as error:
            raise Abort("body_too_large", f"{_too_large(error)}; the client was cut off, nothing was stored") from error
        except UnreadableBody as error:
            return await self._refuse(request, body, str(error))
        except InvalidRecord as error:
            return await self._refuse(request, body, f"Json deserialize error: {error}")
        except StoreUnavailable as error:
            remedy = "neither store nor spool can write: check the disk; clients are cut off so that they try again"
            raise Abort("not_durable", f"{remedy} ({error})") from error
        if found.longish:
            report_large(found.longish, self.metrics)
        if Verdict.EXISTS in outcomes:
            return RECORD_EXISTS
        if self.duplicates is Duplicates.IGNORE and (Verdict.SAME in outcomes or Verdict.DIFFERENT in outcomes):
            return IGNORED
        return STORED

    async def _refuse(self, request: web.BaseRequest, body: bytes, reason: str) -> Answer:
        """Keep the body in quarantine, then answer 400."""
        principal, provenance = sender_of(request, self.now())
        route = f"{request.method} {read_target(request.raw_path).path}"
        try:
            await self.ingest.spool.keep_refused_body(body, reason, provenance, route, writing_roles(principal))
        except StoreUnavailable as error:
            raise Abort("not_durable", f"cannot keep a refused body ({error}): check the spool's disk") from error
        self.metrics.refused_bodies += 1
        log.warning("refused a body of %d bytes from %s, kept in quarantine: %s", len(body), request.remote, reason)
        return plain_text(400, reason)

    @Operation("PUT", "/record", "", "set a record's stop time", Permission.UPDATE)
    async def stop(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``PUT /record``: set the stop time of a stored record. The rest of the body is only validated."""
        principal, provenance = sender_of(request, self.now())
        try:
            limit = min(self.max_body, MAX_RECORD_SIZE)
            body = await read_body(request, limit)
            text = bytes(await unpack_json(request, body, limit))
            update = decode_update(text)
            refuse_repeated(text, (update,))
            stopped = await self.ingest.stop(update, principal, provenance)
        except BodyTooLarge as error:
            return plain_text(413, _too_large(error))
        except UnreadableBody as error:
            return plain_text(400, str(error))
        except InvalidRecord as error:
            return plain_text(400, f"Json deserialize error: {error}")
        except StoreUnavailable as error:
            log.error("PUT /record was answered 500, because the record store is unavailable: %s", error)  # noqa: TRY400 no trace
            return plain_text(500, "The record store is not available; try again later.")
        if stopped is Stopped.HIDDEN:
            audit.log_refusal(
                request, provenance.principal, f"record {update.record_id!r} does not exist, or belongs to others"
            )
        missing = f"There is no record with the id '{update.record_id}'."
        return STORED if stopped is Stopped.DONE else plain_text(404, missing)


def report_large(records: Sequence[Record], metrics: HttpMetrics) -> None:
    """Count and log the records that AUDITOR's asynchronous client cannot read."""
    for record in records:
        if len(msgspec.json.encode(record)) <= SURELY_SMALL or len(encode_record(record)) <= MAX_CLIENT_OBJECT_BYTES:
            continue
        metrics.large_records += 1
        log.warning(
            "record '%s' has more than %d bytes of wire text: it is stored, but AUDITOR's asynchronous client "
            "cannot read any answer that contains it; shorten its meta or components at the source",
            record.record_id,
            MAX_CLIENT_OBJECT_BYTES,
        )


def _too_large(error: BodyTooLarge) -> str:
    remedy = "send fewer records at once, or raise api.max_body"
    return f"The body is too large ({error}): {remedy}"
