"""Questions to a running daemon and requests of operators, as :mod:`auditord.web.api` answers them."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from auditord.actions import Closing, Note, Observer, Outcome, Retried, RunRequest
from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import DaemonError
from auditord.web.api import changes
from auditord.web.api.shapes import HealthReport, Instances, QuarantinedInput, QuarantineEntry, QuarantinePage, Reloaded
from auditord.web.problem_shapes import Problem
from auditord_hookspecs import Batch, Produced, Quarantined, Record, RecordQuery, RunReport, http
from auditord_hookspecs.wire import decode_record, format_time

T = TypeVar("T")

NO_ANSWER: Final = "the daemon does not answer, or its answer was cut off"
_AT_ONCE: Final = 500


class _Line(msgspec.Struct, frozen=True):
    progress: float | None = None
    said: str | None = None
    printed: str | None = None
    record: msgspec.Raw = msgspec.Raw()
    alternate_id: str | None = None
    quarantined: str | None = None
    reason: str = ""
    report: RunReport | None = None
    audit: AuditReport | None = None


class Requests(Protocol):
    """The part of :class:`auditord_hookspecs.http.HttpClient` that is needed here."""

    async def request(self, method: str, url: str, *, body: bytes | None = None) -> http.HttpAnswer:
        """See there."""
        ...

    def stream(
        self, method: str, url: str, *, body: bytes | None = None
    ) -> AbstractAsyncContextManager[http.HttpStream]:
        """See there."""
        ...


class DaemonClient:
    """Asks a daemon. Every method raises :class:`DaemonError` if it does not answer, or refuses."""

    def __init__(self, client: Requests, url: str) -> None:
        self._client = client
        self._url = url

    # -- looking ------------------------------------------------------------------------------------------------------

    async def health(self) -> HealthReport:
        """The health report, whatever it says."""
        return await self._get("/api/v1/health", HealthReport, 503)

    async def instances(self) -> Instances:
        """The state of each instance."""
        return await self._get("/api/v1/instances", Instances)

    async def quarantine(self, task: str | None) -> AsyncGenerator[QuarantineEntry, None]:
        """The entries of the quarantine, of one task or of all."""
        path: str | None = "/api/v1/quarantine?" + urlencode(
            {"limit": 1_000, **({} if task is None else {"task": task})}
        )
        while path is not None:
            page = await self._get(path, QuarantinePage)
            for entry in page.entries:
                yield entry
            path = page.next

    async def quarantined(self, number: int) -> QuarantinedInput:
        """One entry of the quarantine with its raw input."""
        return await self._get(f"/api/v1/quarantine/{number}", QuarantinedInput)

    @asynccontextmanager
    async def stream(
        self, query: RecordQuery, source: Literal["store", "lake"] = "store"
    ) -> AsyncGenerator[AsyncIterator[Record], None]:
        """The matching records of the daemon's store, or of its lake; an answer that is cut raises."""
        if query.limit == 0:  # a page of nothing is no question to the API
            yield _records(_nothing())
            return
        from auditord.client.query_string import api_target  # noqa: PLC0415 with the client

        with _daemon_errors():
            target = self._url + api_target(query, source)
            async with self._client.stream("GET", target) as answer, aclosing(_records(_lines(answer))) as records:
                yield records

    async def get(self, record_id: str) -> Record | None:
        """One record, or None if there is none."""
        with _daemon_errors():
            answer = await self._client.request("GET", f"{self._url}/api/v1/records/{quote(record_id, safe='')}")
            return None if answer.status == HTTPStatus.NOT_FOUND else decode_record(_checked(answer).body)

    async def history(self, record_id: str) -> Sequence[changes.FormerVersion]:
        """The former versions of a record."""
        return (await self._get(f"/api/v1/records/{quote(record_id, safe='')}/versions", changes.History)).versions

    async def _get(self, path: str, shape: type[T], *also: int) -> T:
        with _daemon_errors():
            answer = await self._client.request("GET", self._url + path)
            return _decoded(answer.body if answer.status in also else _checked(answer).body, shape)

    # -- acting -------------------------------------------------------------------------------------------------------

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Have an instance run, and watch."""
        async with aclosing(self._events(request.instance, "runs", _body(request), observer)) as lines:
            async for line in lines:
                if line.report is not None:
                    return line.report
        raise DaemonError("the daemon ended in the middle of the run; what was collected until then is kept")

    async def audit(self, request: AuditRequest, observer: Observer | None) -> AuditReport:
        """Have a collector audited, and watch."""
        period = {"from": format_time(request.window.start), "to": format_time(request.window.stop)}
        body = {**period, "repair": request.repair, "replace": request.replace, "by": request.by}
        async with aclosing(self._events(request.instance, "audits", body, observer)) as lines:
            async for line in lines:
                if line.audit is not None:
                    return line.audit
        raise DaemonError("the daemon ended in the middle of the audit; what was collected until then is kept")

    async def _events(
        self, instance: str, path: str, body: object, observer: Observer | None
    ) -> AsyncGenerator[_Line, None]:
        target = f"{self._url}/api/v1/instances/{quote(instance, safe='')}/{path}"
        with _daemon_errors():
            async with self._client.stream("POST", target, body=msgspec.json.encode(body)) as answer:
                async for text in _lines(answer):
                    line = _decoded(text, _Line)
                    await _observe(line, observer)
                    yield line

    async def reload(self, *, dry_run: bool) -> Reloaded:
        """Have the configuration files taken over, or only compared."""
        return _decoded(await self._post("configuration/reload", {"dry_run": dry_run}), Reloaded)

    @property
    def records(self) -> "DaemonClient":
        """The actions on single records."""
        return self

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Have entries of the quarantine retried."""
        return msgspec.json.decode(await self._post("quarantine/retry", {"ids": list(ids)}), type=Retried, strict=False)

    async def discard(self, ids: Sequence[int]) -> int:
        """Have entries of the quarantine discarded."""
        return _decoded(await self._post("quarantine/discard", {"ids": list(ids)}), dict[str, int])["discarded"]

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        """Have a record put in the place of the stored one."""
        wanted = changes.CorrectionWanted(record=record, reason=note.reason, by=note.by, seen=seen)
        (outcome,) = await self._change("corrections", wanted)
        return outcome

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        """Have open records closed."""
        outcomes: list[Outcome] = []
        for first in range(0, len(closings), _AT_ONCE):
            some = [_closing(each) for each in closings[first : first + _AT_ONCE]]
            wanted = changes.ClosingsWanted(closings=some, reason=note.reason, by=note.by)
            outcomes += await self._change("closings", wanted)
        return outcomes

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        """Have records deleted."""
        outcomes: list[Outcome] = []
        for first in range(0, len(ids), _AT_ONCE):
            some = list(ids[first : first + _AT_ONCE])
            wanted = changes.DeletionsWanted(ids=some, reason=note.reason, by=note.by)
            outcomes += await self._change("deletions", wanted)
        return outcomes

    async def _change(self, path: str, change: object) -> Sequence[Outcome]:
        return _decoded(await self._post(path, change), changes.Outcomes).outcomes

    async def _post(self, path: str, body: object) -> bytes:
        with _daemon_errors():
            target = f"{self._url}/api/v1/{path}"
            return _checked(await self._client.request("POST", target, body=msgspec.json.encode(body))).body


