"""The daemon's actions, asked over its control socket; see :mod:`auditord.web.control`."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from auditord.actions import Observer, Retried, RunRequest
from auditord.errors import DaemonError
from auditord_hookspecs import Batch, Produced, Quarantined, RunReport
from auditord_hookspecs.wire import decode_record, format_time

SILENCE_SECONDS: Final = 60
"""A daemon that says nothing for so long during a run is stuck: it speaks twice a second."""


class _Line(msgspec.Struct, frozen=True):
    progress: float | None = None
    said: str | None = None
    record: msgspec.Raw = msgspec.Raw()
    alternate_id: str | None = None
    quarantined: str | None = None
    reason: str = ""
    report: RunReport | None = None


class ControlClient:
    """Asks the daemon that owns the state folder.

    Args:
        session: connected to the control socket.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Have an instance run, and watch."""
        path = f"/api/v1/instances/{request.instance}/runs"
        async with self._session.post(path, json=_body(request)) as answer:
            await _check(answer)
            async for line in _lines(answer):
                if line.report is not None:
                    return line.report
                await _observe(line, observer)
        raise DaemonError("the daemon ended in the middle of the run; what was collected until then is kept")

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Have entries of the quarantine retried."""
        return msgspec.json.decode(await self._post("retry", ids), type=Retried, strict=False)

    async def discard(self, ids: Sequence[int]) -> int:
        """Have entries of the quarantine discarded."""
        return msgspec.json.decode(await self._post("discard", ids), type=dict[str, int])["discarded"]

    async def _post(self, action: str, ids: Sequence[int]) -> bytes:
        async with self._session.post(f"/api/v1/quarantine/{action}", json={"ids": list(ids)}) as answer:
            await _check(answer)
            return await answer.read()


@asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[ControlClient | None, None]:
    """A client of the daemon that answers on this socket; None if none does."""
    timeout = aiohttp.ClientTimeout(sock_read=SILENCE_SECONDS)
    connector = aiohttp.UnixConnector(path=str(path))
    async with aiohttp.ClientSession("http://auditord", connector=connector, timeout=timeout) as session:
        try:
            async with session.get("/"):
                pass
        except aiohttp.ClientConnectorError:
            yield None
            return
        yield ControlClient(session)


def _body(request: RunRequest) -> dict[str, Any]:  # Any: texts and switches
    body: dict[str, Any] = {"replace": request.replace, "dry_run": request.dry_run, "section": request.section}
    if request.window is not None:
        body |= {"from": format_time(request.window.start), "to": format_time(request.window.stop)}
    return body


async def _check(answer: aiohttp.ClientResponse) -> None:
    if not answer.ok:
        problem: dict[str, Any] = msgspec.json.decode(await answer.read())
        raise DaemonError(str(problem.get("detail", answer.status)))


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[_Line]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=_Line)


async def _observe(line: _Line, observer: Observer) -> None:
    if line.progress is not None:
        observer.progressed(line.progress)
    if line.said is not None:
        observer.said(line.said)
    if bytes(line.record):
        await observer.shown(Batch(records=[Produced(decode_record(bytes(line.record)), line.alternate_id)]))
    if line.quarantined is not None:
        await observer.shown(Batch(quarantined=[Quarantined(line.quarantined, None, line.reason)]))
