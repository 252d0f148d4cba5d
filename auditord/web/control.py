"""The control socket: what acts on the daemon, for root and the daemon's own user only.

Head nodes have user shells, so nothing that acts is reachable over TCP. The socket lies in the state folder with mode
0600, and the kernel says who is at the other end.
"""

import os
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import msgspec
from aiohttp import web

from auditord.actions import Actions
from auditord.config.listen import UnixListen
from auditord.web.events import Chosen, EventLines, collect_request, problem
from auditord.web.listeners import bound_sockets
from auditord_hookspecs import AuditordError

FILE: Final = "control.sock"

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_GRACE: Final = 1.0

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def control(state_dir: Path, actions: Actions) -> AsyncGenerator[Path, None]:
    """Answer on the state folder's control socket; yields its path.

    Raises:
        ConfigurationError: the socket cannot be had.
    """
    application = web.Application(middlewares=[_only_owner, _explain])
    desk = _Desk(actions)
    application.router.add_post("/api/v1/instances/{instance}/runs", desk.collect)
    application.router.add_post("/api/v1/quarantine/retry", desk.retry)
    application.router.add_post("/api/v1/quarantine/discard", desk.discard)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_GRACE)
    with bound_sockets([UnixListen(state_dir / FILE)]) as sockets:
        (state_dir / FILE).chmod(0o600)
        await runner.setup()
        try:
            await web.SockSite(runner, sockets[0]).start()
            yield state_dir / FILE
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()


@web.middleware
async def _only_owner(request: web.Request, handler: _Handler) -> web.StreamResponse:
    if _peer_uid(request) not in {0, os.geteuid()}:
        return problem(403, "Only root and the daemon's own user may do this.")
    return await handler(request)


def _peer_uid(request: web.Request) -> int | None:
    peer = None if request.transport is None else request.transport.get_extra_info("socket")
    if peer is None:
        return None
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid


@web.middleware
async def _explain(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except msgspec.DecodeError as error:
        return problem(400, str(error))
    except AuditordError as error:
        return problem(409, str(error))


class _Desk:
    """Where requests are taken to the actions."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    async def collect(self, request: web.Request) -> web.StreamResponse:
        """Run a collector; NDJSON lines tell how it goes, the last one is the report."""
        wanted = collect_request(request.match_info["instance"], await request.read())
        lines = EventLines(request)
        try:
            async with anyio.create_task_group() as group:  # a client that leaves ends the run; what was kept stays
                group.start_soon(lines.keep_alive)
                await lines.finish(await self._actions.collect(wanted, lines))
                group.cancel_scope.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return lines.answer

    async def retry(self, request: web.Request) -> web.StreamResponse:
        """Retry entries of the quarantine."""
        chosen = msgspec.json.decode(await request.read(), type=Chosen)
        return web.Response(body=msgspec.json.encode(await self._actions.retry(chosen.ids)))

    async def discard(self, request: web.Request) -> web.StreamResponse:
        """Discard entries of the quarantine."""
        chosen = msgspec.json.decode(await request.read(), type=Chosen)
        return web.json_response({"discarded": await self._actions.discard(chosen.ids)})
