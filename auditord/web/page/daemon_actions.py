"""Acts on the daemon from the page: run an instance, retry or discard quarantined entries; each is confirmed first."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, quote

from aiohttp import web

from auditord.actions import Actions, RunRequest, Section
from auditord.spool import Spool
from auditord.web.api.status import StatusHandlers
from auditord.web.page.background_runs import BackgroundRuns
from auditord.web.page.forms import Forms
from auditord.web.page.operations import PATH
from auditord.web.page.rendering import Renderer
from auditord.web.page.visitors import Visitors
from auditord.web.problems import Refused
from auditord.web.requests import principal_name, read_target

INSTANCE_ACT: Final = f"{PATH}/instances/{{instance}}/{{act}}"
RUN: Final = f"{PATH}/runs/{{number}}"
QUARANTINE: Final = f"{PATH}/quarantine"
QUARANTINE_ACT: Final = f"{QUARANTINE}/{{act}}"

_RUNS: Final = ("run", "dry-run")
_CHANCES: Final = ("retry", "discard")
_LISTED: Final = 100
_AT_ONCE: Final = 1_000
_REFRESH_SECONDS: Final = "2"


@dataclass(frozen=True, slots=True)
class OperatingPages:
    """The pages on which operators act.

    Args:
        runs: that were asked for.
        actions: what may be asked of the daemon.
        spool: has the quarantine.
        status: knows the instances.
        renderer: makes pages.
        visitors: knows who sees what.
        forms: checks what was sent.
    """

    runs: BackgroundRuns
    actions: Actions
    spool: Spool
    status: StatusHandlers
    renderer: Renderer
    visitors: Visitors
    forms: Forms

    async def confirm_run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Say what a run would do, above the button for it."""
        name, act, section = await self._chosen(request)
        self.forms.require()
        values = {
            "title": self.renderer.text(f"act.{act}", name=name),
            "text": self.renderer.text(f"act.{act}.{section}"),
            "button": self.renderer.text(f"act.{act}.button"),
            "action": f"{PATH}/instances/{name}/{act}",
            "back": PATH,
        }
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Begin a run, and show it."""
        await self.forms.read(request)
        name, act, section = await self._chosen(request)
        run = self.runs.start(
            RunRequest(name, dry_run=act == "dry-run", section=section), principal_name(request) or ""
        )
        return self.renderer.redirect(f"{PATH}/runs/{run.number}")

    async def show_run(self, request: web.BaseRequest) -> web.StreamResponse:
        """A run and what it says; until it is over, the browser asks again."""
        text = read_target(request.raw_path).segment(-1)
        run = self.runs.get(int(text)) if text.isascii() and text.isdigit() and len(text) <= 9 else None  # noqa: PLR2004
        if run is None:
            raise Refused(HTTPStatus.NOT_FOUND, self.renderer.text("run.forgotten"))
        response = self.renderer.answer("run.html", {"run": run}, self.visitors.navigation(request, PATH))
        if not run.is_over:
            response.headers["Refresh"] = _REFRESH_SECONDS
        return response

    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """List the quarantine, the oldest first; without the raw input, which may hold personal data."""
        given = parse_qs(read_target(request.raw_path).query, max_num_fields=20)
        task, after = given.get("task", [None])[0], given.get("after", ["0"])[0]
        if not (after.isascii() and after.isdigit() and len(after) <= 18):  # noqa: PLR2004 fits 63 bits
            raise Refused(HTTPStatus.BAD_REQUEST, "'after' is the number of an entry")
        found = await self.spool.quarantine_summaries(task, after=int(after), limit=_LISTED + 1)
        shown = found[:_LISTED]
        query = "" if task is None else f"task={quote(task, safe='')}&"
        values = {
            "entries": shown,
            "task": task,
            "next": f"{QUARANTINE}?{query}after={shown[-1].quarantine_id}" if len(found) > _LISTED else None,
            "may_act": self.forms.sessions is not None,
        }
        return self.renderer.answer("quarantine.html", values, self.visitors.navigation(request, PATH))

    async def confirm_chance(self, request: web.BaseRequest) -> web.StreamResponse:
        """Say what a retry or a discard would do, and to how many entries, above the button for it."""
        act = self._chance(request)
        self.forms.require()
        given = parse_qs(read_target(request.raw_path).query, max_num_fields=_AT_ONCE)
        if "task" in given:
            every = await self.spool.quarantine_summaries(given["task"][0], limit=_AT_ONCE)
            ids: Sequence[int] = [entry.quarantine_id for entry in every]
        else:
            ids = _numbers(given.get("id", []))
        if not ids:
            raise Refused(HTTPStatus.BAD_REQUEST, self.renderer.text("quarantine.none"))
        values = {
            "title": self.renderer.text(f"act.{act}", count=f"{len(ids):,}"),
            "text": self.renderer.text(f"act.{act}.explained"),
            "button": self.renderer.text(f"act.{act}.button"),
            "action": f"{QUARANTINE}/{act}",
            "back": QUARANTINE,
            "fields": {"ids": ",".join(map(str, ids))},
        }
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def give_chance(self, request: web.BaseRequest) -> web.StreamResponse:
        """Retry or discard entries, and say what became of them."""
        fields, act = await self.forms.read(request), self._chance(request)
        ids = _numbers(fields.get("ids", "").split(","))
        listed: list[str] = []
        if act == "retry":
            retried = await self.actions.retry(ids)
            text = self.renderer.text("act.retried", queued=retried.queued, settled=retried.settled)
            listed = [f"{number}: {reason}" for number, reason in retried.failed.items()]
        else:
            text = self.renderer.text("act.discarded", count=await self.actions.discard(ids))
        values = {"title": self.renderer.text("act.done"), "text": text, "listed": listed, "back": QUARANTINE}
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def _chosen(self, request: web.BaseRequest) -> tuple[str, str, Section]:
        target = read_target(request.raw_path)
        name, act = target.segment(2), target.segment(3)
        for instance in await self.status.instance_states():
            section = instance.section
            if instance.name == name and instance.enabled and act in _RUNS and section in {"collectors", "plugins"}:
                return name, act, "collectors" if section == "collectors" else "plugins"
        raise Refused(HTTPStatus.NOT_FOUND, self.renderer.text("act.unknown"))

    def _chance(self, request: web.BaseRequest) -> str:
        act = read_target(request.raw_path).segment(-1)
        if act not in _CHANCES:
            raise Refused(HTTPStatus.NOT_FOUND, self.renderer.text("act.unknown"))
        return act


def _numbers(texts: Sequence[str]) -> list[int]:
    if not all(text.isascii() and text.isdigit() and len(text) <= 18 for text in texts):  # noqa: PLR2004 fits 63 bits
        raise Refused(HTTPStatus.BAD_REQUEST, "entries of the quarantine have numbers")
    return [int(text) for text in texts][:_AT_ONCE]
