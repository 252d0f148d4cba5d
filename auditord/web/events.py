"""What goes over the control socket: requests, and the NDJSON lines of a run on demand."""

import msgspec
from aiohttp import web
from anyio import Lock, sleep

from auditord.actions import CollectRequest
from auditord_hookspecs import Batch, Produced, Record, RunReport, Window
from auditord_hookspecs.wire import encode_record, parse_time

_HEARTBEAT_SECONDS = 0.5


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of the quarantine, by number."""

    ids: list[int]


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "stop": "to"}):
    start: str | None = None
    stop: str | None = None
    replace: bool = False
    dry_run: bool = False


def collect_request(instance: str, body: bytes) -> CollectRequest:
    """The request in a body such as ``{"from": "2026-01-01T00:00:00Z", "to": …, "replace": false, "dry_run": true}``.

    Raises:
        msgspec.DecodeError: the body is not of this form.
        InvalidRecord: a time is none.
    """
    wanted = msgspec.json.decode(body or b"{}", type=_Wanted)
    if (wanted.start is None) != (wanted.stop is None):
        raise msgspec.ValidationError("'from' and 'to' go together")
    window = Window(parse_time(wanted.start), parse_time(wanted.stop)) if wanted.start and wanted.stop else None
    return CollectRequest(instance, window, wanted.replace, wanted.dry_run)


def problem(status: int, detail: str) -> web.Response:
    """An error answer (RFC 9457)."""
    body = msgspec.json.encode({"status": status, "detail": detail})
    return web.Response(status=status, body=body, content_type="application/problem+json")


class EventLines:
    """Watches a run and writes what it sees, one JSON object per line; the answer begins with the first line.

    Args:
        request: the request to answer.
    """

    def __init__(self, request: web.Request) -> None:
        self.answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self._request = request
        self._fraction = 0.0
        self._writing = Lock()

    def progressed(self, fraction: float) -> None:
        """Remember it for the next heartbeat."""
        self._fraction = fraction

    async def keep_alive(self) -> None:
        """Say twice a second how far the run is; this also notices a client that has left."""
        while True:
            await sleep(_HEARTBEAT_SECONDS)
            await self._write({"progress": self._fraction})

    async def shown(self, batch: Batch) -> None:
        """Write what a dry run would have kept."""
        for item in batch.records:
            record = item if isinstance(item, Record) else item.record
            alternate = item.alternate_id if isinstance(item, Produced) else None
            await self._write({"record": msgspec.Raw(encode_record(record)), "alternate_id": alternate})
        for job in batch.quarantined:
            await self._write({"quarantined": job.source_id, "reason": job.reason})

    async def finish(self, report: RunReport) -> None:
        """Write the report."""
        await self._write({"report": report})
        await self.answer.write_eof()

    async def _write(self, event: dict[str, object]) -> None:
        async with self._writing:
            if not self.answer.prepared:
                await self.answer.prepare(self._request)
            await self.answer.write(msgspec.json.encode(event) + b"\n")
