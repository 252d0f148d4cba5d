"""``POST /api/v1/instances/{instance}/runs`` and ``…/audits``: runs and audits, reported as lines of JSON."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

import anyio
import msgspec
from aiohttp import web
from anyio import Lock, sleep

from auditord.actions import Actions, RunRequest, Section
from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import UnknownInstance, UnsuitableRequest
from auditord.reporting.periods import check_day
from auditord.store.amendments import check_reason
from auditord.web.answers import JSON, SERVER
from auditord.web.api.operation import BODY_PROBLEMS, MAX_REQUEST, NAME, decode_body, read
from auditord.web.api.records import NDJSON
from auditord.web.api.shapes import StoredRecord
from auditord.web.operations import Operation, Parameter
from auditord.web.problem_shapes import doc
from auditord.web.problems import Refused
from auditord.web.requests import read_target
from auditord_hookspecs import Batch, InvalidRecord, JobChoice, Permission, Produced, Record, RunReport, Window
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import encode_record, parse_time

_HEARTBEAT_SECONDS: Final = 0.5


INSTANCE: Final = Parameter("instance", "The name of a collector or a plugin.", NAME.schema, in_path=True)


class RunWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "stop": "to"}):
    """A request to run an instance."""

    start: Annotated[
        str | None,
        doc("start of a period to collect again; without it the collector continues from its checkpoint."),
    ] = None
    stop: Annotated[str | None, doc("end of the same period.")] = None
    job_id: Annotated[str | None, doc("the id of a single job to collect again, instead of a period.")] = None
    source: Annotated[str | None, doc("the source of that job, if the collector reads several (a schedd).")] = None
    replace: Annotated[bool, doc("overwrite the stored records of the same runs.")] = False
    dry_run: Annotated[bool, doc("store nothing and cause no effects; only show them.")] = False
    section: Annotated[Section | None, doc("the section in which the instance must be; default: either.")] = None


class AuditWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "stop": "to"}):
    """A request to audit a collector."""

    start: Annotated[str, doc("start of the period: runs that ended at or after this time.")]
    stop: Annotated[str, doc("end of the period, exclusive.")]
    repair: Annotated[bool, doc("collect the missing runs.")] = False
    replace: Annotated[str | None, doc("the reason for replacing records that differ; null: replace none.")] = None
    by: Annotated[str, doc("the author's name, stored with the reason.")] = ""

    def request(self, instance: str) -> AuditRequest:
        """Return the request for the audit of an instance.

        Raises:
            InvalidRecord: a time, the reason or the name is invalid.
            msgspec.ValidationError: the period is invalid.
        """
        window = _period(self.start, self.stop)
        if self.replace is not None:
            check_reason(self.replace)
            check_name(self.by)
        return AuditRequest(instance, window, self.repair, self.replace, self.by)


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line with exactly one of the first seven members; the last line has ``report`` or ``audit``."""

    progress: Annotated[float | None, doc("the completed fraction of the run; sent twice a second.")] = None
    said: Annotated[str | None, doc("a line that a plugin logged.")] = None
    printed: Annotated[str | None, doc("a text that a plugin showed; in a dry run, an effect.")] = None
    record: Annotated[StoredRecord | None, doc("a record that a real run would store.")] = None
    quarantined: Annotated[str | None, doc("the source's id of a job that a real run would quarantine.")] = None
    report: Annotated[RunReport | None, doc("how the run ended.")] = None
    audit: Annotated[AuditReport | None, doc("the result of an audit.")] = None
    alternate_id: Annotated[str | None, doc("for ``record``: its id if the plain one belongs to another run.")] = None
    reason: Annotated[str | None, doc("for ``quarantined``: the reason.")] = None


def run_request(instance: str, body: bytes) -> RunRequest:
    """Decode a body such as ``{"from": "2026-01-01T00:00:00Z", "to": …, "replace": false, "dry_run": true}``.

    Raises:
        msgspec.DecodeError: the body does not have this form.
        InvalidRecord: a time is invalid.
    """
    wanted = msgspec.json.decode(body or b"{}", type=RunWanted)
    if (wanted.start is None) != (wanted.stop is None):
        raise msgspec.ValidationError("give both 'from' and 'to', or neither")
    window = _period(wanted.start, wanted.stop) if wanted.start and wanted.stop else None
    if wanted.job_id is None and wanted.source is not None:
        raise msgspec.ValidationError("'source' needs 'job_id'")
    if wanted.job_id is not None and window is not None:
        raise msgspec.ValidationError("give either a period or 'job_id', not both")
    job = None if wanted.job_id is None else JobChoice(wanted.job_id, wanted.source)
    return RunRequest(instance, window, wanted.replace, wanted.dry_run, wanted.section, job)


