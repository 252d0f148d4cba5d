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
from auditord.web.query_string import InvalidQuery, parse_query_string
from auditord.web.record_query import about, by_name, read_number, refuse_unknown, scalar
from auditord.web.targets import read_target
from auditord_hookspecs.wire import format_time

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000

_PARAMETERS: Final = ("task", "after", "limit")


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
    given = by_name(parse_query_string(raw))
    refuse_unknown(given, _PARAMETERS)
    texts: dict[str, str | None] = {}
    for name in _PARAMETERS:
        with about(name):
            texts[name] = scalar(name, given.get(name, ()))
    with about("after"):
        after = read_number("after", texts["after"] or "0")
    with about("limit"):
        limit = read_number("limit", texts["limit"] or str(DEFAULT_PAGE))
        if not 1 <= limit <= LARGEST_PAGE:
            raise InvalidQuery(f"a page has 1 to {LARGEST_PAGE} entries: follow 'next' for more")
    return QuarantineQuery(texts["task"], after, limit)


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