@contextmanager
def _daemon_errors() -> Generator[None, None, None]:
    try:
        yield
    except http.HttpStatusError as error:
        _checked(error.answer)
    except http.HttpError as error:
        raise DaemonError(f"{NO_ANSWER}: {error}") from error


def _closing(closing: Closing) -> changes.ClosingWanted:
    if isinstance(closing.stop, timedelta):
        return changes.ClosingWanted(closing.record_id, runtime=int(closing.stop.total_seconds()))
    return changes.ClosingWanted(closing.record_id, format_time(closing.stop))


def _body(request: RunRequest) -> dict[str, Any]:  # Any: texts and switches
    body: dict[str, Any] = {"replace": request.replace, "dry_run": request.dry_run, "section": request.section}
    if request.window is not None:
        body |= {"from": format_time(request.window.start), "to": format_time(request.window.stop)}
    if request.job is not None:
        body |= {"job_id": request.job.job_id, "source": request.job.source}
    return body


def _checked(answer: http.HttpAnswer) -> http.HttpAnswer:
    if answer.ok:
        return answer
    try:
        problem = msgspec.json.decode(answer.body, type=Problem)
    except msgspec.DecodeError as error:
        raise DaemonError(f"{answer.request} is answered {answer.status}: that is no auditord with an API") from error
    raise DaemonError(problem.detail if problem.remedy is None else f"{problem.detail}: {problem.remedy}")


def _decoded(text: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.DecodeError as error:
        raise DaemonError(f"the daemon's answer cannot be read, is it of another version? {error}") from error


async def _records(lines: AsyncIterator[bytes]) -> AsyncGenerator[Record, None]:
    async for line in lines:
        yield decode_record(line)


async def _nothing() -> AsyncGenerator[bytes, None]:
    for line in list[bytes]():
        yield line


async def _lines(answer: http.HttpStream) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in answer:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        raise DaemonError("the daemon's answer ends in the middle of a line")


async def _observe(line: _Line, observer: Observer | None) -> None:
    if observer is None:
        return
    if line.progress is not None:
        observer.progressed(line.progress)
    if line.said is not None:
        observer.said(line.said)
    if line.printed is not None:
        observer.printed(line.printed)
    if bytes(line.record):
        await observer.shown(Batch(records=[Produced(decode_record(bytes(line.record)), line.alternate_id)]))
    if line.quarantined is not None:
        await observer.shown(Batch(quarantined=[Quarantined(line.quarantined, None, line.reason)]))
