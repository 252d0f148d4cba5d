"""The page ``/operations``: the health of accounting, and actions for operators.

Operators can run an instance and retry or discard quarantined entries. Each action is confirmed first. A run continues
in the background, even if the operator leaves the page.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, quote

import msgspec
from aiohttp import web

from auditord.actions import Actions, RunRequest, Section
from auditord.audit.site_reports import Reporter, SiteReports
from auditord.errors import StoreUnavailable
from auditord.reporting.periods import PERIODS
from auditord.spool import QuarantineReason, Spool
from auditord.store.store import RecordStore
from auditord.web.api.shapes import Instance
from auditord.web.api.status import StatusHandlers
from auditord.web.page.figures import Figures
from auditord.web.page.jobs import job_link
from auditord.web.page.rendering import Renderer, Visitors
from auditord.web.problems import Refused
from auditord.web.requests import client_key, principal_name, principal_of, read_target
from auditord_hookspecs import AuditordError, Batch, Produced, RunReport
from auditord_hookspecs.aggregates import AggregateQuery, Group, MetaValue
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    ImplausibleCpuTime,
    IsOpen,
    TimeCompares,
    TimeField,
    match_stopped,
)
from auditord_hookspecs.wire import parse_time

PATH: Final = "/operations"

_LOOKED_BACK: Final = "7-days"
"""The period in which implausible CPU times are counted. Roll-ups lack them, so the query reads every record."""
_RECENT: Final = timedelta(days=30)
_NEWEST: Final = 10
_CLOCK_OFF: Final = timedelta(seconds=10)


class OperationsPage(msgspec.Struct, frozen=True):
    """The page ``/operations``.

    Args:
        site_reports: the reports of daemons that forward their records here.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    status: StatusHandlers
    spool: Spool
    site_reports: SiteReports
    store: RecordStore

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        health, instances = await self.status.health_report(), await self.status.instance_states()
        now = self.figures.now()
        open_records = AggregateQuery(IsOpen(), as_of=now)
        implausible = AggregateQuery(AllOf((match_stopped(PERIODS[_LOOKED_BACK](now)), ImplausibleCpuTime())))
        recent = AllOf((TimeCompares(TimeField.STOP, Comparison.GTE, now - _RECENT),))
        of_sites = await self._groups(request, AggregateQuery(recent, (MetaValue(self.figures.keys.site),)))
        reasons: Sequence[QuarantineReason] = ()
        with suppress(StoreUnavailable):  # the health on the page reports it
            reasons = await self.spool.quarantine_reasons()
        differing: list[dict[str, Any]] = []  # Any: read by the template
        if principal_of(request) is not None:  # without authenticators none, as on the pages of records
            async with self.store.differences() as newest:
                async for each in newest:
                    differing.append({"id": each.record_id, "link": job_link(each.record_id), "seen": each.seen_at})
                    if len(differing) == _NEWEST:
                        break
        values = {
            "health": health,
            "open": sum(each.records for each in await self._groups(request, open_records)),
            "implausible": sum(each.records for each in await self._groups(request, implausible)),
            "implausible_link": f"/jobs?implausible=true&period={_LOOKED_BACK}",
            "reasons": reasons,
            "differing": differing,
            "reporters": [_reporter(each) for each in self.site_reports.reporters],
            "instances": [_instance(each) for each in instances if each.section != "senders"],
            "senders": [_instance(each) for each in instances if each.section == "senders"],
            "queues": {
                queue.sender: {"entries": queue.entries, "oldest": _time(queue.oldest)} for queue in health.queues
            },
            "quarantined": sum(each.entries for each in health.quarantine),
            "sites": site_rows(of_sites, {site: parse_time(last) for site, last in health.gaps.items()}),
            "may_act": self.visitors.forms.sessions is not None,
        }
        return self.renderer.answer("operations.html", values, self.visitors.navigation(request, PATH))

    async def _groups(self, request: web.BaseRequest, query: AggregateQuery) -> Sequence[Group]:
        aggregate = self.figures.records(request).aggregate
        async with self.figures.places.sum_up(client_key(request), aggregate, query) as found:
            return found.groups


