"""A running daemon, asked over its control socket or at a URL; see :mod:`auditord.web.api`."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import click
import msgspec
from yarl import URL

from auditord.actions import Closing, Note, Observer, Outcome, Retried, RunRequest
from auditord.cli.queries import encode_for_api
from auditord.errors import DaemonError
from auditord.web.api.changing import (
    ClosingsWanted,
    ClosingWanted,
    CorrectionWanted,
    DeletionsWanted,
    FormerVersion,
    History,
    Outcomes,
)
from auditord.web.api.problems import Problem
from auditord.web.api.shapes import QuarantinedInput, QuarantineEntry, QuarantinePage
from auditord.web.api.status_shapes import HealthReport, Instances
from auditord_hookspecs import Batch, Produced, Quarantined, Record, RecordQuery, RunReport
from auditord_hookspecs.wire import decode_record, format_time

T = TypeVar("T")

SILENCE_SECONDS: Final = 60
"""A daemon that says nothing for so long during a run is stuck: it speaks twice a second."""

_UNIX: Final = "unix:"
_AT_ONCE: Final = 500

url_option: Final = click.option(
    "--url", metavar="URL", help="Ask the daemon at http://host:port or unix:/path, wherever it runs."
)


class _Line(msgspec.Struct, frozen=True):
    progress: float | None = None
    said: str | None = None
    printed: str | None = None
    record: msgspec.Raw = msgspec.Raw()
    alternate_id: str | None = None
    quarantined: str | None = None
    reason: str = ""
    report: RunReport | None = None


class DaemonClient:
    """Asks a daemon. Every method raises :class:`DaemonError` if it does not answer, or refuses.

    Args:
        session: connected to it.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    # -- looking ------------------------------------------------------------------------------------------------------

    async def health(self) -> HealthReport:
        """How it fares; also if it says that it fares badly."""
        return await self._get("/api/v1/health", HealthReport, 503)

    async def instances(self) -> Instances:
        """How each instance fares."""
        return await self._get("/api/v1/instances", Instances)

    async def quarantine(self, task: str | None) -> AsyncGenerator[QuarantineEntry, None]:
        """What could not be handled, of one task or of all."""
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
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record], None]:
        """The matching records; an answer that is cut raises."""
        if query.limit == 0:  # a page of nothing is no question to the API
            yield _nothing()
            return
        path = f"/api/v1/records?format=ndjson&{encode_for_api(query)}"
        with _reached():
            async with self._session.get(URL(path, encoded=True)) as answer:
                await _check(answer)
                async with aclosing(_records(answer)) as records:
                    yield records

    async def _get(self, path: str, shape: type[T], *also: int) -> T:
        with _reached():
            async with self._session.get(URL(path, encoded=True)) as answer:
                if answer.status not in also:
                    await _check(answer)
                return _decoded(await answer.read(), shape)

    # -- acting -------------------------------------------------------------------------------------------------------

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Have an instance run, and watch."""
        path = f"/api/v1/instances/{quote(request.instance, safe='')}/runs"
        with _reached():
            async with self._session.post(URL(path, encoded=True), json=_body(request)) as answer:
                await _check(answer)
                async for text in _lines(answer):
                    line = _decoded(text, _Line)
                    if line.report is not None:
                        return line.report
                    await _observe(line, observer)
        raise DaemonError("the daemon ended in the middle of the run; what was collected until then is kept")

    @property
    def records(self) -> "DaemonRecords":
        """What may be done to single records."""
        return DaemonRecords(self._session)

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Have entries of the quarantine retried."""
        return msgspec.json.decode(await self._post("retry", ids), type=Retried, strict=False)

    async def discard(self, ids: Sequence[int]) -> int:
        """Have entries of the quarantine discarded."""
        return _decoded(await self._post("discard", ids), dict[str, int])["discarded"]

    async def _post(self, action: str, ids: Sequence[int]) -> bytes:
        with _reached():
            async with self._session.post(f"/api/v1/quarantine/{action}", json={"ids": list(ids)}) as answer:
                await _check(answer)
                return await answer.read()


