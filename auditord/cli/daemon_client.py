"""The client of a running daemon (:mod:`auditord.web.api`), and HTTP over its control socket."""

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from anyio import to_thread

from auditord.actions import Closing, Note, Observer, Outcome, Retried, RunRequest
from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import DaemonError
from auditord.reporting import LabelKeys
from auditord.web.api import changes
from auditord.web.api.shapes import (
    DOCUMENT_PATH,
    LABELS,
    HealthReport,
    Instances,
    QuarantinedInput,
    QuarantineEntry,
    QuarantinePage,
)
from auditord.web.problem_shapes import Problem
from auditord_hookspecs import Batch, InvalidRecord, Produced, Quarantined, Record, RecordQuery, RunReport, http
from auditord_hookspecs.http import HttpAnswer, HttpStatusError, NoHttpAnswer
from auditord_hookspecs.wire import decode_record, format_time
from auditord_hookspecs.wording import counted

T = TypeVar("T")

NO_ANSWER: Final = "the daemon does not answer, or its answer was cut off"
_AT_ONCE: Final = 500
_LARGEST_DOCUMENT: Final = 4 << 20

LARGEST_ANSWER: Final = 64 << 20
"""Bytes above which a line of a stream, or an answer that is read whole, cannot be an auditord's, as
``MAX_OBJECT_BYTES`` for other servers."""


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


class _Info(msgspec.Struct, frozen=True):
    labels: LabelKeys = msgspec.field(default=LabelKeys(), name=LABELS)


class _Document(msgspec.Struct, frozen=True):
    """The part of ``/openapi.json`` that is read here."""

    info: _Info = _Info()


class Requests(Protocol):
    """The methods of :class:`auditord_hookspecs.http.HttpClient` that the client uses."""

    async def request(self, method: str, url: str, *, body: bytes | None = None) -> http.HttpAnswer:
        """Send a request; see :class:`auditord_hookspecs.http.HttpClient`."""
        ...

    def stream(
        self, method: str, url: str, *, body: bytes | None = None
    ) -> AbstractAsyncContextManager[http.HttpStream]:
        """Send a request; see :class:`auditord_hookspecs.http.HttpClient`."""
        ...


