"""``/api/v1/quarantine``: jobs, records and bodies that could not be handled.

The list has no raw input, which may hold personal data.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from aiohttp import web

from auditord.actions import Actions, Retried
from auditord.spool import Spool
from auditord.web.answers import JSON, json_answer
from auditord.web.api.operation import BODY_PROBLEMS, Operation, Parameter, decoded
from auditord.web.api.quarantine_entries import summary, with_input
from auditord.web.api.shapes import Chosen, Discarded, QuarantinedInput, QuarantinePage
from auditord.web.api.values import COUNT, NAME, Whole, read_given
from auditord.web.problems import Refused
from auditord.web.record_query import about
from auditord.web.requests import read_target
from auditord_hookspecs import Permission

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000

LIMIT: Final = Whole(1, LARGEST_PAGE)


ENTRY: Final = Parameter("number", "The number of an entry.", COUNT.schema, in_path=True)
QUARANTINE: Final = (
    Parameter("task", "Only what this collector or sender left; api for bodies that clients posted.", NAME.schema),
    Parameter("after", "Only entries with a higher number.", COUNT.schema),
    Parameter(
        "limit",
        f"At most so many entries; {DEFAULT_PAGE} if not given.",
        LIMIT.schema,
    ),
)


@dataclass(frozen=True, slots=True)
class QuarantineQuery:
    """A page of the quarantine that is asked for.

    Args:
        task: only those of this collector, sender or ``api``.
        after: only those with a higher number.
        limit: how many at most.
    """

    task: str | None
    after: int
    limit: int

    def next(self, last: int) -> str:
        """The query string that asks for what follows an entry."""
        task = {} if self.task is None else {"task": self.task}
        return urlencode({**task, "after": last, "limit": self.limit})


@dataclass(frozen=True, slots=True)
class QuarantineHandlers:
    """The handlers of the quarantine."""

    spool: Spool
    actions: Actions

    @Operation(
        "GET",
        "/api/v1/quarantine",
        "listQuarantine",
        "See what could not be handled.",
        Permission.OPERATE,
        {200: {JSON: QuarantinePage}},
        problems=(400, 503),
        parameters=QUARANTINE,
    )
    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """A page of entries, the oldest first."""
        target = read_target(request.raw_path)
        query = read_quarantine_query(target.query)
        entries = await self.spool.quarantine_summaries(query.task, after=query.after, limit=query.limit + 1)
        shown = entries[: query.limit]
        more = f"{target.path}?{query.next(shown[-1].quarantine_id)}" if len(entries) > query.limit else None
        return json_answer(QuarantinePage([summary(entry) for entry in shown], more))

    @Operation(
        "GET",
        "/api/v1/quarantine/{number}",
        "getQuarantined",
        "See one entry of the quarantine with its raw input, which may hold personal data.",
        Permission.OPERATE,
        {200: {JSON: QuarantinedInput}},
        problems=(404, 503),
        parameters=(ENTRY,),
        guarded=True,
    )
    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """One entry of the quarantine, with its raw input."""
        text = read_target(request.raw_path).segment(-1)
        is_number = text.isascii() and text.isdigit() and len(text) <= 18  # noqa: PLR2004 fits 63 bits
        entry = await self.spool.quarantine_get(int(text)) if is_number else None
        if entry is None:
            remedy = "GET /api/v1/quarantine lists what there is"
            raise Refused(404, f"the quarantine has no entry '{text}'", parameter="number", remedy=remedy)
        return json_answer(with_input(entry))

    @Operation(
        "POST",
        "/api/v1/quarantine/retry",
        "retryQuarantined",
        "Try entries again, each on its own.",
        Permission.OPERATE,
        {200: {JSON: Retried}},
        problems=(*BODY_PROBLEMS, 503),
        body={JSON: Chosen},
        guarded=True,
    )
    async def retry(self, request: web.BaseRequest) -> web.StreamResponse:
        """Retry entries of the quarantine."""
        chosen = await decoded(request, Chosen)
        return json_answer(await self.actions.retry(chosen.ids))

    @Operation(
        "POST",
        "/api/v1/quarantine/discard",
        "discardQuarantined",
        "Forget entries for good.",
        Permission.OPERATE,
        {200: {JSON: Discarded}},
        problems=(*BODY_PROBLEMS, 503),
        body={JSON: Chosen},
        guarded=True,
    )
    async def discard(self, request: web.BaseRequest) -> web.StreamResponse:
        """Discard entries of the quarantine."""
        chosen = await decoded(request, Chosen)
        return json_answer(Discarded(await self.actions.discard(chosen.ids)))


def read_quarantine_query(raw: str) -> QuarantineQuery:
    """Read a query string.

    Raises:
        InvalidQuery: it names an unknown parameter or holds a value out of range.
    """
    given = read_given(raw, ("task", "after", "limit"))
    with about("task"):
        task = NAME.read("task", given.get("task", ()))
    with about("after"):
        after = COUNT.read("after", given.get("after", ()))
    with about("limit"):
        limit = LIMIT.read("limit", given.get("limit", ()))
    return QuarantineQuery(task, after or 0, limit or DEFAULT_PAGE)
