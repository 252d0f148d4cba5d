"""The routes that write: ``POST /record``, ``POST /records``, ``PUT /record``.

The released clients never look at the status of a POST: whatever is answered, except the body ``RECORD_EXISTS``, counts
as success and the record is gone from their queues. So a POST is answered only when its records are durable or kept for
an operator; in every other case the connection is aborted, which the clients do notice. A PUT's status they do check.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.store import Provenance, RecordStore, Verdict
from auditord.web.access import Forbidden, audit, principal_name, principal_of
from auditord.web.access.limits import may_update, may_write, updating_roles
from auditord.web.answers import IGNORED, RECORD_EXISTS, STORED, Answer, plain_text
from auditord.web.bodies import BodyTooLarge, UnreadableBody, json_body, read_body
from auditord.web.dispatch import Abort
from auditord.web.figures import HttpFigures
from auditord.web.spooling import RequestSpool
from auditord.web.targets import read_target
from auditord_hookspecs import Close, Insert, InvalidRecord, Principal, Record, RecordUpdate
from auditord_hookspecs.wire import (
    MAX_CLIENT_OBJECT_BYTES,
    decode_record,
    decode_records,
    decode_update,
    encode_record,
)

log = logging.getLogger(__name__)

Decode: TypeAlias = Callable[[bytes], Sequence[Record]]
Keep: TypeAlias = Callable[[Sequence[Record], Provenance], Awaitable[Sequence[Verdict]]]

_SURELY_SMALL: Final = 2_000
"""Bytes of JSON whose wire text is within the clients' limit whatever is in it: a digit may become ``1.0``, a
backslash ``\\u005c``, ``1e15`` sixteen digits; nothing grows more than fivefold."""


@dataclass(frozen=True, slots=True)
class Writing:
    """The handlers of the routes that write.

    Args:
        store: where records go.
        spool: where they go while the store is away, and where bodies go that are refused.
        destinations: the senders that carry on what the spool took.
        duplicates: what a known id means.
        max_body: bytes of a body, packed or not.
        now: the clock.
        figures: what is counted.
    """

    store: RecordStore
    spool: RequestSpool
    destinations: Sequence[str]
    duplicates: Duplicates
    max_body: int
    now: Callable[[], datetime]
    figures: HttpFigures

    async def add_one(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /record``: one record as a JSON object."""
        return await self._receive(request, _decode_one, self._keep_one)

    async def add_many(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /records``: an array of records, all or nothing."""
        return await self._receive(request, decode_records, self._keep_many)

    async def _receive(self, request: web.BaseRequest, decode: Decode, keep: Keep) -> Answer:
        provenance = self._provenance(request)
        body = b""
        try:
            body = await read_body(request, self.max_body)
            text = json_body(request, body, self.max_body)
            records = decode(text)
            if (principal := principal_of(request)) is not None:
                await self._permit(principal, records)
            verdicts = await self._keep(records, provenance, keep)
        except BodyTooLarge as error:
            raise Abort("body_too_large", f"{_too_large(error)}; the client was cut off, nothing was stored") from error
        except UnreadableBody as error:
            return await self._refuse(request, body, str(error), provenance)
        except InvalidRecord as error:
            return await self._refuse(request, body, f"Json deserialize error: {error}", provenance)
        if len(text) > _SURELY_SMALL:
            report_large(records, self.figures)
        return self._answer(verdicts)

    async def _permit(self, principal: Principal, records: Sequence[Record]) -> None:
        """Return if all of them may be written."""
        try:
            allowed = await may_write(principal, records, self.store)
        except StoreUnavailable as error:
            text = f"whose record a posted one would close cannot be seen ({error}): give the role prefixes"
            raise Abort("not_durable", text) from error
        if not all(allowed):
            raise Forbidden(f"record {records[allowed.index(False)].record_id!r} is of a site or prefix of others")

    async def _keep_one(self, records: Sequence[Record], provenance: Provenance) -> Sequence[Verdict]:
        return (await self.store.add(records[0], provenance, self.duplicates),)

    async def _keep_many(self, records: Sequence[Record], provenance: Provenance) -> Sequence[Verdict]:
        return await self.store.add_all(records, provenance, self.duplicates, atomic=True) if records else ()

    async def _keep(self, records: Sequence[Record], provenance: Provenance, keep: Keep) -> Sequence[Verdict]:
        """Put the records into the store or, while it is away, durably into the spool."""
        try:
            return await keep(records, provenance)
        except StoreUnavailable as error:
            log.warning("the record store is away (%s): %d posted records go to the spool", error, len(records))
        try:
            await self.spool.accept([Insert(record) for record in records], provenance, self.destinations)
        except StoreUnavailable as error:
            remedy = "neither store nor spool can write: see to the disk; clients are cut off so that they try again"
            raise Abort("not_durable", f"{remedy} ({error})") from error
        self.figures.spooled_records += len(records)
        return ()

    async def _refuse(self, request: web.BaseRequest, body: bytes, reason: str, provenance: Provenance) -> Answer:
        """Answer 400, once the body is safe."""
        route = f"{request.method} {read_target(request.raw_path).path}"
        try:
            await self.spool.keep_refused_body(body, reason, provenance, route)
        except StoreUnavailable as error:
            raise Abort("not_durable", f"cannot keep a refused body ({error}): see to the spool's disk") from error
        self.figures.refused_bodies += 1
        log.warning("refused a body of %d bytes from %s, kept in quarantine: %s", len(body), request.remote, reason)
        return plain_text(400, reason)

    def _answer(self, verdicts: Sequence[Verdict]) -> Answer:
        if Verdict.EXISTS in verdicts:
            return RECORD_EXISTS
        if self.duplicates is Duplicates.IGNORE and not {Verdict.SAME, Verdict.DIFFERENT}.isdisjoint(verdicts):
            return IGNORED
        return STORED

    def _provenance(self, request: web.BaseRequest) -> Provenance:
        return Provenance(self.now(), principal_name(request), request.headers.get("User-Agent"))

    async def stop(self, request: web.BaseRequest) -> web.StreamResponse:
        """``PUT /record``: the stop time of a record that is there; everything else in the body is only checked."""
        try:
            body = json_body(request, await read_body(request, self.max_body), self.max_body)
            update = decode_update(body)
            found = await self._is_theirs(request, update) and await self._stop(update, self._provenance(request))
        except BodyTooLarge as error:
            return plain_text(413, _too_large(error))
        except UnreadableBody as error:
            return plain_text(400, str(error))
        except InvalidRecord as error:
            return plain_text(400, f"Json deserialize error: {error}")
        except StoreUnavailable:
            log.exception("PUT /record: the record store is away; the client was told so")
            return plain_text(500, "The record store is not available; try again later.")
        return STORED if found else plain_text(404, f"There is no record with the id '{update.record_id}'.")

    async def _is_theirs(self, request: web.BaseRequest, update: RecordUpdate) -> bool:
        """Whether the sender may update the stored record; another site's is not there for them.

        Raises:
            Forbidden: the id says that it is not theirs.
            StoreUnavailable: it is not in the store yet, so that nobody knows whose it is.
        """
        roles, foreign = updating_roles(principal_of(request), update.record_id), f"record {update.record_id!r}"
        if roles is None:
            return True
        if not roles:
            raise Forbidden(f"{foreign} has the prefix of others")
        stored = (await self.store.documents([update.record_id])).get(update.record_id)
        if stored is None and await self.spool.holds(update.record_id, self.destinations):
            raise StoreUnavailable(f"{foreign} is on its way to the store")
        if stored is not None and may_update(roles, decode_record(stored)):
            return True
        audit.refused(request, principal_name(request), f"{foreign} is not there, or of others")
        return False

    async def _stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        """Stop the record in the store or, where its insert still waits in the spool, behind that; False if neither."""
        if await self.store.stop(update, provenance):
            return True
        if await self.spool.holds(update.record_id, self.destinations):
            await self.spool.accept([Close(update.record_id, update.stop_time)], provenance, self.destinations)
            return True
        return await self.store.stop(update, provenance)  # it may just have arrived from the spool


def _decode_one(body: bytes) -> Sequence[Record]:
    return (decode_record(body),)


def report_large(records: Sequence[Record], figures: HttpFigures) -> None:
    """Count and name the records that AUDITOR's asynchronous client cannot read."""
    for record in filter(_is_large, records):
        figures.large_records += 1
        log.warning(
            "record '%s' has more than %d bytes of wire text: it is kept, but AUDITOR's asynchronous client cannot "
            "read any answer that holds it; shorten its meta or components at the source",
            record.record_id,
            MAX_CLIENT_OBJECT_BYTES,
        )


def _is_large(record: Record) -> bool:
    return len(msgspec.json.encode(record)) > _SURELY_SMALL and len(encode_record(record)) > MAX_CLIENT_OBJECT_BYTES


def _too_large(error: BodyTooLarge) -> str:
    return f"The body is larger than api.max_body allows ({error}): raise it, or send fewer records at once"
