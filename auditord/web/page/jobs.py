"""The pages ``/jobs`` and ``/jobs/{record_id}``: records, the latest first, and everything about one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from aiohttp import web

from auditord.reporting import Figure, LabelKeys
from auditord.reporting.measures import CORES, CPU_TIME, ENERGY, MEMORY, PEAK
from auditord.reporting.periods import PERIODS
from auditord.reporting.questions import Question
from auditord.store import RecordStore
from auditord.store.protocol import Reads
from auditord.web.page.asking import FILTERS, View, read_view
from auditord.web.page.figures import Figures
from auditord.web.page.numbers import NOTHING, shown
from auditord.web.page.rendering import Renderer
from auditord.web.page.visitors import Visitors, may
from auditord.web.problems import Refused
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import RecordsFor, principal_of, read_target
from auditord_hookspecs import InvalidRecord, Permission, Record
from auditord_hookspecs.query import AllOf, Comparison, Condition, IsOpen, Order, PlaceCompares, RecordQuery, SortField
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import decode_record, format_time, parse_time

PATH: Final = "/jobs"

_PAGE: Final = 50
_CURSOR: Final = "cursor"
_OPEN: Final = "open"
_INCLUDE: Final = "include"
_ARCHIVE: Final = "archive"
_COLUMN: Final = "column"
_OWN: Final = frozenset({_CURSOR, _OPEN, _INCLUDE, _COLUMN})
_COLUMNS: Final = (*FILTERS, "start", "stop", "runtime", "cores", "gpus", "core_hours", "efficiency")
_SHOWN: Final = ("group", "user", "start", "runtime", "cores", "gpus", "core_hours", "efficiency")
_MOST_COLUMNS: Final = 30
_ID: Final = "id"
_HOUR: Final = 3_600
_UNITS: Final = {CPU_TIME: "s", MEMORY: "MiB", PEAK: "B", ENERGY: "J"}
"""Of the components that collectors make, see :mod:`auditord.reporting.measures`."""


@dataclass(frozen=True, slots=True)
class JobsPages:
    """The pages of records.

    Args:
        figures: has the clock and the meta keys.
        records: those that a visitor may see.
        store: has the former versions of records.
        renderer: makes pages.
        visitors: knows who sees what.
    """

    figures: Figures
    records: RecordsFor
    store: RecordStore
    renderer: Renderer
    visitors: Visitors

    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """A page of the list."""
        pairs = parse_qsl(read_target(request.raw_path).query)
        own = {name: value for name, value in pairs if name in _OWN}
        view = read_view(urlencode([pair for pair in pairs if pair[0] not in _OWN]))
        columns = _columns([value for name, value in pairs if name == _COLUMN])
        only_open = own.get(_OPEN) == "true"
        where, archived = self._where(view, own, only_open=only_open), own.get(_INCLUDE) == _ARCHIVE
        found = await self._page(self.records(request), where, archived=archived)
        following, keys = None, self.figures.keys
        if len(found) > _PAGE:
            last = found[_PAGE - 1]
            following = _url(pairs, f"{format_time(last.start_time)},{last.record_id}")
        values = {
            "view": view,
            "rows": [{**job_row(record, keys), "labels": _labels(record, columns, keys)} for record in found[:_PAGE]],
            "columns": columns,
            "offered": _COLUMNS,
            "next": following,
            "first": _url(pairs, None) if _CURSOR in own else None,
            "open": only_open,
            "has_archive": (await self.store.archive_state()).records > 0,
            "archived": archived,
            "periods": PERIODS,
            "usage": view.url("/usage"),
        }
        return self.renderer.answer("jobs.html", values, self.visitors.navigation(request, PATH))

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """One record, and for administrators what it was before."""
        try:
            record_id = read_target(request.raw_path).segment(-1)
            check_name(record_id)
        except (InvalidRecord, UnicodeDecodeError) as error:
            raise Refused(404, str(error)) from error
        text = await self.records(request).get(record_id)
        if text is None:
            raise Refused(404, self.renderer.text("job.missing", record_id=record_id))
        record = decode_record(text)
        known = principal_of(request) is not None  # elsewhere only the control socket shows it
        history = await self.store.history(record_id) if known and may(request, Permission.ADMINISTER) else ()
        values = {
            "record": record,
            "row": job_row(record, self.figures.keys),
            "meta": [(key, ", ".join(values)) for key, values in sorted((record.meta or {}).items())],
            "components": [_component(record, at) for at in range(len(record.components))],
            "history": history,
            "acts": self._acts(request, record),
            "api": f"/api/v1/records/{quote(record_id, safe='')}",
        }
        return self.renderer.answer("job.html", values, self.visitors.navigation(request, PATH))

    def _acts(self, request: web.BaseRequest, record: Record) -> Sequence[str]:
        """The changes that the visitor may make."""
        if self.visitors.forms.sessions is None or not may(request, Permission.ADMINISTER):
            return ()
        return ("correct", "delete") if record.stop_time is not None else ("correct", "close", "delete")

    def _where(self, view: View, own: Mapping[str, str], *, only_open: bool) -> Condition:
        window = (
            None
            if only_open or not {"from", "to", "period"} & set(view.given)
            else view.window(self.figures.now(view.zone))
        )
        question = Question((view.measure,), window=window, filters=view.filters, keys=self.figures.keys)
        conditions: list[Condition] = [question.where()]
        conditions += [IsOpen()] if only_open else []
        if _CURSOR in own:
            moment, _, record_id = own[_CURSOR].partition(",")
            try:
                conditions.append(PlaceCompares(Comparison.LT, parse_time(moment), record_id))
            except InvalidRecord as error:
                raise InvalidQuery(str(error), _CURSOR) from error
        return AllOf(tuple(conditions))

    async def _page(self, records: Reads, where: Condition, *, archived: bool) -> Sequence[Record]:
        """One record more than a page has shows that there is a next one."""
        query = RecordQuery(where, Order(SortField.START, descending=True), _PAGE + 1, archived)
        async with records.stream(query) as pages:
            return [decode_record(document) async for page in pages for document in page]


def _url(pairs: Sequence[tuple[str, str]], cursor: str | None) -> str:
    """The URL of the same list from another place on."""
    kept = [pair for pair in pairs if pair[0] != _CURSOR]
    return f"{PATH}?{urlencode([*kept, (_CURSOR, cursor)] if cursor else kept)}"


def _columns(asked: Sequence[str]) -> Sequence[str]:
    """The columns of the list: those that are offered in their order, then meta keys as they were asked for.

    Raises:
        InvalidQuery: a name can be none, or there are too many.
    """
    if len(asked) > _MOST_COLUMNS:
        raise InvalidQuery(f"more than {_MOST_COLUMNS} columns", _COLUMN)
    others = dict.fromkeys(name for name in asked if name not in _COLUMNS)
    for name in others:
        try:
            check_name(name)
        except InvalidRecord as error:
            raise InvalidQuery(str(error), _COLUMN) from error
    return (*(name for name in _COLUMNS if name in asked), *others) if asked else _SHOWN


def _labels(record: Record, columns: Sequence[str], keys: LabelKeys) -> Mapping[str, str]:
    """The values of the columns that are meta keys."""
    named = {name: (record.meta or {}).get(keys.key(name), ()) for name in columns if name not in _COLUMNS}
    return {name: ", ".join(values) for name, values in named.items()}


def job_row(record: Record, keys: LabelKeys) -> dict[str, Any]:  # Any: shown by the template
    """A record as a row of a table."""
    cores, cpu = amount(record, CORES), amount(record, CPU_TIME)
    core_seconds = None if cores is None or record.runtime is None else cores * record.runtime
    hours = None if core_seconds is None else Figure(Fraction(core_seconds, _HOUR))
    known = cpu is not None and bool(core_seconds)
    return {
        "id": record.record_id,
        "link": f"{PATH}/{quote(record.record_id, safe='')}",
        **{name: _first(record, keys.key(name)) for name in FILTERS},
        "start": record.start_time,
        "stop": record.stop_time,
        "runtime": record.runtime,
        "cores": cores,
        "gpus": amount(record, "GPU"),
        "core_hours": NOTHING if hours is None else shown(hours, "core h"),
        "efficiency": shown(Figure(Fraction(100 * (cpu or 0)), Fraction(core_seconds or 0)), "%") if known else NOTHING,
    }


def amount(record: Record, name: str) -> int | None:
    """The sum of the components of a name; None without any."""
    amounts = [component.amount for component in record.components if component.name == name]
    return sum(amounts) if amounts else None


def _first(record: Record, key: str) -> str:
    return next(iter((record.meta or {}).get(key, ())), "")


def _component(record: Record, at: int) -> dict[str, str]:
    component = record.components[at]
    scores = ", ".join(f"{score.name} {score.value:g}" for score in component.scores)
    amount = f"{component.amount:,} {_UNITS.get(component.name, '')}".rstrip()
    return {"name": component.name, "amount": amount, "scores": scores}
