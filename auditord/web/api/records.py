"""``GET /api/v1/records`` and ``GET /api/v1/records/{record_id}``."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from auditord.web.answers import JSON, Answer
from auditord.web.api.lake_source import LakeSource, source_parameter
from auditord.web.api.listing import NDJSON, PAGING, Listing, read_listing
from auditord.web.api.operation import Operation
from auditord.web.api.parameters import FILTERS, RECORD_ID
from auditord.web.api.shapes import RecordPage, StoredRecord
from auditord.web.problems import Refused
from auditord.web.requests import RecordsFor, read_target
from auditord.web.streams import Pages, StreamedAnswers
from auditord_hookspecs import InvalidRecord, Permission
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import decode_record

_LINES: Final = ", those of the archive among them; over a lake of several daemons, records come as NDJSON only"


@dataclass(frozen=True, slots=True)
class RecordHandlers:
    """Reads records."""

    records: RecordsFor
    answers: StreamedAnswers
    lake: LakeSource

    @Operation(
        "GET",
        "/api/v1/records/{record_id}",
        "getRecord",
        "Read one record.",
        Permission.READ,
        {200: {JSON: StoredRecord}},
        problems=(404, 503),
        parameters=(RECORD_ID,),
    )
    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """One record as an object."""
        try:
            record_id = read_target(request.raw_path).segment(-1)
            check_name(record_id)
        except InvalidRecord as error:
            raise Refused(404, f"no record can have this id: {error}", parameter="record_id") from error
        text = await self.records(request).get(record_id)
        if text is None:
            remedy = "percent-encode the id as one segment ('/' is %2F), and mind upper and lower case"
            raise Refused(404, f"no record has the id '{record_id}'", parameter="record_id", remedy=remedy)
        return Answer(200, text, JSON)

    @Operation(
        "GET",
        "/api/v1/records",
        "listRecords",
        "Read records, filtered, in pages or as lines.",
        Permission.READ,
        {200: {JSON: RecordPage, NDJSON: StoredRecord}},
        problems=(400, 503),
        parameters=(*FILTERS, *PAGING, source_parameter(_LINES)),
    )
    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Records as a page of JSON or as any number of lines.

        Headers go out once the query has begun, so that a failing one is a 503; a later fault cuts the connection.
        """
        target = read_target(request.raw_path)
        listing = read_listing(target.query, request.headers.get("Accept", ""))
        parts = _parts(self._opened(request, listing), listing, target.path)
        return await self.answers.send(request, parts, NDJSON if listing.format == "ndjson" else JSON)

    def _opened(self, request: web.BaseRequest, listing: Listing) -> AbstractAsyncContextManager[Pages]:
        if not listing.of_lake:
            return self.records(request).stream(listing.query)
        if self.lake.is_of_many and listing.format == "json":
            raise Refused(
                400,
                "the lake has records of several daemons, and a page cannot end between two of one id",
                parameter="format",
                remedy="ask for lines: format=ndjson",
            )
        return self._in_lake(request, listing)

    @asynccontextmanager
    async def _in_lake(self, request: web.BaseRequest, listing: Listing) -> AsyncGenerator[Pages, None]:
        async with AsyncExitStack() as stack:
            with self.lake.faults():
                pages = await stack.enter_async_context(self.lake.records(request).stream(listing.query))
            yield pages


@asynccontextmanager
async def _parts(
    opened: AbstractAsyncContextManager[Pages], listing: Listing, path: str
) -> AsyncGenerator[Pages, None]:
    async with opened as pages:
        parts = _lines(pages) if listing.format == "ndjson" else _envelope(pages, listing, path)
        async with aclosing(parts):
            yield parts


async def _lines(pages: AsyncIterator[Sequence[bytes]]) -> AsyncGenerator[Sequence[bytes], None]:
    async for page in pages:
        yield [piece for document in page for piece in (document, b"\n")]


async def _envelope(
    pages: AsyncIterator[Sequence[bytes]], listing: Listing, path: str
) -> AsyncGenerator[Sequence[bytes], None]:
    """One object: the records, and where the next page is; one record more than the page shows that there is one."""
    left, last, begin, following = listing.page, b"", b'{"records":[', None
    async for page in pages:
        taken = page[:left]
        if taken:
            yield [begin, b",".join(taken)]
            left, last, begin = left - len(taken), taken[-1], b","
        if len(taken) < len(page):
            following = f"{path}?{listing.next(decode_record(last))}"
    if begin != b",":
        yield [begin]
    yield [b'],"next":', msgspec.json.encode(following), b"}"]