def site_rows(groups: Sequence[Group], gaps: Mapping[str, datetime]) -> list[dict[str, Any]]:
    """Return rows for the sites with recent records (``groups``), then for the other sites in ``gaps``.

    ``gaps`` has the sites that have been silent for longer than usual, with the end of their last record.
    """
    rows: list[dict[str, Any]] = [
        {
            "site": group.key[0],
            "records": group.records,
            "last": group.last_stop,
            "is_silent": group.key[0] in gaps,
        }
        for group in groups
    ]
    listed = {each["site"] for each in rows}
    silent = [(site, last) for site, last in gaps.items() if site not in listed]
    return [*rows, *({"site": site, "records": 0, "last": last, "is_silent": True} for site, last in silent)]


def _reporter(reporter: Reporter) -> dict[str, Any]:  # Any: read by the template
    offset = reporter.clock_offset
    return {
        "name": reporter.name,
        "principal": reporter.principal,
        "sites": ", ".join(reporter.sites),
        "received": reporter.received_at,
        "clock": None if abs(offset) < _CLOCK_OFF else f"{offset.total_seconds():+,.0f} s",
        "records": reporter.answer.records,
        "missing": reporter.answer.missing,
        "extra": reporter.answer.extra,
        "days": [f"{each.reported.site} {each.reported.day}" for each in reporter.answer.differing],
    }


def _instance(instance: Instance) -> dict[str, Any]:  # Any: read by the template
    last = next(iter(instance.last_runs), None)
    state = (
        "off" if not instance.enabled else "failing" if instance.last_error else "running" if instance.running else "ok"
    )
    return {
        "name": instance.name,
        "kind": instance.kind,
        "section": instance.section,
        "state": state,
        "error": instance.last_error,
        "failures": instance.failures,
        "last": _time(instance.last_started),
        "success": _time(instance.last_success),
        "next": _time(instance.next_run),
        "records": None if last is None else last.records,
        "quarantined": None if last is None else last.quarantined,
        "seconds": None if last is None else last.seconds,
    }


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)


log: Final = logging.getLogger(__name__)

_KEPT: Final = 50
_MOST_LINES: Final = 1_000

StartSoon: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]  # Any: of a coroutine's type
"""Runs a coroutine function in the background until it ends or the daemon stops."""


@dataclass
class BackgroundRun:
    """A run that an operator started on the page. It records its own progress.

    Args:
        number: its number, counted by this process.
        by: the name of the operator.
        lines: the first lines of its output.
        records: the number of records that a dry run would have stored.
        fraction: the completed fraction of the run.
        report: the result, once the run has ended.
        error: why the run ended without a report.
    """

    number: int
    request: RunRequest
    by: str
    lines: list[str] = field(default_factory=list[str])
    records: int = 0
    fraction: float = 0.0
    report: RunReport | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """True once the run has ended."""
        return self.report is not None or self.error is not None

    def show_progress(self, fraction: float) -> None:
        self.fraction = fraction

    async def show_batch(self, batch: Batch) -> None:
        """Record a batch of a dry run: the ids of its records and the jobs that would be quarantined."""
        self.records += len(batch.records)
        for item in batch.records:
            self.show_line((item.record if isinstance(item, Produced) else item).record_id)
        for job in batch.quarantined:
            self.show_line(f"{job.source_id}: {job.reason}")

    def show_line(self, line: str) -> None:
        """Append a line of output, up to the limit."""
        if len(self.lines) < _MOST_LINES:
            self.lines.append(line)

    def show_output(self, text: str) -> None:
        for line in text.splitlines():
            self.show_line(line)


