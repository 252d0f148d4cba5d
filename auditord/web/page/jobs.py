"""The pages ``/jobs`` and ``/jobs/{record_id}``: the list of records, one record, and changes to it.

Administrators can correct, close or delete a record. Each change needs a confirmation and a reason, which is stored.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.actions import Closing, RecordActions
from auditord.client.query_string import matches
from auditord.reporting import Figure, LabelKeys
from auditord.reporting.measures import CORES, CPU_TIME, NOTHING, PEAK
from auditord.reporting.periods import PERIODS
from auditord.reporting.questions import Question
from auditord.store.store import RecordStore
from auditord.web.api.operating import note_of
from auditord.web.api.records import Listing, cursor
from auditord.web.limits import MOST_ROWS
from auditord.web.page.figures import Figures
from auditord.web.page.files import LIST_FORMS
from auditord.web.page.query_string import (
    ALL_TIME,
    FILTERS,
    PAGE,
    View,
    form_of,
    is_sent_form,
    name_of,
    order_by,
    pieces_of,
    read_filters,
    read_view,
    set_parameter,
    tidy,
    value_of,
)
from auditord.web.page.query_string import JOBS as PATH
from auditord.web.page.rendering import Renderer, Visitors, may
from auditord.web.page.suggestions import Suggestions
from auditord.web.problems import Refused
from auditord.web.record_query import InvalidQuery, about
from auditord.web.requests import RecordsFor, principal_of, read_target
from auditord_hookspecs import InvalidRecord, Permission, Record
from auditord_hookspecs.aggregates import amount_of, compute_held_amount, compute_held_time, meta_value
from auditord_hookspecs.query import AllOf, ImplausibleCpuTime, Order, SortField
from auditord_hookspecs.records import check_name
from auditord_hookspecs.vocabulary import QUANTITIES
from auditord_hookspecs.wire import decode_record, encode_record
from auditord_hookspecs.zones import zone_name

_COLUMN: Final = "column"
_SORTED: Final = {
    "id": SortField.ID,
    "start": SortField.START,
    "stop": SortField.STOP,
    "runtime": SortField.RUNTIME,
}
"""The columns by which the list can be sorted."""

_COLUMNS: Final[Mapping[str, str]] = {
    **{name: name.capitalize() for name in FILTERS},
    "start": "Start",
    "stop": "Stop",
    "runtime": "Runtime",
    "cores": "Cores",
    "gpus": "GPUs",
    "core_hours": "Core hours",
    "efficiency": "CPU efficiency",
}
"""The columns that every list has besides the record's id, with their headings."""
_SHOWN: Final = ("group", "user", "outcome", "start", "runtime", "cores", "gpus", "core_hours", "efficiency")
_MOST_COLUMNS: Final = 30
_HOUR: Final = 3_600
_MIB: Final = 1 << 20


