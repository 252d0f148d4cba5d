"""What goes over the wire while an instance runs on demand: the request, and NDJSON lines."""

from typing import Final

import msgspec
from aiohttp import web
from anyio import Lock, sleep

from auditord.actions import RunRequest, Section
from auditord.web.answers import SERVER
from auditord.web.api.listing import NDJSON
from auditord.web.api.shapes import StoredRecord
from auditord_hookspecs import Batch, JobChoice, Produced, Record, RunReport, Window
from auditord_hookspecs.wire import encode_record, parse_time

_HEARTBEAT_SECONDS: Final = 0.5


class RunWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "stop": "to"}):
    """What to run.

    Args:
        start: of the period that a collector collects again; without one it goes on from its checkpoint.
        stop: of the same period.
        job_id: the one job that a collector collects again, instead of a period.
        source: where that job ran, if the collector reads several places (a schedd).
        replace: overwrite what is stored of the same runs.
        dry_run: keep and do nothing, say what would be kept or done.
        section: what the instance must be; without it, either will do.
    """

    start: str | None = None
    stop: str | None = None
    job_id: str | None = None
    source: str | None = None
    replace: bool = False
    dry_run: bool = False
    section: Section | None = None


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: exactly one of the first six members is there, and ``report`` is the last line.

    Args:
        progress: which fraction of the run is done; said twice a second.
        said: a line that a plugin logged.
        printed: a text that a plugin showed; in a dry run, what it would do.
        record: a record that a dry run would have kept.
        quarantined: the id at its source of a job that a dry run would have quarantined.
        report: how the run ended.
        alternate_id: of ``record``: its id if the plain one belongs to another run.
        reason: of ``quarantined``.
    """

    progress: float | None = None
    said: str | None = None
    printed: str | None = None
    record: StoredRecord | None = None
    quarantined: str | None = None
    report: RunReport | None = None
    alternate_id: str | None = None
    reason: str | None = None


def run_request(instance: str, body: bytes) -> RunRequest:
    """The request in a body such as ``{"from": "2026-01-01T00:00:00Z", "to": …, "replace": false, "dry_run": true}``.

    Raises:
        msgspec.DecodeError: the body is not of this form.
        InvalidRecord: a time is none.
    """
    wanted = msgspec.json.decode(body or b"{}", type=RunWanted)
    if (wanted.start is None) != (wanted.stop is None):
        raise msgspec.ValidationError("'from' and 'to' go together")
    window = Window(parse_time(wanted.start), parse_time(wanted.stop)) if wanted.start and wanted.stop else None
    if window is not None and window.stop <= window.start:
        raise msgspec.ValidationError("'to' must be later than 'from'")
    if wanted.job_id is None and wanted.source is not None:
        raise msgspec.ValidationError("'source' needs 'job_id'")
    if wanted.job_id is not None and window is not None:
        raise msgspec.ValidationError("either a period or 'job_id'")
    job = None if wanted.job_id is None else JobChoice(wanted.job_id, wanted.source)
    return RunRequest(instance, window, wanted.replace, wanted.dry_run, wanted.section, job)


class EventLines:
    """Watches a run and writes what it sees, one JSON object per line; the answer begins with the first line.

    Args:
        request: the request to answer.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self.answer = web.StreamResponse(headers={"Content-Type": NDJSON, "Server": SERVER})
        self._request = request
        self._fraction = 0.0
        self._said: list[RunEvent] = []
        self._writing = Lock()

    def progressed(self, fraction: float) -> None:
        """Remember it for the next heartbeat."""
        self._fraction = fraction

    def said(self, line: str) -> None:
        """Keep it until the next heartbeat."""
        self._said.append(RunEvent(said=line))

    def printed(self, text: str) -> None:
        """Keep it until the next heartbeat."""
        self._said.append(RunEvent(printed=text))

    async def keep_alive(self) -> None:
        """Say twice a second how far the run is; this also notices a client that has left."""
        while True:
            await sleep(_HEARTBEAT_SECONDS)
            await self._pass_on()
            await self._write(RunEvent(progress=self._fraction))

    async def shown(self, batch: Batch) -> None:
        """Write what a dry run would have kept."""
        for item in batch.records:
            record = item if isinstance(item, Record) else item.record
            alternate = item.alternate_id if isinstance(item, Produced) else None
            shown = msgspec.json.decode(encode_record(record), type=StoredRecord)
            await self._write(RunEvent(record=shown, alternate_id=alternate))
        for job in batch.quarantined:
            await self._write(RunEvent(quarantined=job.source_id, reason=job.reason))

    async def finish(self, report: RunReport) -> None:
        """Write the report."""
        await self._pass_on()
        await self._write(RunEvent(report=report))
        await self.answer.write_eof()

    async def _pass_on(self) -> None:
        said, self._said = self._said, []
        for event in said:
            await self._write(event)

    async def _write(self, event: RunEvent) -> None:
        async with self._writing:
            if not self.answer.prepared:
                await self.answer.prepare(self._request)
            await self.answer.write(msgspec.json.encode(event) + b"\n")
