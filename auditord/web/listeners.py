"""Listening sockets: those of ``api.listen``, whose TLS files are reloaded when they change, and the control socket.

The control socket offers calls that act on the daemon to root and the daemon's user only. Users have shells on head
nodes, so such calls are not available over TCP without authenticators. The socket is in the state folder with mode
0600, and the kernel tells which user is connected.
"""

import asyncio
import logging
import os
import pwd
import socket
import ssl
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from aiohttp import web
from anyio import CancelScope

from auditord.config.listen import ListenTls, TcpListen, UnixListen
from auditord.errors import ConfigurationError
from auditord.web.access import audit
from auditord.web.access.credentials import unix_peer
from auditord.web.dispatch import Handler, Route
from auditord.web.problems import Refused

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2: authenticated and with forward secrecy. TLS 1.3 has no others."""

Fingerprint: TypeAlias = Sequence[tuple[int, int, int] | None]
"""Inode, size and modification time of each file, following links; None for a missing file."""


def server_context(tls: ListenTls) -> ssl.SSLContext:
    """Read the files of a listener and return its TLS context.

    Raises:
        ConfigurationError: a file cannot be read or used; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        files = tls.certificate if tls.key is None else f"{tls.certificate} with the key {tls.key}"
        raise ConfigurationError(f"api.listen: cannot use the certificate {files}: {_words(error)}") from error
    if tls.client_ca is None:
        return context
    try:
        context.load_verify_locations(cafile=tls.client_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"api.listen: cannot use client_ca {tls.client_ca}: {_words(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED if tls.client_certificate == "required" else ssl.CERT_OPTIONAL
    # A resumed session would present a certificate that was verified earlier, perhaps by other authorities.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def fingerprint(tls: ListenTls) -> Fingerprint:
    prints = list[tuple[int, int, int] | None]()
    for path in tls.files:
        try:
            found = path.stat()
        except OSError:
            prints.append(None)
        else:
            prints.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return prints


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted, and a daemon cannot ask for its passphrase")


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    return error.strerror or str(error)


log = logging.getLogger(__name__)


RENEWAL_INTERVAL: Final = timedelta(seconds=10)
"""The time between two checks of the certificate files."""

_BACKLOG: Final = 256  # fewer than connections.RESERVE: all may be accepted before one is closed

_HANDSHAKE_SECONDS: Final = 15.0

Protocols = Callable[[], asyncio.Protocol]


class Bound(msgspec.Struct, frozen=True):
    """A bound socket.

    Args:
        address: the configured address; a host name may have several sockets.
    """

    socket: socket.socket
    address: TcpListen | UnixListen

    @property
    def tls(self) -> ListenTls | None:
        """The TLS options; None without TLS."""
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
def bind_sockets(addresses: Iterable[TcpListen | UnixListen]) -> Generator[list[Bound], None, None]:
    """Bind every address. On exit, close the sockets and remove the files of unix sockets.

    Raises:
        ConfigurationError: an address cannot be bound.
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
    """Return a socket for each address of the host name."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigurationError(f"api.listen: '{address}': the host is unknown ({error.strerror})") from error
    bound = list[socket.socket]()
    try:
        for family, sockaddr in dict.fromkeys((info[0], info[4]) for info in infos):
            bound.append(sock := socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart does not wait for old connections
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has its own entry in the list
            sock.bind(sockaddr)
    except OSError as error:
        for sock in bound:
            sock.close()
        if address.optional and error.errno in {EADDRNOTAVAIL, EAFNOSUPPORT}:
            log.info("this host has no address '%s': not listening there", address.host)
            return []
        match error.errno:
            case n if n == EADDRINUSE:
                find = f"find it with 'ss -ltnp sport = :{address.port}'"
                remedy = f"another process listens there: {find}, or use another port"
            case n if n == EACCES:
                remedy = "ports below 1024 need the capability CAP_NET_BIND_SERVICE: use another"
            case _:
                remedy = "use an address of this host"
        raise ConfigurationError(f"api.listen: cannot listen on '{address}' ({error.strerror}): {remedy}") from error
    return bound


def _unix(address: UnixListen) -> list[socket.socket]:
    _remove_stale(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(address.path))
        # Before listen(), so that no client connects. Another user's link in its place must not redirect chmod.
        descriptor = os.open(address.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise ConfigurationError(
                    f"{address.path}: another user has replaced the socket: use a path in the daemon's folder"
                )
            Path(f"/proc/self/fd/{descriptor}").chmod(address.mode)
        finally:
            os.close(descriptor)
    except OSError as error:
        sock.close()
        if error.errno is not None:
            reason = f"{error.strerror}: the folder must exist and be writable"
        else:  # Python refuses paths that are too long for the kernel
            reason = (
                f"{error}: at most 107 bytes, so use a shorter path (in api.listen, or state_dir for its control.sock)"
            )
        raise ConfigurationError(f"cannot listen on '{address}': {reason}") from error
    except ConfigurationError:
        sock.close()
        raise
    return [sock]


def _remove_stale(address: UnixListen) -> None:
    """Remove the socket file that a killed process left behind.

    Raises:
        ConfigurationError: another process listens there, or the file is not a socket.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(address.path.lstat().st_mode):
            raise ConfigurationError(
                f"cannot listen on '{address}': the file is not a socket: remove it or use another path"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(address.path))
            except ConnectionRefusedError:
                address.path.unlink()
                return
        raise ConfigurationError(
            f"cannot listen on '{address}': another process listens there: stop it or use another path"
        )


def _remove(path: Path, inode: int) -> None:
    with suppress(OSError):  # such as on a read-only disk; the next start removes the file
        if path.lstat().st_ino == inode:  # another daemon may have bound the path meanwhile
            path.unlink()


@asynccontextmanager
async def accepting(
    bound: Sequence[Bound], protocols: Protocols, renewal: timedelta = RENEWAL_INTERVAL
) -> AsyncGenerator[None, None]:
    """Accept clients. On exit, stop accepting and keep existing connections.

    Args:
        bound: the sockets.
        protocols: makes the protocol of each connection.
        renewal: the time between two checks of the certificate files.

    Raises:
        ConfigurationError: a certificate cannot be used.
    """
    listeners = [
        _Listener(each, protocols) if each.tls is None else _TlsListener(each, protocols, each.tls) for each in bound
    ]
    renewing = list[asyncio.Task[None]]()
    try:
        with CancelScope(shield=True):  # a cancellation must not lose an open server
            for listener in listeners:
                await listener.open()
        renewing += [
            asyncio.create_task(listener.keep_renewed(renewal))
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
    def __init__(self, bound: Bound, protocols: Protocols) -> None:
        self._bound = bound
        self._protocols = protocols
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        await self._listen(None)

    async def _listen(self, context: ssl.SSLContext | None) -> None:
        """Accept clients with a new TLS context.

        Each server has its own descriptor of the socket. The new server accepts before the old one stops, so no client
        is refused, and existing connections continue.
        """
        before, own = self._server, self._bound.socket.dup()
        try:
            loop = asyncio.get_running_loop()
            if own.family == socket.AF_UNIX:
                self._server = await loop.create_unix_server(self._protocols, sock=own, backlog=_BACKLOG)
            else:
                limit = None if context is None else _HANDSHAKE_SECONDS
                self._server = await loop.create_server(
                    self._protocols, sock=own, backlog=_BACKLOG, ssl=context, ssl_handshake_timeout=limit
                )
        except BaseException:
            own.close()
            raise
        if before is not None:
            before.close()

    def close(self) -> None:
        """Stop accepting clients."""
        if self._server is not None:
            self._server.close()


class _TlsListener(_Listener):
    def __init__(self, bound: Bound, protocols: Protocols, tls: ListenTls) -> None:
        super().__init__(bound, protocols)
        self._tls = tls
        self._seen: Fingerprint = ()

    async def open(self) -> None:
        """Accept clients with the current certificate files.

        Raises:
            ConfigurationError: the files cannot be used (they may be half written); the former ones stay in use.
        """
        self._seen = fingerprint(self._tls)
        await self._listen(server_context(self._tls))

    async def keep_renewed(self, interval: timedelta) -> None:
        """Reload the files whenever they have changed; see :meth:`open`."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            if fingerprint(self._tls) == self._seen:
                continue
            try:
                await self.open()
            except (ConfigurationError, OSError) as error:
                log.error("%s; the previous certificate stays in use", error)  # noqa: TRY400 says it all
            else:
                log.info("'%s' now uses the new certificate in %s", self._bound.address, self._tls.certificate)


def for_the_owner(route: Route) -> Handler:
    """Wrap a route's handler so that only root and the daemon's user may call it."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        peer = unix_peer(request)
        if peer is None or peer.uid not in {0, os.geteuid()}:
            audit.log_refusal(request, f"control:{peer_name(request)}", "neither root nor the daemon's own user")
            return Refused(403, "only root and the daemon's own user may use the control socket").answer()
        if route.audited:
            audit.acting(request, f"control:{peer_name(request)}")
        return await route.handler(request)

    return handle


def peer_name(request: web.BaseRequest) -> str:
    """Return the name of the user at the other end, or the user id without a name."""
    peer = unix_peer(request)
    try:
        return "unknown" if peer is None else pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return f"uid {peer.uid}" if peer is not None else "unknown"