class JobsPages(msgspec.Struct, frozen=True):
    """Shows the list of records and single records."""

    figures: Figures
    store: RecordStore
    renderer: Renderer
    visitors: Visitors
    suggestions: Suggestions

    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show a page of the list. A submitted form is first redirected to the URL of its list."""
        pieces = pieces_of(read_target(request.raw_path).query)
        if is_sent_form(pieces):
            return self.renderer.redirect(_url(tidy(pieces)))
        view = read_view("&".join(pieces), PATH)
        columns = read_columns(pieces)
        now = self.figures.now(view.zone)
        zone = now.tzinfo or UTC
        listing = self.query(view, pieces, now)
        query, order = listing.query, listing.query.order
        unpaged = [piece for piece in pieces if name_of(piece) not in {"cursor", "limit"}]
        found = await self.figures.read(request, query)
        rows, keys = found[: listing.page], self.figures.keys
        following = longer = None
        if len(found) > listing.page and order.field is SortField.START:
            following = _url(set_parameter(pieces, "cursor", cursor(rows[-1])))
        elif len(found) > listing.page:
            longer = _url(set_parameter(pieces, "limit", str(MOST_ROWS)))
        has_released, is_first = (await self.store.lake_state()).records > 0, "cursor" not in map(name_of, pieces)
        count = len(found) if is_first and len(found) <= listing.page else None
        if count is None and not has_released:  # else it would read the lake
            where, sets = self.query(view, unpaged, now).query.where, await self.store.rollups.sets()
            count = await self.figures.count(request, where, sets)
        values = {
            "view": view,
            "zone": zone_name(now),
            "columns": columns,
            "known": _COLUMNS,
            "offered": await self.suggestions.offer(request),
            "keys": keys,
            "first": None if is_first else _url(set_parameter(pieces, "cursor", None)),
            "next": following,
            "longer": longer,
            "orders": _link_orders(pieces, order),
            **form_of(pieces, zone),
            "latest_first": order.descending,
            "limit": listing.page,
            "limits": sorted({PAGE, 200, MOST_ROWS, listing.page}),
            "has_released": has_released,
            "count": count,
            "released": query.released,
            "periods": PERIODS,
            "usage": view.usage(),
            "files": [(name, f"{PATH}.{form}?{'&'.join(unpaged)}") for form, name in LIST_FORMS.items()],
        }
        navigation = self.visitors.navigation(request, PATH)

        def make() -> web.Response:
            of_labels = [(name, keys.key(name)) for name in columns if name not in _COLUMNS]
            shown = [
                {
                    **job_row(record, keys),
                    "labels": {name: ", ".join((record.meta or {}).get(key, ())) for name, key in of_labels},
                }
                for record in rows
            ]
            return self.renderer.answer("jobs.html", {**values, "rows": shown}, navigation)

        return await self.figures.places.run(make)

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show one record: to operators with its origin and differences, to administrators also with its history."""
        record = await _read_record(request, self.figures.records)
        record_id = record.record_id
        known = principal_of(request) is not None  # without authenticators, only the control socket shows more
        history = await self.store.history(record_id) if known and may(request, Permission.ADMINISTER) else ()
        is_operator = known and may(request, Permission.OPERATE)
        acts: Sequence[str] = ()
        if self.visitors.forms.sessions is not None and may(request, Permission.ADMINISTER):
            acts = ("correct", "delete") if record.stop_time is not None else ("correct", "close", "delete")
        components: list[dict[str, str]] = []
        for each in record.components:
            unit = QUANTITIES[each.name].unit if each.name in QUANTITIES else ""
            amount = f"{each.amount:,} {unit}".rstrip()
            if each.name == PEAK and each.amount >= _MIB:
                amount = f"{each.amount / _MIB:,.1f} MiB"
            scores = ", ".join(f"{score.name} {score.value:g}" for score in each.scores)
            components.append({"name": each.name, "amount": amount, "scores": scores})
        values = {
            "record": record,
            "row": job_row(record, self.figures.keys),
            "implausible": matches(record, ImplausibleCpuTime()),
            "meta": [(key, ", ".join(values)) for key, values in sorted((record.meta or {}).items())],
            "components": components,
            "history": history,
            "origin": await self.store.find_with_provenance(record_id) if is_operator else None,
            "differences": await self.store.differences_of(record_id) if is_operator else (),
            "acts": acts,
            "api": f"/api/v1/records/{quote(record_id, safe='')}",
        }
        return self.renderer.answer("job.html", values, self.visitors.navigation(request, PATH))

    def query(self, view: View, pieces: Sequence[str], now: datetime) -> Listing:
        """Return the query of a list, in the time zone of ``now``."""
        is_dated = {"from", "to", "period"} & set(view.given) and view.period != ALL_TIME
        window = view.window(now) if is_dated else None
        named = Question((view.measure,), window=window, filters=view.filters, keys=self.figures.keys).where()
        listing = read_filters(pieces, now.tzinfo or UTC)
        return replace(listing, query=replace(listing.query, where=AllOf((named, listing.query.where))))


