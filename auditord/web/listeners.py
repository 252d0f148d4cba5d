"""Listening sockets for the addresses of ``api.listen``; with TLS, by the certificate that is in its files now."""

import asyncio
import logging
import os
import socket
import ssl
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from pathlib import Path
from typing import Final

from anyio import CancelScope

from auditord.config.listen import ListenTls, TcpListen, UnixListen
from auditord.errors import ConfigurationError
from auditord.web.tls import Fingerprint, fingerprint, server_context

log = logging.getLogger(__name__)


RENEWAL_INTERVAL: Final = timedelta(seconds=10)
"""The time between looks at files of certificates."""

_BACKLOG: Final = 256  # all of them may be accepted before one is closed: fewer than connections.RESERVE

_HANDSHAKE_SECONDS: Final = 15.0

Protocols = Callable[[], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Bound:
    """A socket that clients can be let in at.

    Args:
        socket: bound; it does not listen yet.
        address: of the configuration; a name may have become several sockets.
    """

    socket: socket.socket
    address: TcpListen | UnixListen

    @property
    def tls(self) -> ListenTls | None:
        """The options of TLS."""
        return self.address.tls if isinstance(self.address, TcpListen) else None

    @property
    def url(self) -> str:
        """The URL for clients, with the port that the system chose."""
        if isinstance(self.address, UnixListen):
            return f"unix:{self.socket.getsockname()}"
        host, port = self.socket.getsockname()[:2]
        scheme = "http" if self.address.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if self.socket.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


@contextmanager
def bound_sockets(addresses: Iterable[TcpListen | UnixListen]) -> Generator[list[Bound], None, None]:
    """Bind every address; leaving closes the sockets and removes the unix ones' files.

    Raises:
        ConfigurationError: an address cannot be had; the text says why and what to do.
    """
    with ExitStack() as stack:
        found: list[Bound] = []
        for address in addresses:
            opened = _unix(address) if isinstance(address, UnixListen) else _tcp(address)
            found += [Bound(stack.enter_context(sock), address) for sock in opened]
            if isinstance(address, UnixListen):
                stack.callback(_remove, address.path, address.path.stat().st_ino)
        yield found


def _tcp(address: TcpListen) -> list[socket.socket]:
    """One socket per address that the host's name stands for."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigurationError(f"api.listen: '{address}': the host is not known ({error.strerror})") from error
    try:
        return [_bound(family, sockaddr) for family, sockaddr in dict.fromkeys((info[0], info[4]) for info in infos)]
    except OSError as error:
        if address.optional and error.errno in {EADDRNOTAVAIL, EAFNOSUPPORT}:
            log.info("this host has no address '%s': not listening there", address.host)
            return []
        raise ConfigurationError(_tcp_failure(address, error)) from error


def _bound(family: int, sockaddr: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has its own entry in the list
        sock.bind(sockaddr)
    except OSError:
        sock.close()
        raise
    return sock


def _tcp_failure(address: TcpListen, error: OSError) -> str:
    match error.errno:
        case n if n == EADDRINUSE:
            remedy = f"another process listens there: find it with 'ss -ltnp sport = :{address.port}', or take another"
        case n if n == EACCES:
            remedy = "ports below 1024 need the capability CAP_NET_BIND_SERVICE: take another"
        case _:
            remedy = "use an address of this host"
    return f"api.listen: cannot listen on '{address}' ({error.strerror}): {remedy}"


def _unix(address: UnixListen) -> list[socket.socket]:
    _remove_stale(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(address.path))
        _set_mode(address.path, address.mode)  # nobody can connect before listen()
    except OSError as error:
        sock.close()
        raise ConfigurationError(f"cannot listen on '{address}': {_unix_failure(error)}") from error
    except ConfigurationError:
        sock.close()
        raise
    return [sock]


def _set_mode(path: Path, mode: int) -> None:
    """Change the mode of the socket itself: a link that has taken its place must not open another file to others."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"{path}: another user has replaced the socket: listen in the daemon's folder")
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _unix_failure(error: OSError) -> str:
    if error.errno is None:  # Python itself refuses what does not fit the kernel's address
        return (
            f"{error}: at most 107 bytes, so take a shorter path (of api.listen, or of state_dir for its control.sock)"
        )
    return f"{error.strerror}: the folder must exist and be writable"


def _remove_stale(address: UnixListen) -> None:
    """Remove a socket's file that a killed process left behind; nothing else.

    Raises:
        ConfigurationError: another process listens there, or the file is no socket.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(address.path.lstat().st_mode):
            raise ConfigurationError(
                f"cannot listen on '{address}': it is a file of another kind: remove it or take another"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(address.path))
            except ConnectionRefusedError:
                address.path.unlink()
                return
        raise ConfigurationError(
            f"cannot listen on '{address}': another process listens there: stop it or take another path"
        )


def _remove(path: Path, inode: int) -> None:
    with suppress(OSError):  # on a disk that turned read-only, say; the next start removes what stays
        if path.lstat().st_ino == inode:  # another daemon may have taken the path meanwhile
            path.unlink()


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
    listeners = [_listener(each, protocols) for each in bound]
    renewing = list[asyncio.Task[None]]()
    try:
        with CancelScope(shield=True):  # cancelled in between, a server would be open that nobody knows
            for listener in listeners:
                await listener.open()
        renewing += [
            asyncio.create_task(_keep_renewed(listener, renewal))
            for listener in listeners
            if isinstance(listener, _TlsListener)
        ]
        yield
    finally:
        for task in renewing:
            task.cancel()
        await asyncio.gather(*renewing, return_exceptions=True)
        for listener in listeners:
            listener.close()


class _Listener:
    """A listening socket."""

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
        that nobody finds the listener closed, and what was accepted goes on as it began.
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


class _TlsListener(_Listener):
    """A listener with TLS."""

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


def _listener(bound: Bound, protocols: Protocols) -> _Listener:
    return _Listener(bound, protocols) if bound.tls is None else _TlsListener(bound, protocols, bound.tls)


async def _keep_renewed(listener: _TlsListener, interval: timedelta) -> None:
    while True:
        await asyncio.sleep(interval.total_seconds())
        try:
            await listener.renew()
        except (ConfigurationError, OSError) as error:
            log.error("%s; the certificate that was read before stays in use", error)  # noqa: TRY400 says it all
