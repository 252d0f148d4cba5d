"""Checks of ``Host`` and ``Origin`` against requests that browsers send without their users' intent.

Any web page can make its visitor's browser send requests to the visitor's own network. The page's host name can be made
to resolve to an address there (DNS rebinding), and the browser then shows the answers to the page. So ``Host`` must
be a known name, and ``Origin`` must match it. Other programs cannot be tricked like this. They are not checked where a
refusal would lose records or leave them open.
"""

import logging
import socket
from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from auditord.config.listen import TcpListen, UnixListen, stands_for_itself
from auditord.web.answers import Answer, plain_text, sendable
from auditord.web.problems import PREFIX, Refused
from auditord.web.requests import path_for_logs, read_target

_log: Final = logging.getLogger(__name__)

_READING: Final = frozenset({"GET", "HEAD"})
"""The methods of requests for which a browser names no origin."""
_HARMLESS: Final = frozenset({"/health_check"})
"""Paths whose answers are of no use to a page of another server."""

_MOST_KNOWN: Final = 1_000
_MOST_REFUSED: Final = 100
_LONGEST: Final = 300  # of a name, and a port


def list_names(listen: Iterable[TcpListen | UnixListen], more: Collection[str]) -> frozenset[str]:
    """Return the names of this host, in lower case."""
    listened = (each.host for each in listen if isinstance(each, TcpListen))
    return frozenset(name.lower() for name in (*listened, *more, socket.gethostname()))


class HostCheck:
    """Refuses requests that a page of another server makes its visitor's browser send.

    Args:
        names: see :func:`list_names`. IP addresses, names without a dot and names of ``localhost`` are always known,
            because no attacker can make them resolve to something else. ``*`` matches every name.
        refused: receives the host names that were refused.
    """

    def __init__(self, names: Collection[str], refused: set[str] | None = None) -> None:
        self._names = names
        self._refused = set[str]() if refused is None else refused
        self._foreign = set[tuple[str, str]]()
        self.known = set[str]()
        """``Host`` headers that have been found to name this host."""

    def refusal(self, request: web.BaseRequest) -> Answer | None:
        """Return the refusal of a request; None if it may be answered."""
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if origin is not None:
            try:
                same = urlsplit(origin).netloc.lower() == host.lower()
            except ValueError:  # it is not a URL
                same = False
            if not same:
                return self._refuse_page(request, host, origin)
        name = _name(host)
        if "*" in self._names or stands_for_itself(name) or name in self._names:
            if len(self.known) < _MOST_KNOWN and len(host) < _LONGEST:
                self.known.add(host)
            return None
        if _is_harmless(request):
            return None
        name = sendable(name[:_LONGEST])
        if name not in self._refused and len(self._refused) < _MOST_REFUSED:
            self._refused.add(name)
            _log.warning(
                "%s %s from %s for the host %a is answered 421, like all reads under this name: if it is a name of "
                "this server, add it to api.hosts",
                *(request.method, path_for_logs(request), request.remote, name),
            )
        detail = "this server does not know the requested host name"
        remedy = "its operator can add it to api.hosts"
        return _answer(request, Refused(HTTPStatus.MISDIRECTED_REQUEST, detail, remedy=remedy))

    def _refuse_page(self, request: web.BaseRequest, host: str, origin: str) -> Answer:
        page = (origin[:_LONGEST], host[:_LONGEST])
        if page not in self._foreign and len(self._foreign) < _MOST_REFUSED:
            self._foreign.add(page)
            _log.warning(
                "%s %s from %s is answered 403, because a page of %a sent it to the host %a: if a reverse proxy serves "
                "this server's page under that name, have it pass the name on (see auditord manual proxy)",
                *(request.method, path_for_logs(request), request.remote, *page),
            )
        detail = "pages of other servers may not send requests to this one"
        return _answer(request, Refused(HTTPStatus.FORBIDDEN, detail, remedy="use a page of this server"))


def _answer(request: web.BaseRequest, refused: Refused) -> Answer:
    if read_target(request.raw_path).path.startswith(PREFIX):
        return refused.answer().closing()
    problem = refused.problem
    return plain_text(problem.status, f"{problem.detail[0].upper()}{problem.detail[1:]}: {problem.remedy}.").closing()


def _name(host: str) -> str:
    """Return the name of a ``Host`` header, without the port."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def _is_harmless(request: web.BaseRequest) -> bool:
    """Return whether no page of another server can gain anything by the request.

    A browser would have named an origin in a write. Writes without one come from clients of AUDITOR. A POST must not be
    refused, because the client would take the refusal for success; nor a PUT, because the record would stay open.

    DNS rebinding is impossible with TLS, here or at a configured proxy, because the certificate names this server; and
    for unix sockets, which have no names.
    """
    is_read = request.method in _READING and read_target(request.raw_path).path not in _HARMLESS
    if "Origin" not in request.headers and not is_read:
        return True
    transport = request.transport
    if transport is None or not request.raw_path.startswith("/"):  # browsers send the absolute form only to proxies
        return True
    return request.secure or isinstance(transport.get_extra_info("sockname"), str)
