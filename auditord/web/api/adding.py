"""``POST /api/v1/records``: many records, each with its own verdict, never all or nothing."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from auditord.errors import StoreUnavailable
from auditord.ingest import QUEUED, Forbidden
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
        return Verdicts(dict(self._counts), self._listed, len(self) - len(self._listed))

    @property
    def handled(self) -> Verdicts | None:
        """The summary; None before the first verdict."""
        return self.sum_up() if len(self) else None

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
        split = _choose_split(request.headers.get("Content-Type", ""))
        parameters = by_name(parse_query_string(read_target(request.raw_path).query))
        with about("verdicts"):
            verdicts = VerdictList(_VERDICT_CHOICE.read("verdicts", parameters.get("verdicts", ())))
        try:
            elements = split(read_pieces(request, self.max_body))
            async with aclosing(elements), aclosing(_batches(elements)) as batches:
                async for batch in batches:
                    await self._handle(request, batch, verdicts)
        except NoArray as error:
            raise Refused(
                400,
                f"the body is not a JSON array: {error}",
                parameter="body",
                remedy=f"send an array of records, or one per line as {NDJSON}",
                handled=verdicts.handled,
            ) from error
        except UnreadableBody as error:
            raise Refused(415, str(error), parameter="Content-Encoding", handled=verdicts.handled) from error
        except TooLong as error:
            raise Refused(
                413,
                str(error),
                parameter="body",
                remedy="shorten the meta or components of this record: the limit of a record cannot be configured",
                handled=verdicts.handled,
            ) from error
        except BodyTooLarge as error:
            raise Refused(
                413,
                f"the body is too large ({error}); the limit is {self.max_body} bytes",
                parameter="body",
                remedy="send fewer records at once, or raise api.max_body",
                handled=verdicts.handled,
            ) from error
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
        records, positions, found = list[Record](), list[int](), list[Verdict]()
        for position, text in enumerate(batch, start=len(verdicts)):
            try:
                records.append(decode_posted(text))
                positions.append(position)
            except InvalidRecord as error:
                try:
                    readable_id = msgspec.json.decode(text, type=_Named).record_id
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    readable_id = None
                found.append(Verdict(position, "invalid", readable_id, sendable(str(error))))
            if position % _BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        principal, provenance = sender_of(request, self.now())
        outcomes = await self.ingest.accept(records, principal, provenance, atomic=False, duplicates=self.duplicates)
        forbidden = [outcome for outcome in outcomes if isinstance(outcome, Forbidden)]
        if forbidden:
            others = f", and so have {len(forbidden) - 1} more" if len(forbidden) > 1 else ""
            audit.log_refusal(request, provenance.principal, f"{forbidden[0]}{others}")
        report_large(records, self.metrics)
        for position, record, outcome in zip(positions, records, outcomes, strict=True):
            match outcome:
                case InvalidRecord():
                    verdict = Verdict(position, "invalid", record.record_id, sendable(str(outcome)))
                case Forbidden():
                    verdict = Verdict(position, "forbidden", record.record_id, _FORBIDDEN)
                case _:
                    reason = _EXISTS if outcome is StoreVerdict.EXISTS else None
                    verdict = Verdict(position, outcome.value, record.record_id, reason)
            found.append(verdict)
        verdicts.add(sorted(found, key=lambda verdict: verdict.position))


def _choose_split(content_type: str) -> Callable[[AsyncGenerator[bytes, None]], _Elements]:
    """Return the function that splits a body of this type into records.

    Raises:
        Refused: bodies of this type are not accepted.
    """
    if content_type.partition(";")[0].strip().lower() in LINES:
        return _split_lines
    if is_json(content_type):
        return _split_array
    raise Refused(
        415,
        f"the content type '{content_type[:60]}' is not accepted",
        parameter="Content-Type",
        remedy=f"set Content-Type: application/json for an array, or {NDJSON} for one record per line",
    )


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
