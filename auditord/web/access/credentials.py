"""Credentials of a request, from its connection and the header ``Authorization``. No other claim of a client counts.

The headers ``Forwarded`` and ``X-Forwarded-…`` count if a configured proxy sent them (:mod:`auditord.web.proxies`). The
certificate and user of the connection are then ignored, because they are the proxy's.
"""

import socket
import ssl
import struct
from typing import Any, Final

from aiohttp import web

from auditord.web.proxies import UNKNOWN, is_passed_on
from auditord_hookspecs import AccessRefused, Certificate, Credentials, UnixPeer

LONGEST_TOKEN: Final = 16_384

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_SO_PEERGROUPS: Final = 59  # since Linux 4.13; Python has no name for it
_MOST_BYTES: Final = 1_024  # that getsockopt() fetches: 256 groups


def credentials_of(request: web.BaseRequest) -> Credentials:
    """Read the credentials of a request.

    Raises:
        AccessRefused: the header Authorization is not a valid bearer token.
        ConnectionError: the client has disconnected.
    """
    if request.transport is None:
        raise ConnectionResetError("the client disconnected before it was identified")
    passed_on = is_passed_on(request)
    if not passed_on:
        peer: tuple[object, ...] | str | None = request.transport.get_extra_info("peername")
        address = str(peer[0]).partition("%")[0] if isinstance(peer, tuple) else None
    else:
        address = None if request.remote == UNKNOWN else request.remote
    token = None
    if given := request.headers.getall("Authorization", []):
        scheme, _, token = given[0].partition(" ")
        token = token.strip()
        fits = 0 < len(token) <= LONGEST_TOKEN and token.isascii()
        if len(given) > 1 or scheme.lower() != "bearer" or not fits:
            raise AccessRefused("the header Authorization has no bearer token")
    if token is not None or passed_on:
        return Credentials(address, token=token)
    if (tls := request.transport.get_extra_info("ssl_object")) is not None:
        return Credentials(address, certificate=_read_certificate(tls))
    return Credentials(address, peer=unix_peer(request))


def _read_certificate(tls: Any) -> Certificate | None:  # Any: the SSLObject of any event loop
    """Return the client's certificate; None if there is none or the listener does not verify any."""
    if tls.context.verify_mode == ssl.CERT_NONE:
        return None
    from auditord.web.access.client_certificates import certificate_of  # noqa: PLC0415 cryptography, only with TLS

    try:
        der: bytes | None = tls.getpeercert(binary_form=True)
        return certificate_of(der) if der else None
    except ValueError as error:
        raise AccessRefused(f"the client's certificate cannot be read: {error}") from error


def unix_peer(request: web.BaseRequest) -> UnixPeer | None:
    """Return the process at the other end of a unix socket; None for other connections."""
    sock = None if request.transport is None else request.transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    _, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        data: bytes = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
    except OSError:  # an old kernel or too many groups: only the primary group counts
        data = b""
    return UnixPeer(uid, gid, frozenset(struct.unpack(f"{len(data) // 4}I", data)))
