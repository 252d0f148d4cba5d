"""``POST /api/v1/records``: many records, each with a verdict of its own; never all or nothing."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec
from aiohttp import web

from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.ingest import QUEUED, Forbidden, Ingest, Outcome
from auditord.store import Provenance
from auditord.store import Verdict as StoreVerdict
from auditord.web.access import principal_name, principal_of
from auditord.web.answers import JSON, Answer
from auditord.web.api import bodies
from auditord.web.api.listing import NDJSON
from auditord.web.api.problems import Refused, sendable
from auditord.web.api.shapes import Verdict, Verdicts
from auditord.web.bodies import is_json
from auditord.web.figures import HttpFigures
from auditord.web.writing import report_large
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

log = logging.getLogger(__name__)

LINES: Final = frozenset({NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines"})

AT_ONCE: Final = 1_000
"""Records that share a transaction; more would hold up everybody else's."""

_BETWEEN_PAUSES: Final = 100  # about a millisecond of decoding

_ACCEPTED: Final = frozenset({QUEUED.value, *(each.value for each in StoreVerdict if each.accepted)})
_FORBIDDEN: Final = "the record is of a site, or has a prefix, that is not yours to write"
_EXISTS: Final = "the id belongs to another run, which started at another time, or any known id is refused here"

_pieces = msgspec.json.Decoder(list[msgspec.Raw])


class _Named(msgspec.Struct):
    record_id: str


@dataclass(frozen=True, slots=True)
class AddingDesk:
    """Takes records.

    Args:
        ingest: where they go.
        duplicates: what a known id means.
        max_body: bytes of a body, packed or not.
        now: the clock.
        figures: what is counted.
    """

    ingest: Ingest
    duplicates: Duplicates
    max_body: int
    now: Callable[[], datetime]
    figures: HttpFigures

    async def add(self, request: web.BaseRequest) -> web.StreamResponse:
        """An array or lines of records; 200 if each was accepted, else 207."""
        split = _splitter(request.headers.get("Content-Type", ""))
        pieces = list(split(await bodies.read(request, self.max_body)))
        provenance, verdicts = self._provenance(request), list[Verdict]()
        for begin in range(0, len(pieces), AT_ONCE):
            part = await _decode(pieces[begin : begin + AT_ONCE], begin)
            try:
                outcomes = await self.ingest.accept(
                    part.records, principal_of(request), provenance, atomic=False, duplicates=self.duplicates
                )
            except StoreUnavailable as error:
                log.warning("POST /api/v1/records: neither store nor spool can write (%s): see to the disk", error)
                raise _interrupted(verdicts) from error
            report_large(part.records, self.figures)
            verdicts += part.with_verdicts(outcomes)
        accepted = all(each.verdict in _ACCEPTED for each in verdicts)
        return Answer(200 if accepted else 207, msgspec.json.encode(_summed_up(verdicts)), JSON)

    def _provenance(self, request: web.BaseRequest) -> Provenance:
        return Provenance(self.now(), principal_name(request), request.headers.get("User-Agent"))


@dataclass(slots=True)
class _Part:
    """Some of a request's records."""

    records: list[Record] = field(default_factory=list[Record])
    positions: list[int] = field(default_factory=list[int])
    invalid: list[Verdict] = field(default_factory=list[Verdict])

    def with_verdicts(self, found: Sequence[Outcome]) -> Sequence[Verdict]:
        """One verdict per record, in the order of the request."""
        judged = [
            _verdict(position, record.record_id, verdict)
            for position, record, verdict in zip(self.positions, self.records, found, strict=True)
        ]
        return sorted([*judged, *self.invalid], key=lambda verdict: verdict.position)


def _verdict(position: int, record_id: str, found: Outcome) -> Verdict:
    match found:
        case InvalidRecord():
            return Verdict(position, "invalid", record_id, sendable(str(found)))
        case StoreVerdict.EXISTS:
            return Verdict(position, found.value, record_id, _EXISTS)
        case Forbidden():
            return Verdict(position, "forbidden", record_id, _FORBIDDEN)
        case _:
            return Verdict(position, found.value, record_id)


async def _decode(pieces: Sequence[bytes | msgspec.Raw], begin: int) -> _Part:
    part = _Part()
    for position, piece in enumerate(pieces, start=begin):
        text = bytes(piece)
        try:
            part.records.append(decode_record(text))
            part.positions.append(position)
        except InvalidRecord as error:
            part.invalid.append(Verdict(position, "invalid", _readable_id(text), sendable(str(error))))
        if position % _BETWEEN_PAUSES == 0:
            await asyncio.sleep(0)
    return part


def _readable_id(text: bytes) -> str | None:
    try:
        return msgspec.json.decode(text, type=_Named).record_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _splitter(content_type: str) -> "Callable[[bytes], Iterator[bytes | msgspec.Raw]]":
    if content_type.partition(";")[0].strip().lower() in LINES:
        return _lines
    if is_json(content_type):
        return _array
    remedy = f"say Content-Type: application/json for an array, or {NDJSON} for one record per line"
    raise Refused(
        415, f"the content type '{content_type[:60]}' is not taken here", parameter="Content-Type", remedy=remedy
    )


def _lines(body: bytes) -> Iterator[bytes]:
    return (line for line in body.splitlines() if line.strip())


def _array(body: bytes) -> Iterator[msgspec.Raw]:
    try:
        return iter(_pieces.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        remedy = f"send an array of records, or one per line as {NDJSON}"
        raise Refused(400, f"the body is no JSON array: {error}", parameter="body", remedy=remedy) from error


def _summed_up(verdicts: list[Verdict]) -> Verdicts:
    return Verdicts(dict(Counter(each.verdict for each in verdicts)), verdicts)


def _interrupted(verdicts: list[Verdict]) -> Refused:
    detail = f"nothing can be written at the moment; {len(verdicts)} records were handled, the others were not"
    return Refused(503, detail, remedy="post those that were not handled again later", handled=_summed_up(verdicts))
