"""``POST /api/v1/records``: many records, each with its own verdict, never all or nothing."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from auditord.errors import StoreUnavailable
from auditord.ingest import QUEUED, Forbidden, Outcome
from auditord.store import Verdict as StoreVerdict
from auditord.web.access import audit
from auditord.web.answers import JSON, json_answer, sendable
from auditord.web.api.operation import BODY_PROBLEMS, Choice
from auditord.web.api.records import NDJSON
from auditord.web.bodies import BodyTooLarge, UnreadableBody, read_pieces
from auditord.web.elements import LineElements, NoArray, TooLong, split_array
from auditord.web.operations import Operation, Parameter
from auditord.web.problem_shapes import Verdict, Verdicts
from auditord.web.problems import Refused
from auditord.web.record_query import about, by_name, parse_query_string
from auditord.web.requests import MAX_RECORD_SIZE, decode_posted, is_json, read_target, sender_of
from auditord.web.wire import RecordWriter, report_large
from auditord_hookspecs import InvalidRecord, Permission, Record
from auditord_hookspecs.wording import counted

ACCEPTED: Final = frozenset({QUEUED.value, *(each.value for each in StoreVerdict if each.accepted)})

LISTED: Final = 10_000
"""Maximum number of verdicts that are listed by default. For more records, only refusals are listed."""

LISTED_ON_DEMAND: Final = 100_000
"""Maximum number of verdicts that are listed if all are requested."""

_VERDICT_CHOICE: Final = Choice(("all", "failed"))

VERDICTS: Final = Parameter(
    "verdicts",
    f"Which verdicts are listed: all (up to {LISTED_ON_DEMAND}) or failed (up to {LISTED}). By default all of up to "
    f"{LISTED} records, and of more those that failed. All are counted.",
    _VERDICT_CHOICE.schema,
)


class VerdictList:
    """Counts verdicts and keeps those to be listed.

    Args:
        listed: ``all``, ``failed``, or None for all of up to :data:`LISTED` records and the failed ones of more.
    """

    def __init__(self, listed: str | None = None) -> None:
        self._choice = listed
        self._max_listed = LISTED_ON_DEMAND if listed == "all" else LISTED
        self._counts = Counter[str]()
        self._listed: list[Verdict] = []

    def __len__(self) -> int:
        return self._counts.total()

    def __getitem__(self, verdict: str) -> int:
        return self._counts[verdict]

    @property
    def all_accepted(self) -> bool:
        """True if nothing was refused."""
        return self._counts.keys() <= ACCEPTED

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count verdicts and keep those to be listed."""
        for verdict in verdicts:
            self._counts[verdict.verdict] += 1
            if self._is_listed(verdict) and len(self._listed) < self._max_listed:
                self._listed.append(verdict)
        if self._choice is None and len(self) > LISTED:
            self._choice = "failed"
            self._listed = list(filter(self._is_listed, self._listed))

    def sum_up(self) -> Verdicts:
        """Return the summary for the client."""
        return Verdicts(dict(self._counts), self._listed, len(self) - len(self._listed))

    def _is_listed(self, verdict: Verdict) -> bool:
        return self._choice != "failed" or verdict.verdict not in ACCEPTED


log = logging.getLogger(__name__)