def _period(start: str, stop: str) -> Window:
    """Return the period between two times.

    Raises:
        InvalidRecord: a text is not a time.
        msgspec.ValidationError: the times do not make a period.
    """
    window = Window(parse_time(start), parse_time(stop))
    if window.stop <= window.start:
        raise msgspec.ValidationError("'to' must be later than 'from'")
    try:
        check_day(window.start)
        check_day(window.stop)
    except ValueError as error:
        raise msgspec.ValidationError(str(error)) from error
    return window


class EventLines:
    """Observes a run and writes JSON objects, one per line. The first line starts the response."""

    def __init__(self, request: web.BaseRequest) -> None:
        self.answer = web.StreamResponse(headers={"Content-Type": NDJSON, "Server": SERVER})
        self._request = request
        self._fraction = 0.0
        self._said: list[RunEvent] = []
        self._writing = Lock()

    def show_progress(self, fraction: float) -> None:
        """Keep the progress for the next heartbeat."""
        self._fraction = fraction

    def show_line(self, line: str) -> None:
        """Keep a line for the next heartbeat."""
        self._said.append(RunEvent(said=line))

    def show_output(self, text: str) -> None:
        """Keep a text for the next heartbeat."""
        self._said.append(RunEvent(printed=text))

    async def keep_alive(self) -> None:
        """Write the progress twice a second, which also detects a disconnected client."""
        while True:
            await sleep(_HEARTBEAT_SECONDS)
            await self._pass_on()
            await self._write(RunEvent(progress=self._fraction))

    async def show_batch(self, batch: Batch) -> None:
        """Write the records and quarantined jobs of a dry run."""
        for item in batch.records:
            record = item if isinstance(item, Record) else item.record
            alternate = item.alternate_id if isinstance(item, Produced) else None
            shown = msgspec.json.decode(encode_record(record), type=StoredRecord)
            await self._write(RunEvent(record=shown, alternate_id=alternate))
        for job in batch.quarantined:
            await self._write(RunEvent(quarantined=job.source_id, reason=job.reason))

    async def finish(self, last: RunEvent) -> None:
        await self._pass_on()
        await self._write(last)
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


class RunHandler(msgspec.Struct, frozen=True):
    """Runs instances."""

    actions: Actions

    @Operation(
        "POST",
        "/api/v1/instances/{instance}/runs",
        "runInstance",
        "Run a collector or a plugin now, after its current run; closing the connection ends the new run.",
        Permission.OPERATE,
        {200: {NDJSON: RunEvent}},
        problems=(*BODY_PROBLEMS, 404, 422, 503),
        parameters=(INSTANCE,),
        body={JSON: RunWanted},
        guarded=True,
    )
    async def run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Run an instance and stream its progress; the last line is the report. Disconnecting ends the run."""
        instance = read_target(request.raw_path).segment(-2)
        body = await read(request, MAX_REQUEST)
        try:
            wanted = run_request(instance, body)
        except (msgspec.DecodeError, InvalidRecord) as error:
            raise Refused(400, str(error), parameter="body", remedy="see RunWanted in /openapi.json") from error
        return await _stream(request, partial(self.actions.run, wanted))

    @Operation(
        "POST",
        "/api/v1/instances/{instance}/audits",
        "auditInstance",
        "Compare a collector's source with the records for a period; closing the connection ends the audit.",
        Permission.OPERATE,
        {200: {NDJSON: RunEvent}},
        problems=(*BODY_PROBLEMS, 404, 422, 503),
        parameters=(INSTANCE,),
        body={JSON: AuditWanted},
        guarded=True,
    )
    async def audit(self, request: web.BaseRequest) -> web.StreamResponse:
        """Audit a collector and stream its progress; the last line is the result. Disconnecting ends the audit."""
        instance = read_target(request.raw_path).segment(-2)
        wanted = await decode_body(request, AuditWanted)
        try:
            asked = wanted.request(instance)
        except (msgspec.ValidationError, InvalidRecord) as error:
            raise Refused(400, str(error), parameter="body", remedy="see AuditWanted in /openapi.json") from error
        return await _stream(request, partial(self.actions.audit, asked))


async def _stream(
    request: web.BaseRequest, work: Callable[[EventLines], Awaitable[RunReport | AuditReport]]
) -> web.StreamResponse:
    """Stream the lines of a run or an audit. A client that disconnects ends it, but stored records stay.

    Raises:
        Refused: the run or audit cannot be done.
    """
    lines = EventLines(request)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(lines.keep_alive)
            done = await work(lines)
            await lines.finish(RunEvent(report=done) if isinstance(done, RunReport) else RunEvent(audit=done))
            group.cancel_scope.cancel()
    except ExceptionGroup as failed:
        match failed.exceptions[0]:
            case UnknownInstance() as error:
                raise Refused(404, str(error), parameter="instance") from failed
            case UnsuitableRequest() as error:
                raise Refused(422, str(error), parameter="body") from failed
            case error:
                raise error from failed
    return lines.answer
