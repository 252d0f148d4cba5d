"""Labels and values that forms offer, and ``GET /suggestions``, which offers values while a visitor types.

All come from records that the visitor may see, so they never name a label or a value of others. They are kept for a
while, by the condition on those records: callers with other rights have another condition.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from auditord.errors import StoreUnavailable
from auditord.web.api.operation import read_given
from auditord.web.limits import MOST_KEPT, MOST_SUGGESTED, MOST_VALUES
from auditord.web.page.figures import Figures
from auditord.web.record_query import about, scalar
from auditord.web.requests import client_key, principal_of, read_target
from auditord_hookspecs import AggregateQuery, RecordQuery, TooManyGroups
from auditord_hookspecs.aggregates import MetaValue
from auditord_hookspecs.query import Comparison, Condition, Order, SortField, TimeCompares, TimeField
from auditord_hookspecs.records import check_name

PATH: Final = "/suggestions"

_RECENT: Final = 200
"""The latest records, whose labels and components forms offer."""

_SINCE: Final = timedelta(days=90)
_FRESH: Final = timedelta(minutes=10)

Key: TypeAlias = tuple[Condition | None, str | None]
"""The condition on the records that a visitor may see, and a label; None for the content of forms."""


class Offered(msgspec.Struct, frozen=True):
    """Labels, values and components of recent records.

    Args:
        labels: the values of each label, the most frequent first.
        components: names.
    """

    labels: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict[str, Sequence[str]])
    components: Sequence[str] = ()


_NOTHING: Final = Offered()


class Suggestions:
    """Finds the labels and values that a visitor may see, and keeps them for ten minutes."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._kept: OrderedDict[Key, tuple[datetime, Offered]] = OrderedDict()

    def read_kept(self, request: web.BaseRequest) -> Offered:
        """Return what the last form offered to visitors with these rights, however old, without a query."""
        return self._kept.get((_visible(request), None), (None, _NOTHING))[1]

    async def offer(self, request: web.BaseRequest) -> Offered:
        """Return what a form offers; nothing while the store is unavailable."""
        return await self._find(request, None)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the values of a label that contain a text, as a JSON array of at most :data:`MOST_SUGGESTED`."""
        given = read_given(read_target(request.raw_path).query, ["label", "text"])
        label, text = [scalar(name, given.get(name, ())) or "" for name in ("label", "text")]
        with about("label"):
            check_name(label)
        key, part = self._figures.keys.key(label), text.casefold()
        values = (await self._find(request, key)).labels.get(key, ())
        found = [value for value in values if part in value.casefold()][:MOST_SUGGESTED]
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return web.Response(body=msgspec.json.encode(found), headers=headers)

    async def _find(self, request: web.BaseRequest, label: str | None) -> Offered:
        now, key = self._figures.clock(), (_visible(request), label)
        found_at, found = self._kept.get(key, (None, _NOTHING))
        if found_at is not None and now - found_at < _FRESH:
            return found
        try:
            found = await (self._read_recent(request) if label is None else self._count_values(request, label))
        except StoreUnavailable:
            return found
        self._kept.pop(key, None)
        self._kept[key] = (now, found)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    async def _read_recent(self, request: web.BaseRequest) -> Offered:
        since = TimeCompares(TimeField.START, Comparison.GTE, self._figures.clock() - _SINCE)
        latest = Order(SortField.START, descending=True)
        records = await self._figures.read(request, RecordQuery(since, latest, _RECENT))
        labels: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for record in records:
            for key, found in (record.meta or {}).items():
                labels[key].update(found)
        names = sorted(labels, key=lambda name: (-labels[name].total(), name))[:MOST_SUGGESTED]
        offered = {name: [value for value, _ in labels[name].most_common(MOST_SUGGESTED)] for name in names}
        components = Counter(each.name for record in records for each in record.components)
        return Offered(offered, [name for name, _ in components.most_common(MOST_SUGGESTED)])

    async def _count_values(self, request: web.BaseRequest, label: str) -> Offered:
        stopped = TimeCompares(TimeField.STOP, Comparison.GTE, self._figures.clock() - _SINCE)
        query = AggregateQuery(stopped, (MetaValue(label),))
        try:
            aggregate = self._figures.records(request).aggregate
            async with self._figures.places.few(client_key(request), aggregate, query) as found:
                groups = sorted(found.groups, key=lambda each: -each.records)
                values = [str(each.key[0]) for each in groups if each.key[0] is not None]
        except TooManyGroups:  # such as ids of jobs
            values = []
        return Offered({label: values[:MOST_VALUES]})


def _visible(request: web.BaseRequest) -> Condition | None:
    principal = principal_of(request)
    return None if principal is None else principal.visible()
