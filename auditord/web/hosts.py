"""Checks of ``Host`` and ``Origin``, against requests of browsers that their users never meant.

A page of anywhere can make its visitor's browser send requests to the visitor's own network. Its name may be made to
stand for an address there, and the browser then shows the answers to the page. So names are known here, and what a
browser says about the page counts. Other programs cannot be made to ask, and are left alone wherever a refusal would
lose records.
"""

import socket
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from auditord.config.listen import TcpListen, UnixListen
from auditord.web.answers import Answer, plain_text

_UNKNOWN_HOST: Final = plain_text(
    421, "This server does not know the host's name that was asked for; its operator can add it to api.hosts."
)
_FOREIGN_PAGE: Final = plain_text(403, "Pages of other servers may not ask this one.")

_MOST_KNOWN: Final = 1_000
_LONGEST: Final = 300  # of a name, and a port


def known_names(listen: Iterable[TcpListen | UnixListen], more: Collection[str]) -> frozenset[str]:
    """The names of this host, in small letters."""
    listened = (each.host for each in listen if isinstance(each, TcpListen))
    return frozenset(name.lower() for name in (*listened, *more, socket.gethostname()))


class HostCheck:
    """Refuses requests that a page of elsewhere makes its visitor's browser send.

    Args:
        names: see :func:`known_names`; addresses, names without a dot and those of ``localhost`` are known anyway,
            since nobody can make them stand for something else. ``*`` is every name.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.known = set[str]()
        """Headers that have been found to name this host."""

    def refusal(self, request: web.BaseRequest) -> Answer | None:
        """The refusal of a request; None if it may be answered."""
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if origin is not None and _host_of(origin) != host.lower():
            return _FOREIGN_PAGE.closing()
        # Browsers name the origin of every POST: without one its sender would take the refusal for a success.
        if (request.method == "POST" and origin is None) or host in self.known or _is_out_of_reach(request):
            return None
        return self._refused(host)

    def _refused(self, host: str) -> Answer | None:
        name = _name(host)
        if "*" not in self._names and not _stands_for_itself(name) and name not in self._names:
            return _UNKNOWN_HOST.closing()
        if len(self.known) < _MOST_KNOWN and len(host) < _LONGEST:
            self.known.add(host)
        return None


def _host_of(origin: str) -> str | None:
    """Host and port of an ``Origin`` header; None if it is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str:
    """The name of a ``Host`` header, without the port."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def _stands_for_itself(name: str) -> bool:
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_out_of_reach(request: web.BaseRequest) -> bool:
    """True if no name led a browser here.

    By TLS, here or at a named proxy, a certificate names us, and unix sockets have no names.
    """
    transport = request.transport
    if transport is None or not request.raw_path.startswith("/"):  # a browser asks its proxy like that, never a server
        return True
    return request.secure or isinstance(transport.get_extra_info("sockname"), str)
