"""The content of a request: its target, its principal, the records visible to it, its body, and posted records.

AUDITOR refuses repeated members in posted records, while msgspec keeps the last one: an amount given twice would be
charged as one of the two. Repeats are rare, so the colons in a body are counted first. The body is parsed again only if
it has more than its records need.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.store import Provenance
from auditord.store.protocol import Listed, Reads
from auditord.web.answers import JSON
from auditord.web.bodies import BodyTooLarge, UnreadableBody, receive_pieces, unpack
from auditord_hookspecs import AggregateQuery, Aggregates, InvalidRecord, Principal, Record, RecordQuery, RecordUpdate
from auditord_hookspecs.query import AllOf, Condition, IdEquals
from auditord_hookspecs.wire import decode_record

_LONGEST_PATH: Final = 200
_TOKEN: Final = re.compile(r"(auditord(?:_|%5f)[0-9a-f]{12}(?:_|%5f))[^/]+", re.IGNORECASE)
"""A token that was pasted into a path. The part before its secret is public, and tells which token to revoke."""

_PRINCIPAL: Final = web.RequestKey("principal", Principal)


class Target(msgspec.Struct, frozen=True):
    """A path and a query string, both still percent-encoded.

    Args:
        path: begins with a slash, without doubled or trailing ones (a base URL that ends in one makes ``//record``).
        query: everything after the first question mark.
    """

    path: str
    query: str

    @property
    def segments(self) -> list[str]:
        """The parts between the slashes, still percent-encoded."""
        return self.path.split("/")[1:]

    def segment(self, position: int) -> str:
        """Return the segment at a position, percent-decoded exactly once; ``+`` is a plus sign.

        Raises:
            UnicodeDecodeError: the decoded segment is not UTF-8.
        """
        return unquote_to_bytes(self.segments[position].encode("utf-8", "surrogateescape")).decode()


def read_target(raw: str) -> Target:
    """Split the request target of a request line, in origin form or (as sent to proxies) absolute form."""
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return Target("/" + "/".join(filter(None, path.split("/"))), query)


def path_for_logs(request: web.BaseRequest) -> str:
    """Return the beginning of a request's path without the secrets of tokens, never its query, which may hold more.

    Browsers do not send a fragment, which has the token in a link for logging in. Other programs may.
    """
    path, _, _ = read_target(request.raw_path).path.partition("#")
    return _TOKEN.sub(r"\1***", path)[:_LONGEST_PATH]


def set_principal(request: web.BaseRequest, principal: Principal) -> None:
    request[_PRINCIPAL] = principal


def principal_of(request: web.BaseRequest) -> Principal | None:
    """Return the principal of a request; None without authenticators and on the control socket."""
    # aiohttp raises for a missing key, which costs 1.4 µs in each POST to a daemon without authenticators.
    return request.get(_PRINCIPAL) if len(request) else None


def principal_name(request: web.BaseRequest) -> str | None:
    """Return the principal's name for provenance; None without a principal."""
    principal = principal_of(request)
    return None if principal is None else principal.name


def sender_of(request: web.BaseRequest, received_at: datetime) -> tuple[Principal | None, Provenance]:
    """Return the principal that sends records, and the records' provenance."""
    principal = principal_of(request)
    name = None if principal is None else principal.name
    return principal, Provenance(received_at, name, request.headers.get("User-Agent"))


R = TypeVar("R", bound=Listed)

RecordsFor: TypeAlias = Callable[[web.BaseRequest], Reads]
"""Returns the records that the sender of a request may see. Handlers that read have no store, so none can forget it."""


class RestrictedRecords(msgspec.Struct, frozen=True):
    """The records of a store or lake that a client may see. Hidden records are treated as missing.

    Implements :class:`Reads`.
    """

    store: Listed
    restriction: Condition

    async def get(self, record_id: str) -> bytes | None:
        """Return the wire text of a record; None if it is missing or hidden."""
        async with self.stream(RecordQuery(IdEquals(record_id), limit=1)) as chunks:
            return next((document for document in [each async for chunk in chunks for each in chunk]), None)

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Open a stream of chunks of visible records' wire texts."""
        return self.store.stream(replace(query, where=AllOf((query.where, self.restriction))))

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over visible records."""
        return await self.store.aggregate(replace(query, where=AllOf((query.where, self.restriction))))


def visible_records(source: R) -> Callable[[web.BaseRequest], R | RestrictedRecords]:
    """Return a function that selects the records that a caller may see: all of them if the caller is unrestricted."""

    def records(request: web.BaseRequest) -> R | RestrictedRecords:
        principal = principal_of(request)
        restriction = None if principal is None else principal.visible()
        return source if restriction is None else RestrictedRecords(source, restriction)

    return records


def totals_for(source: Listed) -> Callable[[web.BaseRequest], Callable[[AggregateQuery], Awaitable[Aggregates]] | None]:
    """Return a function that gives callers who may see totals the sums over all records; None to other callers.

    A query must not select or group records by labels, which would be sums with names.
    """

    def totals(request: web.BaseRequest) -> Callable[[AggregateQuery], Awaitable[Aggregates]] | None:
        principal = principal_of(request)
        return source.aggregate if principal is None or principal.sees_totals else None

    return totals


def client_key(request: web.BaseRequest) -> str:
    """Return the key under which ``Shares`` limits a client: its principal's name or, without one, its address."""
    return principal_name(request) or request.remote or ""


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the body as received, which may be compressed.

    Raises:
        BodyTooLarge: the body exceeds the limit; the rest is not read.
        ConnectionError: the client disconnected.
        TimeoutError: the client sends too slowly.
        aiohttp.web.RequestPayloadError: the transfer encoding is broken, or the connection ended too early.
    """
    content = request.content
    if content.is_eof():  # nearly every body arrives together with its head
        body = content.read_nowait(-1)
        if len(body) > limit:
            raise BodyTooLarge(f"{len(body)} bytes")
        return body
    return b"".join([piece async for piece in receive_pieces(request, limit)])


async def unpack_json(request: web.BaseRequest, body: bytes, limit: int) -> bytes | bytearray:
    """Return a decompressed body, which must be declared to be JSON.

    Raises:
        UnreadableBody: it is not, or cannot be decompressed.
        BodyTooLarge: it is too large when decompressed.
    """
    content_type = request.headers.get("Content-Type", "")
    if content_type != JSON and not is_json(content_type):
        raise UnreadableBody("Content type error")
    return await unpack(request, body, limit) if "Content-Encoding" in request.headers else body


def is_json(content_type: str) -> bool:
    """Return whether a content type is ``…/json`` or ``…/…+json``, with or without parameters."""
    main, slash, subtype = content_type.partition(";")[0].strip().lower().partition("/")
    return bool(main and slash) and (subtype == "json" or (subtype.endswith("+json") and subtype != "+json"))


MAX_RECORD_SIZE: Final = 2 << 20
"""AUDITOR's limit for the size of a record in bytes. A typical job has a few hundred."""

_values: Final = msgspec.json.Decoder(list[msgspec.Raw])
_IGNORED: Final = "runtime"
_OPTIONAL: Final = ("start_time", "stop_time", "meta")
_RECORD: Final = ("record_id", "start_time", "stop_time", "components", "meta")
_COMPONENT: Final = ("name", "amount", "scores")
_SCORE: Final = ("name", "value")
_IN_TIME: Final = 2
_IN_RECORD: Final = len(_RECORD) + 2 * _IN_TIME


class _Object(list[tuple[str, Any]]):  # Any: JSON
    """The members of a JSON object in their order, including repeats."""


def decode_posted(text: bytes) -> Record:
    """Decode a posted record.

    Raises:
        InvalidRecord: it is not a record, is too large, or has a repeated member.
    """
    if len(text) > MAX_RECORD_SIZE:
        raise InvalidRecord(f"the record has {len(text)} bytes, more than the limit of {MAX_RECORD_SIZE}")
    record = decode_record(text)
    refuse_repeated(text, (record,))
    return record


def refuse_repeated(text: bytes, records: Sequence[Record | RecordUpdate]) -> None:
    """Raise if a record, component or score repeats a member. Repeats in other objects are allowed.

    Args:
        text: the JSON of a record, or of an array of records.
        records: the records decoded from it.

    Raises:
        InvalidRecord: a member is repeated; the message names it.
    """
    if _is_plain(text, records):  # nearly always
        return
    try:
        # Integers may have any number of digits.
        document: Any = json.loads(text, object_pairs_hook=_Object, parse_int=len)  # Any: JSON
    except RecursionError as error:
        raise InvalidRecord("the JSON is nested too deeply") from error
    if isinstance(document, _Object):
        _refuse_in_record(document, "$")
    else:
        for at, each in enumerate(document):
            _refuse_in_record(each, f"$[{at}]")


def _is_plain(text: bytes, records: Sequence[Record | RecordUpdate]) -> bool:
    """Return whether JSON has only those colons that its records, components, scores and times need at least.

    ``{"record_id":"a","start_time":"2026-01-01T00:00:00Z","stop_time":null,"components":[],"meta":null}`` needs seven:
    five of members, and two of the only time. Another colon may be that of a repeated member.
    """
    count = 0
    for record in records:
        if record.meta is None or record.stop_time is None or record.start_time is None:
            if len(records) > 1:
                return all(map(_is_plain, map(bytes, _values.decode(text)), zip(records)))
            values = (record.start_time, record.stop_time, record.meta)
            for name, value in zip(_OPTIONAL, values, strict=True):
                # An omitted member lacks a colon, which a repeated one could make up for. A label can have its name.
                if value is None and (name in (record.meta or ()) or f'"{name}":'.encode() not in text):
                    return False
            count += _IN_TIME * ((record.stop_time is not None) + (record.start_time is not None) - 2)
        count += _IN_RECORD + len(record.meta or ()) + len(_COMPONENT) * len(record.components)
        for component in record.components:
            if component.scores:
                count += len(_SCORE) * len(component.scores)
    colons = text.count(b":")
    if colons == count:
        return True
    ignored = text.count(f'"{_IGNORED}":'.encode()) - sum(_IGNORED in (record.meta or ()) for record in records)
    return colons == count + ignored


def _refuse_in_record(record: _Object, path: str) -> None:
    _refuse(record, _RECORD, path)
    for at, component in enumerate(_last(record, "components")):
        _refuse(component, _COMPONENT, f"{path}.components[{at}]")
        for number, score in enumerate(_last(component, "scores")):
            _refuse(score, _SCORE, f"{path}.components[{at}].scores[{number}]")


def _refuse(members: _Object, names: Sequence[str], path: str) -> None:
    present = [name for name, _ in members]
    for name in names:
        if present.count(name) > 1:
            raise InvalidRecord(f"Object has the field `{name}` more than once - at `{path}`")


def _last(members: _Object, name: str) -> Sequence[_Object]:
    values: list[Sequence[_Object]] = [value for member, value in members if member == name]
    return values[-1]
