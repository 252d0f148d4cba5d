"""Requests that a reverse proxy passes on: from which client, for which host, by HTTP or HTTPS.

Every client that reaches the server can write ``Forwarded`` and ``X-Forwarded-…``. They count only where the peer is a
proxy that the configuration names, and only in the form that it says: of the other form a proxy may pass on what its
client wrote. Of a list, which begins with what the client wrote, the end counts.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from auditord.config.model import ProxyHeaders
from auditord.web.connections import peer_address
from auditord.web.dispatch import Handler

UNKNOWN: Final = "unknown"
"""The client's address where a proxy does not tell it; RFC 7239, section 6.2."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?")
_WITH_PORT: Final = re.compile(r"\[([^\]]*)\](?::\w+)?|([0-9.]+):\w+")
_PASSED_ON: Final = web.RequestKey("passed_on", bool)

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class _Said:
    """The statements of the headers; lists begin with the hop that is farthest away."""

    clients: Sequence[str]
    scheme: str = ""
    host: str = ""


class Proxies:
    """Knows the proxies, and the clients behind them.

    Args:
        named: addresses, networks, and ``unix`` for whoever connects to a unix socket.
        form: of the headers that count.
    """

    def __init__(self, named: Iterable[str], form: ProxyHeaders) -> None:
        names = frozenset(named)
        self._unix = "unix" in names
        self._networks = [ip_network(each) for each in names - {"unix"}]
        self._read: Callable[[web.BaseRequest], _Said | None] = _x_forwarded if form == "x-forwarded" else _forwarded

    def before(self, handler: Handler) -> Handler:
        """The handler, which gets each request as its client has sent it to the proxy."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return await handler(self.seen_through(request))

        return answer

    def seen_through(self, request: web.BaseRequest) -> web.BaseRequest:
        """The request as its client has sent it to the proxy; the same one where no named proxy passed it on."""
        if request.transport is None or not self.is_named(peer_address(request.transport)):
            return request
        if (said := self._read(request)) is None:
            return request
        is_host = _HOST.fullmatch(said.host) is not None and said.host != request.headers.get("Host")
        clone = partial(request.clone, headers=_with_host(request, said.host)) if is_host else request.clone
        scheme = said.scheme.lower()
        passed_on = clone(
            remote=self._client(said.clients), scheme=scheme if scheme in {"http", "https"} else request.scheme
        )
        passed_on[_PASSED_ON] = True
        return passed_on

    def is_named(self, peer: str) -> bool:
        """Tell if a peer is one of the proxies, by its address; of a unix socket it is empty."""
        if not peer:
            return self._unix
        address = _address(peer)
        return address is not None and self._has(address)

    def _has(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _client(self, clients: Sequence[str]) -> str:
        """The last address that is none of the proxies'; the first one if all of them are."""
        address: Address | None = None
        for each in reversed(clients):
            address = _address(each)
            if address is None or not self._has(address):
                break
        return UNKNOWN if address is None else str(address)


def is_passed_on(request: web.BaseRequest) -> bool:
    """Tell if a named proxy passed the request on, so that its connection proves nothing of the client."""
    return _PASSED_ON in request


def _x_forwarded(request: web.BaseRequest) -> _Said | None:
    clients, schemes, hosts = (_listed(request, f"X-Forwarded-{name}") for name in ("For", "Proto", "Host"))
    if not (clients or schemes or hosts):
        return None
    return _Said(clients, schemes[-1] if schemes else "", hosts[-1] if hosts else "")


def _listed(request: web.BaseRequest, name: str) -> Sequence[str]:
    return [each.strip() for line in request.headers.getall(name, ()) for each in line.split(",")]


def _forwarded(request: web.BaseRequest) -> _Said | None:
    hops = request.forwarded
    if not hops:
        return None
    return _Said([hop.get("for", "") for hop in hops], hops[-1].get("proto", ""), hops[-1].get("host", ""))


def _address(text: str) -> Address | None:
    """An address, which may have a port or a scope; None of anything else."""
    match = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address((match[1] or match[2] if match else text).partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _with_host(request: web.BaseRequest, host: str) -> CIMultiDict[str]:
    """The headers with another ``Host``; a copy cannot hold bytes that are not UTF-8."""
    headers = CIMultiDict((name, value.encode("utf-8", "replace").decode()) for name, value in request.headers.items())
    headers["Host"] = host
    return headers