async def _read_record(request: web.BaseRequest, records: RecordsFor) -> Record:
    """Return the record that the path of a request names.

    Raises:
        Refused: there is no such record that the sender may see.
    """
    try:
        record_id = read_target(request.raw_path).segment(1)
        check_name(record_id)
    except (InvalidRecord, UnicodeDecodeError) as error:
        raise Refused(HTTPStatus.NOT_FOUND, str(error)) from error
    text = await records(request).get(record_id)
    if text is None:
        raise Refused(HTTPStatus.NOT_FOUND, f"There is no record '{record_id}'.")
    return decode_record(text)


def _link_orders(pieces: Sequence[str], order: Order) -> Mapping[str, tuple[str, str]]:
    """Return the URL of each column's order, and for the column of the present order, ascending or descending."""
    orders: dict[str, tuple[str, str]] = {}
    for column, field in _SORTED.items():
        is_it = order.field is field
        state = "" if not is_it else "descending" if order.descending else "ascending"
        orders[column] = _url(order_by(pieces, field, descending=not (is_it and order.descending))), state
    return orders


def _url(query: str) -> str:
    return f"{PATH}?{query}" if query else PATH


def read_columns(pieces: Sequence[str]) -> Sequence[str]:
    """Return the columns of the list: known ones in their usual order, then meta keys in the order of the URL.

    Raises:
        InvalidQuery: a name is not a valid meta key, or there are too many columns.
    """
    asked = [name for piece in pieces if name_of(piece) == _COLUMN and (name := value_of(piece))]
    if len(asked) > _MOST_COLUMNS:
        raise InvalidQuery(f"more than {_MOST_COLUMNS} columns", _COLUMN)
    others = dict.fromkeys(name for name in asked if name not in _COLUMNS)
    for name in others:
        with about(_COLUMN):
            check_name(name)
    return (*(name for name in _COLUMNS if name in asked), *others) if asked else _SHOWN


def job_figures(record: Record) -> Mapping[str, Figure | None]:
    """Return the figures of a record by column; None if a quantity is unknown."""
    cpu, core_seconds = amount_of(record, CPU_TIME), compute_held_time(record, CORES)
    cores, gpus = compute_held_amount(record, CORES), compute_held_amount(record, "GPU")
    return {
        "cores": None if cores is None else Figure(cores),
        "gpus": None if gpus is None else Figure(gpus),
        "core_hours": None if core_seconds is None else Figure(Fraction(core_seconds, _HOUR)),
        "efficiency": Figure(Fraction(100 * cpu), Fraction(core_seconds)) if cpu is not None and core_seconds else None,
    }


def job_row(record: Record, keys: LabelKeys) -> dict[str, Any]:  # Any: read by the template
    figures = job_figures(record)
    amounts = {name: None if (figure := figures[name]) is None else float(figure.amount) for name in ("cores", "gpus")}
    return {
        "id": record.record_id,
        "link": job_link(record.record_id),
        **{name: meta_value(record, [keys.key(name)]) or "" for name in FILTERS},
        "start": record.start_time,
        "stop": record.stop_time,
        "runtime": record.runtime,
        **{name: None if each is None else f"{each:.2f}".rstrip("0").rstrip(".") for name, each in amounts.items()},
        **{
            name: NOTHING if (figure := figures[name]) is None else figure.format(unit)
            for name, unit in (("core_hours", "core h"), ("efficiency", "%"))
        },
    }


def job_link(record_id: str) -> str:
    return f"{PATH}/{quote(record_id, safe='')}"


RECORD_ACT: Final = f"{PATH}/{{record_id}}/{{act}}"

_ACTS: Final[Mapping[str, str]] = {
    "correct": "The record below replaces the stored one in all figures. The stored one is kept as a former version, "
    "with your name and the reason. Plugins report the difference for months that are still open.",
    "close": "The open record gets this stop time, and counts in figures from then on. The open version is kept as a "
    "former version, with your name and the reason.",
    "delete": "The record no longer counts in any figure, and plugins report less for months that are still open. It "
    "is kept as a former version, with your name and the reason.",
}
"""The changes of a record, each with its effect."""
_DONE: Final[Mapping[str, str]] = {
    "correct": "The record was corrected; its former version is kept.",
    "close": "The record was closed.",
    "delete": "The record was deleted; it is kept as a former version.",
}
_GOOD: Final = frozenset({"done", "same"})
_FAILED: Final[Mapping[str, str]] = {
    "changed": "The record has changed since you loaded it. Load it again and repeat.",
    "missing": "The record no longer exists.",
    "refused": "This was refused:",
}