class DaemonClient:
    """Sends requests to a daemon. Every method raises :class:`DaemonError` if the daemon does not answer or refuses."""

    def __init__(self, client: Requests, url: str, *, has_token: bool = False) -> None:
        self._client = client
        self._url = url
        self._has_token = has_token

    # -- reading ------------------------------------------------------------------------------------------------------

    async def health(self) -> HealthReport:
        """Return the health report, also of an unhealthy daemon."""
        return await self._get("/api/v1/health", HealthReport, 503)

    async def instances(self) -> Instances:
        return await self._get("/api/v1/instances", Instances)

    async def quarantine(self, task: str | None) -> AsyncGenerator[QuarantineEntry, None]:
        """Yield the quarantined entries of one task, or of all."""
        path: str | None = "/api/v1/quarantine?" + urlencode(
            {"limit": 1_000, **({} if task is None else {"task": task})}
        )
        while path is not None:
            page = await self._get(path, QuarantinePage)
            for entry in page.entries:
                yield entry
            path = page.next

    async def get_quarantined(self, number: int) -> QuarantinedInput:
        return await self._get(f"/api/v1/quarantine/{number}", QuarantinedInput)

    @asynccontextmanager
    async def stream(
        self, query: RecordQuery, source: Literal["store", "lake"] = "store"
    ) -> AsyncGenerator[AsyncIterator[Record], None]:
        """Yield the matching records of the daemon's store or lake; iterating raises if the answer is cut off."""
        if query.limit == 0:  # the API refuses a page of no records
            yield _records(_nothing())
            return
        from auditord.client.query_string import api_target  # noqa: PLC0415 imports the client

        with self._daemon_errors():
            target = self._url + api_target(query, source)
            async with (
                self._client.stream("GET", target) as answer,
                aclosing(_records(_lines(answer), query.limit)) as records,
            ):
                yield records

    async def get(self, record_id: str) -> Record | None:
        """Return a record; None if it does not exist."""
        with self._daemon_errors():
            answer = await self._client.request("GET", f"{self._url}/api/v1/records/{quote(record_id, safe='')}")
            return None if answer.status == HTTPStatus.NOT_FOUND else decode_record(_raise_for_status(answer).body)

    async def history(self, record_id: str) -> Sequence[changes.FormerVersion]:
        return (await self._get(f"/api/v1/records/{quote(record_id, safe='')}/versions", changes.History)).versions

    async def _get(self, path: str, shape: type[T], *also: int) -> T:
        with self._daemon_errors():
            answer = await self._client.request("GET", self._url + path)
            return _decode(answer.body if answer.status in also else _raise_for_status(answer).body, shape)

    async def labels(self) -> LabelKeys:
        """Return the labels that the server calls site, group and user; the default ones if it does not say."""
        body = bytearray()
        with self._daemon_errors():
            try:
                async with self._client.stream("GET", f"{self._url}{DOCUMENT_PATH}") as answer:
                    async for chunk in answer:
                        body += chunk
                        if len(body) > _LARGEST_DOCUMENT:
                            raise DaemonError(f"{self._url}{DOCUMENT_PATH} has no end: is the server an auditord?")
            except HttpStatusError as error:
                if error.answer.status != HTTPStatus.NOT_FOUND:  # as AUDITOR answers
                    raise
        try:
            return msgspec.json.decode(body, type=_Document).info.labels
        except msgspec.DecodeError:
            return LabelKeys()

    # -- actions ------------------------------------------------------------------------------------------------------

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        body: dict[str, Any] = {"replace": request.replace, "dry_run": request.dry_run, "section": request.section}
        if request.window is not None:
            body |= {"from": format_time(request.window.start), "to": format_time(request.window.stop)}
        if request.job is not None:
            body |= {"job_id": request.job.job_id, "source": request.job.source}
        async with aclosing(self._events(request.instance, "runs", body, observer)) as lines:
            async for line in lines:
                if line.report is not None:
                    return line.report
        raise DaemonError("the daemon ended during the run; the records collected until then are stored")

    async def audit(self, request: AuditRequest, observer: Observer | None) -> AuditReport:
        period = {"from": format_time(request.window.start), "to": format_time(request.window.stop)}
        body = {**period, "repair": request.repair, "replace": request.replace, "by": request.by}
        async with aclosing(self._events(request.instance, "audits", body, observer)) as lines:
            async for line in lines:
                if line.audit is not None:
                    return line.audit
        raise DaemonError("the daemon ended during the audit; the records collected until then are stored")

    async def _events(
        self, instance: str, path: str, body: object, observer: Observer | None
    ) -> AsyncGenerator[_Line, None]:
        target = f"{self._url}/api/v1/instances/{quote(instance, safe='')}/{path}"
        with self._daemon_errors():
            async with self._client.stream("POST", target, body=msgspec.json.encode(body)) as answer:
                async for text in _lines(answer):
                    line = _decode(text, _Line)
                    if observer is not None:
                        if line.progress is not None:
                            observer.show_progress(line.progress)
                        if line.said is not None:
                            observer.show_line(line.said)
                        if line.printed is not None:
                            observer.show_output(line.printed)
                        if bytes(line.record):
                            record = Produced(decode_record(bytes(line.record)), line.alternate_id)
                            await observer.show_batch(Batch(records=[record]))
                        if line.quarantined is not None:
                            quarantined = Quarantined(line.quarantined, None, line.reason)
                            await observer.show_batch(Batch(quarantined=[quarantined]))
                    yield line

    @property
    def records(self) -> "DaemonClient":
        """The actions on single records."""
        return self

    async def retry(self, ids: Sequence[int], collector: str | None = None) -> Retried:
        body = {"ids": list(ids), **({} if collector is None else {"collector": collector})}
        return await self.post("quarantine/retry", body, Retried)

    async def discard(self, ids: Sequence[int]) -> int:
        """Delete quarantined entries and return their number."""
        return (await self.post("quarantine/discard", {"ids": list(ids)}, dict[str, int]))["discarded"]

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        wanted = changes.CorrectionWanted(record=record, reason=note.reason, by=note.by, seen=seen)
        (outcome,) = await self._change("corrections", wanted)
        return outcome

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for first in range(0, len(closings), _AT_ONCE):
            some = [
                changes.ClosingWanted(each.record_id, runtime=int(each.stop.total_seconds()))
                if isinstance(each.stop, timedelta)
                else changes.ClosingWanted(each.record_id, format_time(each.stop))
                for each in closings[first : first + _AT_ONCE]
            ]
            wanted = changes.ClosingsWanted(closings=some, reason=note.reason, by=note.by)
            outcomes += await self._change("closings", wanted)
        return outcomes

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for first in range(0, len(ids), _AT_ONCE):
            some = list(ids[first : first + _AT_ONCE])
            wanted = changes.DeletionsWanted(ids=some, reason=note.reason, by=note.by)
            outcomes += await self._change("deletions", wanted)
        return outcomes

    async def _change(self, path: str, change: object) -> Sequence[Outcome]:
        return (await self.post(path, change, changes.Outcomes)).outcomes

    async def post(self, path: str, body: object, shape: type[T]) -> T:
        """Send any other request that acts to a path below ``/api/v1``, and return its answer."""
        with self._daemon_errors():
            target = f"{self._url}/api/v1/{path}"
            answer = await self._client.request("POST", target, body=msgspec.json.encode(body))
            return _decode(_raise_for_status(answer).body, shape)

    @contextmanager
    def _daemon_errors(self) -> Generator[None, None, None]:
        try:
            yield
        except http.HttpStatusError as error:
            if error.answer.status == HTTPStatus.UNAUTHORIZED:
                raise explain_unauthenticated(self._url, has_token=self._has_token) from error
            try:
                problem = msgspec.json.decode(error.answer.body, type=Problem)
            except msgspec.DecodeError:
                answered = f"{error.answer.request} was answered {error.answer.status}"
                raise DaemonError(f"{answered}: this is not the API of an auditord") from error
            remedy = "" if problem.remedy is None else f": {problem.remedy}"
            raise DaemonError(f"{problem.detail.rstrip('.') if remedy else problem.detail}{remedy}") from error
        except http.CertificateUntrusted as error:
            remedy = "name the CA of its certificate with --ca FILE, or in the variable SSL_CERT_FILE"
            raise DaemonError(f"{error}; {remedy}") from error
        except http.HttpError as error:
            raise DaemonError(f"{NO_ANSWER}: {error}") from error