class BackgroundRuns:
    """Starts runs in the background and remembers the latest ones."""

    def __init__(self, actions: Actions, start_soon: StartSoon) -> None:
        self._actions = actions
        self._start_soon = start_soon
        self._runs: dict[int, BackgroundRun] = {}
        self._last = 0

    def get(self, number: int) -> BackgroundRun | None:
        """Return a run by its number; None if it is unknown or forgotten."""
        return self._runs.get(number)

    def start(self, request: RunRequest, by: str) -> BackgroundRun:
        """Start a run, and forget the oldest finished runs beyond the limit."""
        self._last += 1
        run = self._runs[self._last] = BackgroundRun(self._last, request, by)
        for number in [each.number for each in self._runs.values() if each.is_over][:-_KEPT]:
            del self._runs[number]

        async def go() -> None:
            try:
                run.report = await self._actions.run(request, run)
            except AuditordError as error:
                run.error = str(error)
            except Exception:  # the error boundary of a background task
                log.exception("a run of %s, started by %s, failed", request.instance, by)
                run.error = "the run failed; the daemon's log has the reason"

        self._start_soon(go)
        return run


INSTANCE_ACT: Final = f"{PATH}/instances/{{instance}}/{{act}}"
RUN: Final = f"{PATH}/runs/{{number}}"
QUARANTINE: Final = f"{PATH}/quarantine"
QUARANTINE_ACT: Final = f"{QUARANTINE}/{{act}}"

_RUNS: Final = {
    "run": {
        "title": "Run {name} now",
        "button": "Run",
        "collectors": "The collector continues from its checkpoint and stores what it finds: records go to the record "
        "store and to every sender, as in scheduled runs.",
        "plugins": "The plugin works as in scheduled runs: it may set priorities, and send messages, mails or usage to "
        "other systems.",
    },
    "dry-run": {
        "title": "Dry run of {name}",
        "button": "Start the dry run",
        "collectors": "The collector continues from its checkpoint by the daemon's present configuration, and the page "
        "shows the records. Nothing is stored.",
        "plugins": "The plugin shows what it would do by the daemon's present configuration, without doing it.",
    },
}
"""Texts of the confirmation of a run; the last two by the section of the instance."""
_CHANCES: Final[Mapping[str, str]] = {
    "retry": "Each entry is processed again with the current configuration. Successful entries leave quarantine and "
    "become records; others stay, with the new reason.",
    "discard": "The entries and their raw input are deleted for good. These jobs will not be accounted for, unless a "
    "collector reads them again.",
}
"""The actions on entries in quarantine, each with its effect."""
_GONE: Final = "This no longer exists."
_LISTED: Final = 100
_AT_ONCE: Final = 1_000
_REFRESH_SECONDS: Final = "2"


