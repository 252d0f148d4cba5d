"""Requests forwarded by a reverse proxy: the client's address, the host, and HTTP or HTTPS.

Any client can send ``Forwarded`` and ``X-Forwarded-…``. They are trusted only if the peer is a configured proxy, and
only in the configured form, because a proxy may pass the other form through unchanged. Proxies append to lists
that a client may have started, so lists are read from the end.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from auditord.config.model import ProxyHeaders
from auditord.web.connections import peer_address
from auditord.web.dispatch import Handler

UNKNOWN: Final = "unknown"
"""The address of a client that the proxy does not reveal (RFC 7239, section 6.2)."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?")
_WITH_PORT: Final = re.compile(r"\[([^\]]*)\](?::\w+)?|([0-9.]+):\w+")
_PASSED_ON: Final = web.RequestKey("passed_on", bool)

Address = IPv4Address | IPv6Address


class _Claims(msgspec.Struct, frozen=True):
    """The claims of the forwarding headers. ``clients`` begins with the most distant hop."""

    clients: Sequence[str]
    scheme: str = ""
    host: str = ""


class Proxies:
    """The configured proxies. Restores requests to the form in which clients sent them.

    Args:
        named: addresses, networks, and ``unix`` for peers on a unix socket.
        form: the form of headers to trust.
    """

    def __init__(self, named: Iterable[str], form: ProxyHeaders) -> None:
        names = frozenset(named)
        self._unix = "unix" in names
        self._networks = [ip_network(each) for each in names - {"unix"}]
        self._read: Callable[[web.BaseRequest], _Claims | None] = (
            _read_x_forwarded if form == "x-forwarded" else _read_forwarded
        )

    def before(self, handler: Handler) -> Handler:
        """Wrap a handler so that it receives requests as clients sent them to the proxy."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return await handler(self.see_through(request))

        return answer

    def see_through(self, request: web.BaseRequest) -> web.BaseRequest:
        """Return the request as the client sent it to the proxy, or unchanged without a configured proxy."""
        if request.transport is None or not self.is_named(peer_address(request.transport)):
            return request
        if (forwarded := self._read(request)) is None:
            return request
        clone = request.clone
        if _HOST.fullmatch(forwarded.host) is not None and forwarded.host != request.headers.get("Host"):
            # Non-UTF-8 bytes are replaced, because a copy cannot hold them.
            sent = request.headers.items()
            headers = CIMultiDict((name, value.encode("utf-8", "replace").decode()) for name, value in sent)
            headers["Host"] = forwarded.host
            clone = partial(request.clone, headers=headers)
        scheme = forwarded.scheme.lower()
        address: Address | None = None  # the last that is not a proxy's, or the first if all are
        for each in reversed(forwarded.clients):
            address = _address(each)
            if address is None or not self._has(address):
                break
        passed_on = clone(
            remote=UNKNOWN if address is None else str(address),
            scheme=scheme if scheme in {"http", "https"} else request.scheme,
        )
        passed_on[_PASSED_ON] = True
        return passed_on

    def is_named(self, peer: str) -> bool:
        """Return whether the address of a peer, empty for a unix socket, is that of a configured proxy."""
        if not peer:
            return self._unix
        address = _address(peer)
        return address is not None and self._has(address)

    def _has(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def is_passed_on(request: web.BaseRequest) -> bool:
    """Return whether a configured proxy forwarded the request. Its connection then says nothing about the client."""
    return _PASSED_ON in request


def _read_x_forwarded(request: web.BaseRequest) -> _Claims | None:
    clients, schemes, hosts = (
        [each.strip() for line in request.headers.getall(f"X-Forwarded-{name}", ()) for each in line.split(",")]
        for name in ("For", "Proto", "Host")
    )
    if not (clients or schemes or hosts):
        return None
    return _Claims(clients, schemes[-1] if schemes else "", hosts[-1] if hosts else "")


def _read_forwarded(request: web.BaseRequest) -> _Claims | None:
    hops = request.forwarded
    if not hops:
        return None
    return _Claims([hop.get("for", "") for hop in hops], hops[-1].get("proto", ""), hops[-1].get("host", ""))


def _address(text: str) -> Address | None:
    """Parse an address with an optional port or scope; return None for other text."""
    match = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address((match[1] or match[2] if match else text).partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