def explain_unauthenticated(url: str, *, has_token: bool) -> DaemonError:
    """Return the error for a server that answered 401."""
    if has_token:
        return DaemonError(
            f"{url} does not accept this token: it may have expired or been revoked, or belong to another server"
        )
    return DaemonError(f"{url} needs a token: give one with --token-file FILE")


def _raise_for_status(answer: http.HttpAnswer) -> http.HttpAnswer:
    if answer.ok:
        return answer
    raise HttpStatusError(answer)


def _decode(text: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.DecodeError as error:
        raise DaemonError(f"the daemon's answer cannot be read; is the daemon of another version? {error}") from error


async def _records(lines: AsyncIterator[bytes], limit: int | None = None) -> AsyncGenerator[Record, None]:
    count = 0
    async for line in lines:
        count += 1
        if limit is not None and count > limit:
            raise DaemonError(f"the server sends more than the {counted(limit, 'record')} that were asked for")
        try:
            record = decode_record(line)
        except InvalidRecord as error:
            raise DaemonError(f"the server sends a line that is not a record: {error}") from error
        yield record


async def _nothing() -> AsyncGenerator[bytes, None]:
    for line in list[bytes]():
        yield line


async def _lines(answer: http.HttpStream) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    async for chunk in answer:
        end, newline, others = chunk.partition(b"\n")
        rest += end
        if len(rest) > LARGEST_ANSWER:
            raise DaemonError(f"the server sends a line of more than {LARGEST_ANSWER} bytes: is it an auditord?")
        if newline:
            yield bytes(rest)
            *lines, last = others.split(b"\n")
            for line in lines:
                yield line
            rest = bytearray(last)
    if rest:
        raise DaemonError("the daemon's answer ends in the middle of a line")


_PIECE: Final = 65_536


class ControlSocket:
    """HTTP over a Unix socket with the standard library, which is imported ten times faster than aiohttp.

    Each request uses a new connection and is sent once.

    Args:
        silence: seconds without progress after which a request fails.
    """

    def __init__(self, path: str, silence: float) -> None:
        self._path = path
        self._silence = silence

    async def request(self, method: str, url: str, *, body: bytes | None = None) -> HttpAnswer:
        """Send a request; raises NoHttpAnswer."""
        async with self._open_answer(method, url, body) as answer:
            return await answer.whole()

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, body: bytes | None = None
    ) -> AsyncGenerator["ControlSocketStream", None]:
        """Send a request and yield its answer as a stream; raises NoHttpAnswer, or HttpStatusError unless 2xx."""
        async with self._open_answer(method, url, body) as answer:
            if not answer.ok:
                raise HttpStatusError(await answer.whole())
            yield answer

    @asynccontextmanager
    async def _open_answer(
        self, method: str, url: str, body: bytes | None
    ) -> AsyncGenerator["ControlSocketStream", None]:
        name = f"{method} {url}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self._silence)
            try:
                sock.connect(self._path)
            except OSError as error:
                raise NoHttpAnswer(f"{name}: cannot connect: {self._path}: {error.strerror}", sent=False) from error
            connection = HTTPConnection("auditord")
            connection.sock = sock
            headers = {} if body is None else {"Content-Type": "application/json"}
            response: HTTPResponse | None = None
            try:
                target = "/" + url.partition("://")[2].partition("/")[2]
                await _in_thread(name, partial(connection.request, method, target, body, headers))
                response = await _in_thread(name, connection.getresponse)
                yield ControlSocketStream(name, response)
            finally:
                with suppress(OSError):  # ends a thread that still waits for data
                    sock.shutdown(socket.SHUT_RDWR)
                if response is not None:
                    response.close()


class ControlSocketStream:
    """Implements :class:`auditord_hookspecs.http.HttpStream`."""

    def __init__(self, name: str, response: HTTPResponse) -> None:
        self._name = name
        self._response = response

    @property
    def ok(self) -> bool:
        """True if the status is 2xx."""
        return 200 <= self._response.status < 300  # noqa: PLR2004 the classes of HTTP

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer, with names in lower case."""
        return {key.lower(): value for key, value in self._response.getheaders()}

    async def whole(self) -> HttpAnswer:
        body = await _in_thread(self._name, self._response.read)
        return HttpAnswer(self._name, self._response.status, self.headers, body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield pieces of the body; raises NoHttpAnswer if it is cut off."""
        while piece := await _in_thread(self._name, partial(self._response.read1, _PIECE)):
            yield piece


async def _in_thread(name: str, work: Callable[[], T]) -> T:
    try:
        return await to_thread.run_sync(work, abandon_on_cancel=True)
    except (OSError, HTTPException) as error:
        raise NoHttpAnswer(f"{name}: {type(error).__name__}: {error}", sent=True) from error
