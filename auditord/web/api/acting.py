"""The calls that act on the daemon, and the raw input of the quarantine: for whoever may use the control socket."""

from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from aiohttp import web

from auditord.errors import UnknownInstance, UnsuitableRequest
from auditord.spool import QuarantineEntry as StoredEntry
from auditord.web.answers import JSON, Answer
from auditord.web.api import bodies
from auditord.web.api.browsing import summary
from auditord.web.api.events import EventLines, run_request
from auditord.web.api.inside import Inside
from auditord.web.api.problems import Refused
from auditord.web.api.shapes import Chosen, Discarded, QuarantinedInput
from auditord.web.targets import read_target
from auditord_hookspecs import InvalidRecord


@dataclass(frozen=True, slots=True)
class ActingDesk:
    """Takes requests to those who act.

    Args:
        inside: who acts.
    """

    inside: Inside

    async def run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Run an instance; lines tell how it goes, the last one is the report. Leaving ends the run."""
        instance = read_target(request.raw_path).segment(-2)
        body = await bodies.read(request, bodies.MAX_WISH)
        try:
            wanted = run_request(instance, body)
        except (msgspec.DecodeError, InvalidRecord) as error:
            raise Refused(400, str(error), parameter="body", remedy="see RunWanted in /openapi.json") from error
        lines = EventLines(request)
        try:
            async with anyio.create_task_group() as group:  # a client that leaves ends the run; what was kept stays
                group.start_soon(lines.keep_alive)
                await lines.finish(await self.inside.actions.run(wanted, lines))
                group.cancel_scope.cancel()
        except ExceptionGroup as failed:
            raise _in_words(failed.exceptions[0]) from failed
        return lines.answer

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """One entry of the quarantine, with its raw input."""
        text = read_target(request.raw_path).last_segment
        entry = await self.inside.spool.quarantine_get(int(text)) if _is_number(text) else None
        if entry is None:
            remedy = "GET /api/v1/quarantine lists what there is"
            raise Refused(404, f"the quarantine has no entry '{text}'", parameter="number", remedy=remedy)
        return Answer(200, msgspec.json.encode(with_input(entry)), JSON)

    async def retry(self, request: web.BaseRequest) -> web.StreamResponse:
        """Retry entries of the quarantine."""
        chosen = await bodies.decoded(request, Chosen)
        return Answer(200, msgspec.json.encode(await self.inside.actions.retry(chosen.ids)), JSON)

    async def discard(self, request: web.BaseRequest) -> web.StreamResponse:
        """Discard entries of the quarantine."""
        chosen = await bodies.decoded(request, Chosen)
        return Answer(200, msgspec.json.encode(Discarded(await self.inside.actions.discard(chosen.ids))), JSON)


def _in_words(error: Exception) -> Exception:
    match error:
        case UnknownInstance():
            return Refused(404, str(error), parameter="instance")
        case UnsuitableRequest():
            return Refused(422, str(error), parameter="body")
        case _:
            return error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18  # noqa: PLR2004 fits 63 bits


def with_input(entry: StoredEntry) -> QuarantinedInput:
    """An entry with everything that is known of it."""
    provenance = entry.provenance
    return QuarantinedInput(
        **msgspec.structs.asdict(summary(entry)),
        raw=readable(entry.raw),
        principal=None if provenance is None else provenance.principal,
        agent=None if provenance is None else provenance.agent,
    )


def readable(raw: bytes) -> Any:  # Any: JSON
    """Raw input as JSON or, where it is none, as a text."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw.decode(errors="backslashreplace")