class OperatingPages(msgspec.Struct, frozen=True):
    """Lets operators run instances and handle the quarantine."""

    runs: BackgroundRuns
    actions: Actions
    spool: Spool
    status: StatusHandlers
    renderer: Renderer
    visitors: Visitors

    async def confirm_run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the confirmation of a run, with an explanation."""
        name, act, section = await self._choose(request)
        self.visitors.forms.require()
        values = {
            "title": _RUNS[act]["title"].format(name=name),
            "text": _RUNS[act][section],
            "button": _RUNS[act]["button"],
            "action": f"{PATH}/instances/{name}/{act}",
            "back": PATH,
        }
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Start a run and redirect to its page."""
        await self.visitors.forms.read(request)
        name, act, section = await self._choose(request)
        run = self.runs.start(
            RunRequest(name, dry_run=act == "dry-run", section=section), principal_name(request) or ""
        )
        return self.renderer.redirect(f"{PATH}/runs/{run.number}")

    async def show_run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show a run and its output. The browser reloads the page until the run has ended."""
        text = read_target(request.raw_path).segment(-1)
        run = self.runs.get(int(text)) if text.isascii() and text.isdigit() and len(text) <= 9 else None  # noqa: PLR2004
        if run is None:
            message = "This run is no longer known. Operations shows the last run of each instance."
            raise Refused(HTTPStatus.NOT_FOUND, message)
        response = self.renderer.answer("run.html", {"run": run}, self.visitors.navigation(request, PATH))
        if not run.is_over:
            response.headers["Refresh"] = _REFRESH_SECONDS
        return response

    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """List the quarantine, oldest entries first, without the raw input, which may contain personal data."""
        given = parse_qs(read_target(request.raw_path).query, max_num_fields=20)
        task, after = given.get("task", [None])[0], given.get("after", ["0"])[0]
        if not (after.isascii() and after.isdigit() and len(after) <= 18):  # noqa: PLR2004 fits 63 bits
            raise Refused(HTTPStatus.BAD_REQUEST, "'after' must be the number of an entry")
        found = await self.spool.quarantine_summaries(task, after=int(after), limit=_LISTED + 1)
        shown = found[:_LISTED]
        query = "" if task is None else f"task={quote(task, safe='')}&"
        values = {
            "entries": shown,
            "task": task,
            "next": f"{QUARANTINE}?{query}after={shown[-1].quarantine_id}" if len(found) > _LISTED else None,
            "may_act": self.visitors.forms.sessions is not None,
        }
        return self.renderer.answer("quarantine.html", values, self.visitors.navigation(request, PATH))

    async def confirm_chance(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the confirmation of a retry or a discard, with the number of entries."""
        act = self._chance(request)
        self.visitors.forms.require()
        given = parse_qs(read_target(request.raw_path).query, max_num_fields=_AT_ONCE)
        if "task" in given:
            every = await self.spool.quarantine_summaries(given["task"][0], limit=_AT_ONCE)
            ids: Sequence[int] = [entry.quarantine_id for entry in every]
        else:
            ids = _numbers(given.get("id", []))
        if not ids:
            raise Refused(HTTPStatus.BAD_REQUEST, "No entry was selected.")
        button = "Retry" if act == "retry" else "Delete"
        values = {
            "title": f"{button} from quarantine: {len(ids):,}",
            "text": _CHANCES[act],
            "button": button,
            "action": f"{QUARANTINE}/{act}",
            "back": QUARANTINE,
            "fields": {"ids": ",".join(map(str, ids))},
        }
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def give_chance(self, request: web.BaseRequest) -> web.StreamResponse:
        """Retry or discard entries, and show the outcome."""
        fields, act = await self.visitors.forms.read(request), self._chance(request)
        ids = _numbers(fields.get("ids", "").split(","))
        listed: list[str] = []
        if act == "retry":
            retried = await self.actions.retry(ids)
            text = f"Queued records: {retried.queued}. Entries that left quarantine: {retried.settled}."
            listed = [f"{number}: {reason}" for number, reason in retried.failed.items()]
        else:
            text = f"Deleted entries: {await self.actions.discard(ids)}."
        values = {"title": "Done", "text": text, "listed": listed, "back": QUARANTINE}
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def _choose(self, request: web.BaseRequest) -> tuple[str, str, Section]:
        target = read_target(request.raw_path)
        name, act = target.segment(2), target.segment(3)
        for instance in await self.status.instance_states():
            section = instance.section
            if instance.name == name and instance.enabled and act in _RUNS and section in {"collectors", "plugins"}:
                return name, act, "collectors" if section == "collectors" else "plugins"
        raise Refused(HTTPStatus.NOT_FOUND, _GONE)

    def _chance(self, request: web.BaseRequest) -> str:
        act = read_target(request.raw_path).segment(-1)
        if act not in _CHANCES:
            raise Refused(HTTPStatus.NOT_FOUND, _GONE)
        return act


def _numbers(texts: Sequence[str]) -> list[int]:
    if not all(text.isascii() and text.isdigit() and len(text) <= 18 for text in texts):  # noqa: PLR2004 fits 63 bits
        raise Refused(HTTPStatus.BAD_REQUEST, "an entry of the quarantine must be given by its number")
    return [int(text) for text in texts][:_AT_ONCE]