class DaemonRecords:
    """Has a daemon change single records, and tell what they were.

    Args:
        session: connected to it.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        """Have a record put in the place of the stored one."""
        wish = CorrectionWanted(record, note.reason, note.by, seen)
        (outcome,) = await self._wish("corrections", wish)
        return outcome

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        """Have open records closed."""
        outcomes: list[Outcome] = []
        for first in range(0, len(closings), _AT_ONCE):
            some = [_closing(each) for each in closings[first : first + _AT_ONCE]]
            outcomes += await self._wish("closings", ClosingsWanted(some, note.reason, note.by))
        return outcomes

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        """Have records deleted."""
        outcomes: list[Outcome] = []
        for first in range(0, len(ids), _AT_ONCE):
            wish = DeletionsWanted(list(ids[first : first + _AT_ONCE]), note.reason, note.by)
            outcomes += await self._wish("deletions", wish)
        return outcomes

    async def history(self, record_id: str) -> Sequence[FormerVersion]:
        """What a record was before."""
        path = f"/api/v1/records/{quote(record_id, safe='')}/versions"
        with _reached():
            async with self._session.get(URL(path, encoded=True)) as answer:
                await _check(answer)
                return _decoded(await answer.read(), History).versions

    async def _wish(self, path: str, wish: CorrectionWanted | ClosingsWanted | DeletionsWanted) -> Sequence[Outcome]:
        with _reached():
            async with self._session.post(f"/api/v1/{path}", data=msgspec.json.encode(wish)) as answer:
                await _check(answer)
                return _decoded(await answer.read(), Outcomes).outcomes


@asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[DaemonClient | None, None]:
    """A client of the daemon that answers on this socket; None if none does."""
    async with _session(f"{_UNIX}{path}") as session:
        try:
            async with session.get("/"):
                pass
        except aiohttp.ClientConnectorError:
            yield None
            return
        yield DaemonClient(session)


@asynccontextmanager
async def daemon_at(url: str) -> AsyncGenerator[DaemonClient, None]:
    """A client of the daemon at ``http://host:port``, ``https://host`` or ``unix:/path/to/control.sock``.

    Raises:
        UsageError: it is no such URL.
    """
    async with _session(url) as session:
        yield DaemonClient(session)


def _session(url: str) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
    if url.startswith(_UNIX):
        connector = aiohttp.UnixConnector(path=url.removeprefix(_UNIX))
        return aiohttp.ClientSession("http://auditord", connector=connector, timeout=timeout)
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url: '{url}' is neither http://host:port nor https://host nor unix:/path")
    return aiohttp.ClientSession(url.rstrip("/"), timeout=timeout)


@contextmanager
def _reached() -> Generator[None, None, None]:
    try:
        yield
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DaemonError(
            f"the daemon does not answer, or its answer was cut off: {str(error) or 'time is up'}"
        ) from error


def _closing(closing: Closing) -> ClosingWanted:
    if isinstance(closing.stop, timedelta):
        return ClosingWanted(closing.record_id, runtime=int(closing.stop.total_seconds()))
    return ClosingWanted(closing.record_id, format_time(closing.stop))


def _body(request: RunRequest) -> dict[str, Any]:  # Any: texts and switches
    body: dict[str, Any] = {"replace": request.replace, "dry_run": request.dry_run, "section": request.section}
    if request.window is not None:
        body |= {"from": format_time(request.window.start), "to": format_time(request.window.stop)}
    if request.job is not None:
        body |= {"job_id": request.job.job_id, "source": request.job.source}
    return body


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.ok:
        return
    try:
        problem = msgspec.json.decode(await answer.read(), type=Problem)
    except msgspec.DecodeError as error:
        raise DaemonError(f"{answer.url} answers {answer.status}: that is no auditord with an API") from error
    raise DaemonError(problem.detail if problem.remedy is None else f"{problem.detail}: {problem.remedy}")


def _decoded(text: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.DecodeError as error:
        raise DaemonError(f"the daemon's answer cannot be read, is it of another version? {error}") from error


async def _records(answer: aiohttp.ClientResponse) -> AsyncGenerator[Record, None]:
    async for line in _lines(answer):
        yield decode_record(line)


async def _nothing() -> AsyncIterator[Record]:
    records: Sequence[Record] = ()
    for record in records:
        yield record


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        raise DaemonError("the daemon's answer ends in the middle of a line")


async def _observe(line: _Line, observer: Observer) -> None:
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
