"""``GET /api/v1/quarantine``: what could not be handled, without the raw input, which may hold personal data."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from auditord.spool import QuarantineEntry as StoredEntry
from auditord.spool import Spool
from auditord.web.answers import JSON, Answer
from auditord.web.api.shapes import QuarantineEntry, QuarantinePage
from auditord.web.api.values import COUNT, NAME, Whole, read_given
from auditord.web.record_query import about
from auditord.web.targets import read_target
from auditord_hookspecs.wire import format_time

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000

TASK: Final = NAME
AFTER: Final = COUNT
LIMIT: Final = Whole(1, LARGEST_PAGE)


@dataclass(frozen=True, slots=True)
class QuarantineQuery:
    """Which entries are wanted.

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
class QuarantineDesk:
    """Shows the quarantine.

    Args:
        spool: where it is.
    """

    spool: Spool

    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """A page of entries, the oldest first."""
        target = read_target(request.raw_path)
        query = read_quarantine_query(target.query)
        entries = await self.spool.quarantine_summaries(query.task, after=query.after, limit=query.limit + 1)
        shown = entries[: query.limit]
        more = f"{target.path}?{query.next(shown[-1].quarantine_id)}" if len(entries) > query.limit else None
        return Answer(200, msgspec.json.encode(QuarantinePage([summary(entry) for entry in shown], more)), JSON)


def read_quarantine_query(raw: str) -> QuarantineQuery:
    """What a query string asks for.

    Raises:
        InvalidQuery: it names an unknown parameter or holds a value out of range.
    """
    given = read_given(raw, ("task", "after", "limit"))
    with about("task"):
        task = TASK.read("task", given.get("task", ()))
    with about("after"):
        after = AFTER.read("after", given.get("after", ()))
    with about("limit"):
        limit = LIMIT.read("limit", given.get("limit", ()))
    return QuarantineQuery(task, after or 0, limit or DEFAULT_PAGE)


def summary(entry: StoredEntry) -> QuarantineEntry:
    """An entry as it is listed."""
    return QuarantineEntry(
        number=entry.quarantine_id,
        task=entry.task,
        stage=entry.stage.value,
        source_id=entry.source_id,
        reason=entry.reason,
        at=format_time(entry.quarantined_at),
        occurrences=entry.occurrences,
        route=entry.route,
    )