class ChangingPages(msgspec.Struct, frozen=True):
    changes: RecordActions
    records: RecordsFor
    renderer: Renderer
    visitors: Visitors

    async def ask(self, request: web.BaseRequest) -> web.StreamResponse:
        act, record = await self._choose(request)
        self.visitors.forms.require()
        text = msgspec.json.format(encode_record(record), indent=2).decode()
        return self._form(request, act, record, {"record": text, "seen": text})

    async def change(self, request: web.BaseRequest) -> web.StreamResponse:
        """Change the record. A correction must first be confirmed, with its differences shown."""
        fields = await self.visitors.forms.read(request)
        act, record = await self._choose(request)
        try:
            note = note_of(request, fields.get("reason", ""), None)
            if act == "correct":
                corrected, seen = (decode_record(fields.get(name, "").encode()) for name in ("record", "seen"))
                if "confirmed" not in fields:
                    return self._form(request, act, record, fields, differences=_compare(seen, corrected))
                outcome = await self.changes.correct(corrected, seen, note)
            elif act == "close":
                closing = Closing(record.record_id, _parse_time(fields.get("stop", "")))
                (outcome,) = await self.changes.close([closing], note)
            else:
                (outcome,) = await self.changes.delete([record.record_id], note)
        except (InvalidRecord, ValueError) as error:
            return self._form(request, act, record, fields, str(error))
        if outcome.outcome not in _GOOD:
            text = f"{_FAILED[outcome.outcome]} {outcome.detail or ''}"
            return self._form(request, act, record, fields, text, status=HTTPStatus.CONFLICT)
        values = {
            "title": "Done",
            "text": _DONE[act],
            "back": PATH if act == "delete" else job_link(record.record_id),
        }
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def _choose(self, request: web.BaseRequest) -> tuple[str, Record]:
        act, record = read_target(request.raw_path).segment(2), await _read_record(request, self.records)
        if act not in _ACTS:
            raise Refused(HTTPStatus.NOT_FOUND, f"There is no change '{act}' of a record.")
        if act == "close" and record.stop_time is not None:
            raise Refused(HTTPStatus.CONFLICT, "This record has a stop time: correct it instead.")
        return act, record

    def _form(
        self,
        request: web.BaseRequest,
        act: str,
        record: Record,
        fields: Mapping[str, str],
        error: str | None = None,
        *,
        status: HTTPStatus | None = None,
        differences: list[tuple[str, str, str]] | None = None,
    ) -> web.StreamResponse:
        values = {
            "act": act,
            "explained": _ACTS[act],
            "record": record,
            "link": job_link(record.record_id),
            "given": {"reason": "", "stop": "", "record": "", "seen": "", **fields},
            "error": error,
            "differences": differences,
        }
        status = status or (HTTPStatus.OK if error is None else HTTPStatus.UNPROCESSABLE_ENTITY)
        return self.renderer.answer("change.html", values, self.visitors.navigation(request, PATH), status)


def _compare(seen: Record, corrected: Record) -> list[tuple[str, str, str]]:
    """Return name, former value and new value of each member that a correction changes, as JSON."""
    before, after = (msgspec.json.decode(encode_record(each), type=dict[str, object]) for each in (seen, corrected))
    texts = (
        (name, *(msgspec.json.encode(each.get(name)).decode() for each in (before, after)))
        for name in dict.fromkeys([*before, *after])
    )
    return [(name, former, present) for name, former, present in texts if former != present]


def _parse_time(text: str) -> datetime:
    """Return a time from a form field, in UTC.

    Raises:
        ValueError: the text is not a time.
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"'{text[:40]}' is not a time such as 2026-01-31T12:00") from error