LINES: Final = frozenset({NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines"})

MAX_BATCH: Final = 1_000
"""Maximum number of records per batch, which is one transaction. Larger transactions would delay other writers."""

_MAX_BATCH_BYTES: Final = 1 << 20

MAX_INVALID: Final = 10_000
"""Maximum number of invalid elements in a body. If a body has more, it is refused with 400, and its rest is ignored."""

_BETWEEN_PAUSES: Final = 100  # about a millisecond of decoding

_Elements: TypeAlias = AsyncGenerator[Sequence[bytes], None]

_FORBIDDEN: Final = "you have no permission to write records of this site, or with this prefix"
_EXISTS: Final = "the id belongs to a run with another start time, or api.duplicates refuses every known id"


class _Named(msgspec.Struct):
    record_id: str


class AddHandler(RecordWriter):
    """Handles ``POST /api/v1/records``."""

    @Operation(
        "POST",
        "/api/v1/records",
        "addRecords",
        "Add records, each with a verdict of its own: refused records do not affect the others.",
        Permission.WRITE,
        {200: {JSON: Verdicts}, 207: {JSON: Verdicts}},
        problems=(*BODY_PROBLEMS, 503),
        parameters=(VERDICTS,),
        body={JSON: list[Record], NDJSON: Record},
    )
    async def add(self, request: web.BaseRequest) -> web.StreamResponse:
        """Store lines as they arrive, or an array once it is complete; answer 200 if all are accepted, else 207.

        A body that cannot be processed to its end is answered with 400, 413 or 415, and with 503 if nothing can be
        written. Records before the fault stay stored; the answer counts them.
        """
        content_type = request.headers.get("Content-Type", "")
        if content_type.partition(";")[0].strip().lower() in LINES:
            split = _split_lines
        elif is_json(content_type):
            split = _split_array
        else:
            raise Refused(
                415,
                f"the content type '{content_type[:60]}' is not accepted",
                parameter="Content-Type",
                remedy=f"set Content-Type: application/json for an array, or {NDJSON} for one record per line",
            )
        parameters = by_name(parse_query_string(read_target(request.raw_path).query))
        with about("verdicts"):
            verdicts = VerdictList(_VERDICT_CHOICE.read("verdicts", parameters.get("verdicts", ())))
        try:
            elements = split(read_pieces(request, self.max_body))
            async with aclosing(elements), aclosing(_batches(elements)) as batches:
                async for batch in batches:
                    await self._handle(request, batch, verdicts)
        except (NoArray, TooLong, BodyTooLarge, UnreadableBody) as error:
            raise _make_refusal(error, verdicts, self.max_body) from error
        except StoreUnavailable as error:
            log.warning("POST /api/v1/records: neither store nor spool can write (%s): check the disk", error)
            handled = counted(len(verdicts), "record was", "records were")
            raise Refused(
                503,
                f"nothing can be written at the moment; {handled} handled, the others were not",
                remedy="later, post again the records that were not handled",
                handled=verdicts.sum_up(),
            ) from error
        status = 200 if verdicts.all_accepted else 207
        return json_answer(verdicts.sum_up(), status)

    async def _handle(self, request: web.BaseRequest, batch: Sequence[bytes], verdicts: VerdictList) -> None:
        if verdicts["invalid"] > MAX_INVALID:
            detail = f"more than {MAX_INVALID} elements are not valid records; the rest was ignored"
            remedy = "see the reasons, fix the source, and post everything again: stored records stay unchanged"
            raise Refused(400, detail, parameter="body", remedy=remedy, handled=verdicts.sum_up())
        part = _Part()
        for position, text in enumerate(batch, start=len(verdicts)):
            try:
                part.records.append(decode_posted(text))
                part.positions.append(position)
            except InvalidRecord as error:
                try:
                    readable_id = msgspec.json.decode(text, type=_Named).record_id
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    readable_id = None
                part.invalid.append(Verdict(position, "invalid", readable_id, sendable(str(error))))
            if position % _BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        principal, provenance = sender_of(request, self.now())
        outcomes = await self.ingest.accept(
            part.records, principal, provenance, atomic=False, duplicates=self.duplicates
        )
        forbidden = [outcome for outcome in outcomes if isinstance(outcome, Forbidden)]
        if forbidden:
            others = f", and so have {len(forbidden) - 1} more" if len(forbidden) > 1 else ""
            audit.log_refusal(request, provenance.principal, f"{forbidden[0]}{others}")
        report_large(part.records, self.metrics)
        verdicts.add(part.with_verdicts(outcomes))


@dataclass(slots=True)
class _Part:
    """A batch of a request's records, with their positions in the request."""

    records: list[Record] = field(default_factory=list[Record])
    positions: list[int] = field(default_factory=list[int])
    invalid: list[Verdict] = field(default_factory=list[Verdict])

    def with_verdicts(self, outcomes: Sequence[Outcome]) -> Sequence[Verdict]:
        """Return a verdict per record, in the order of the request."""
        classified = [
            _verdict(position, record.record_id, outcome)
            for position, record, outcome in zip(self.positions, self.records, outcomes, strict=True)
        ]
        return sorted([*classified, *self.invalid], key=lambda verdict: verdict.position)


def _verdict(position: int, record_id: str, outcome: Outcome) -> Verdict:
    match outcome:
        case InvalidRecord():
            return Verdict(position, "invalid", record_id, sendable(str(outcome)))
        case StoreVerdict.EXISTS:
            return Verdict(position, outcome.value, record_id, _EXISTS)
        case Forbidden():
            return Verdict(position, "forbidden", record_id, _FORBIDDEN)
        case _:
            return Verdict(position, outcome.value, record_id)


async def _split_lines(pieces: AsyncGenerator[bytes, None]) -> _Elements:
    lines = LineElements(MAX_RECORD_SIZE)
    async with aclosing(pieces):
        async for piece in pieces:
            yield lines.feed(piece)
    yield lines.end()


async def _split_array(pieces: AsyncGenerator[bytes, None]) -> _Elements:
    text = bytearray()
    async with aclosing(pieces):
        async for piece in pieces:
            text += piece
    for part in split_array(text):
        yield [bytes(each) for each in part.elements]


async def _batches(elements: _Elements) -> AsyncGenerator[Sequence[bytes], None]:
    batch, size = list[bytes](), 0
    async for some in elements:
        for element in some:
            batch.append(element)
            size += len(element)
            if len(batch) == MAX_BATCH or size > _MAX_BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _make_refusal(error: Exception, verdicts: VerdictList, limit: int) -> Refused:
    handled = verdicts.sum_up() if len(verdicts) else None
    match error:
        case NoArray():
            remedy = f"send an array of records, or one per line as {NDJSON}"
            return Refused(
                400, f"the body is not a JSON array: {error}", parameter="body", remedy=remedy, handled=handled
            )
        case UnreadableBody():
            return Refused(415, str(error), parameter="Content-Encoding", handled=handled)
        case TooLong():
            remedy = "shorten the meta or components of this record: the limit of a record cannot be configured"
            return Refused(413, str(error), parameter="body", remedy=remedy, handled=handled)
        case _:
            remedy = "send fewer records at once, or raise api.max_body"
            detail = f"the body is too large ({error}); the limit is {limit} bytes"
            return Refused(413, detail, parameter="body", remedy=remedy, handled=handled)
