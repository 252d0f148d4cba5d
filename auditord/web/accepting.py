"""Connections at bound sockets; with TLS, by the certificate that is in its files now."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from anyio import CancelScope

from auditord.config.listen import ListenTls
from auditord.errors import ConfigurationError
from auditord.web.listeners import Bound
from auditord.web.tls import Fingerprint, fingerprint, server_context

log = logging.getLogger(__name__)

RENEWAL_INTERVAL: Final = timedelta(seconds=10)
"""How often files of certificates are looked at."""

_BACKLOG: Final = 256  # all of them may be accepted before one is closed: fewer than crowd.RESERVE
_HANDSHAKE_SECONDS: Final = 15.0

Protocols = Callable[[], asyncio.Protocol]


@asynccontextmanager
async def accepting(
    bound: Sequence[Bound], protocols: Protocols, renewal: timedelta = RENEWAL_INTERVAL
) -> AsyncGenerator[None, None]:
    """Let clients in; leaving lets nobody else in and leaves those who are there alone.

    Args:
        bound: where.
        protocols: makes the protocol of each connection.
        renewal: how often the files of certificates are looked at.

    Raises:
        ConfigurationError: the files of a certificate cannot be used.
    """
    doors = [_door(each, protocols) for each in bound]
    renewing = list[asyncio.Task[None]]()
    try:
        with CancelScope(shield=True):  # cancelled in between, a server would be open that nobody knows
            for door in doors:
                await door.open()
        renewing += [asyncio.create_task(_keep_renewed(door, renewal)) for door in doors if isinstance(door, _TlsDoor)]
        yield
    finally:
        for task in renewing:
            task.cancel()
        await asyncio.gather(*renewing, return_exceptions=True)
        for door in doors:
            door.close()


class _Door:
    """A socket at which somebody listens.

    Args:
        bound: where.
        protocols: makes the protocol of each connection.
    """

    def __init__(self, bound: Bound, protocols: Protocols) -> None:
        self._bound = bound
        self._protocols = protocols
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Let clients in."""
        await self._listen(None)

    async def _listen(self, context: ssl.SSLContext | None) -> None:
        """Let clients in from now on with this context.

        Each server has a descriptor of its own for the one socket: the new one accepts before the old one stops, so
        that nobody finds the door closed, and what was accepted goes on as it began.
        """
        before, own = self._server, self._bound.socket.dup()
        try:
            self._server = await self._served(own, context)
        except BaseException:
            own.close()
            raise
        if before is not None:
            before.close()

    async def _served(self, own: socket.socket, context: ssl.SSLContext | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        if own.family == socket.AF_UNIX:
            return await loop.create_unix_server(self._protocols, sock=own, backlog=_BACKLOG)
        limit = None if context is None else _HANDSHAKE_SECONDS
        return await loop.create_server(
            self._protocols, sock=own, backlog=_BACKLOG, ssl=context, ssl_handshake_timeout=limit
        )

    def close(self) -> None:
        """Let nobody else in."""
        if self._server is not None:
            self._server.close()


class _TlsDoor(_Door):
    """The same with TLS."""

    def __init__(self, bound: Bound, protocols: Protocols, tls: ListenTls) -> None:
        super().__init__(bound, protocols)
        self._tls = tls
        self._seen: Fingerprint = ()

    async def open(self) -> None:
        """Let clients in by the files as they are.

        Raises:
            ConfigurationError: they cannot be used (perhaps only half of them is there); what was read stays in use.
        """
        self._seen = fingerprint(self._tls)
        await self._listen(server_context(self._tls))

    async def renew(self) -> None:
        """Read the files again if they have changed; see :meth:`open`."""
        if fingerprint(self._tls) != self._seen:
            await self.open()
            log.info("'%s' shows the certificate that is now in %s", self._bound.address, self._tls.certificate)


def _door(bound: Bound, protocols: Protocols) -> _Door:
    return _Door(bound, protocols) if bound.tls is None else _TlsDoor(bound, protocols, bound.tls)


async def _keep_renewed(door: _TlsDoor, interval: timedelta) -> None:
    while True:
        await asyncio.sleep(interval.total_seconds())
        try:
            await door.renew()
        except (ConfigurationError, OSError) as error:
            log.error("%s; the certificate that was read before stays in use", error)  # noqa: TRY400 says it all
