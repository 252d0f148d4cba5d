"""The routes that read: ``GET /record/{record_id}`` and ``GET /records``."""

import logging
from dataclasses import dataclass

from aiohttp import web

from auditord.errors import StoreUnavailable
from auditord.web.access.rows import RecordsFor
from auditord.web.answers import JSON, NULL, Answer, json_error
from auditord.web.query_string import InvalidQuery
from auditord.web.record_query import read_query
from auditord.web.sending import LongAnswers
from auditord.web.targets import read_target
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.records import check_name

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """The handlers of the routes that read.

    Args:
        records: those that the caller may see.
        answers: sends long ones.
    """

    records: RecordsFor
    answers: LongAnswers

    async def get_one(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /record/{record_id}``: one object; ``null`` for what cannot be an id; 404 where AUDITOR says 500."""
        try:
            record_id = read_target(request.raw_path).last_segment
            check_name(record_id)
        except (InvalidRecord, UnicodeDecodeError):
            return NULL
        try:
            text = await self.records(request).get(record_id)
        except StoreUnavailable as error:
            return _unavailable(request, error)
        return Answer(200, text, JSON) if text is not None else json_error(404, f"no record has the id '{record_id}'")

    async def get_many(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /records?…``: the matching objects one behind the other, without anything between them.

        The headers go out with the first page, so that a failing query is a 500; a later fault cuts the connection,
        since an answer that ends early must never look complete.
        """
        try:
            query = read_query(read_target(request.raw_path).query)
        except InvalidQuery as error:
            return json_error(400, str(error))
        try:
            return await self.answers.send(request, self.records(request).stream(query), JSON)
        except StoreUnavailable as error:
            return _unavailable(request, error)


def _unavailable(request: web.BaseRequest, error: StoreUnavailable) -> Answer:
    log.error("%s %s: the record store is away, the client was told so: %s", request.method, request.raw_path, error)
    return json_error(500, "The record store is not available; try again later.")
