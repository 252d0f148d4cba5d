"""Callers with different rights, the ways on which they call, and what they get: for the tests of access control."""

import io
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from auditord.web.dispatch import Route
from auditord_hookspecs import Permission
from tests.api_server import record

Connect: TypeAlias = Callable[[], socket.socket]

LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)

ROLES: Final = {
    "updater": {"permissions": ["update"]},
    "reader_a": {"permissions": ["read"], "rows": {"site_id": ["A"]}},
    "reader_h": {"permissions": ["read"], "rows": {"group_id": ["h"]}},
    "reader_none": {"permissions": ["read"], "rows": {"site_id": ["Z"]}},
    "site_a": {"permissions": ["write", "update"], "sites": ["A"]},
    "prefix_a": {"permissions": ["write", "update"], "sites": ["A"], "prefixes": ["a-"]},
    "shared_a": {"permissions": ["write", "update"], "sites": ["A"], "prefixes": ["shared-", "b-"]},
    "seen_a": {"permissions": ["update"], "rows": {"site_id": ["A"]}},
    "own": {"permissions": ["read"], "rows": {"user_id": ["self"]}},
    **{f"only_{each.value}": {"permissions": [each.value]} for each in Permission},
}

PRINCIPALS: Final[Mapping[str, Sequence[str]]] = {
    "reader": ["reader"],
    "reader_a": ["reader_a"],
    "reader_a_or_h": ["reader_a", "reader_h"],
    "reader_none": ["reader_none"],
    "writer": ["writer"],
    "site_a": ["site_a"],
    "prefix_a": ["prefix_a"],
    "shared_a": ["shared_a"],
    "seen_a": ["seen_a"],
    "alice": ["own"],
    "self": ["own"],
    "monitor": ["monitor"],
    "operator": ["operator"],
    "administrator": ["administrator"],
    "without_role": ["of_the_past"],
    "expired": ["administrator"],
    **{f"only_{each.value}": [f"only_{each.value}"] for each in Permission},
}
"""Each with its roles; one role is none that the configuration has."""

STORED: Final = [
    record("a-1", meta={"site_id": ["A"], "group_id": ["g"]}),
    record("b-1", meta={"site_id": ["B"], "group_id": ["g"]}),
    record("b-2", meta={"site_id": ["B"], "group_id": ["h"], "user_id": ["alice"]}),
    record("ab-1", meta={"site_id": ["B", "A"]}),
    record("none-1", meta=None),
    record("a-open", stop_time=None, meta={"site_id": ["A"]}),
    record("b-open", stop_time=None, meta={"site_id": ["B"]}),
]


@dataclass(frozen=True)
class Site:
    """A running daemon.

    Args:
        url: where it serves without TLS.
        state_dir: where its files are.
        tokens: of the principals.
        ways: how else it is reached, by name.
        routes: of each of its dispatchers.
    """

    url: str
    state_dir: Path
    tokens: Mapping[str, str]
    ways: Mapping[str, Connect] = field(default_factory=dict[str, Connect])
    routes: Sequence[Sequence[Route]] = ()

    def connect(self, way: str | None) -> socket.socket:
        """A new connection; without a way, by TCP and without TLS."""
        if way is not None:
            return self.ways[way]()
        return tcp(urlsplit(self.url).port or 0)


def tcp(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of this host."""
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def tls(port: int, context: ssl.SSLContext) -> socket.socket:
    """A connection secured by TLS, with the client's certificate that the context has."""
    return context.wrap_socket(tcp(port), server_hostname="localhost")


def unix(path: Path) -> socket.socket:
    """A connection to a unix socket, as the user of the tests."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(path))
    return connection


@dataclass(frozen=True)
class Response:
    """An answer.

    Args:
        status: of it.
        headers: of it.
        body: as far as it came.
        whole: whether all of it came, and nothing behind it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool

    @property
    def json(self) -> Any:  # Any: JSON
        return msgspec.json.decode(self.body)

    @property
    def wire_ids(self) -> set[str]:
        """The ids in an answer of ``GET /records``."""
        lines = self.body.replace(b"}{", b"}\n{").splitlines()
        return {msgspec.json.decode(line)["record_id"] for line in lines}

    @property
    def distinguishing(self) -> tuple[int, Mapping[str, str], bytes, bool]:
        """All that tells one refusal from another."""
        return self.status, {name: self.headers[name] for name in self.headers if name != "Date"}, self.body, self.whole


class _Received(io.BytesIO):
    """Bytes that came over a connection, for the parser of http.client, which closes its file at the end of a body."""

    def makefile(self, _mode: str) -> "_Received":
        """The file that the parser reads."""
        return self

    def close(self) -> None:
        """Stay open: there may be bytes behind the body."""


def parsed(method: str, received: bytes) -> Response:
    """All that a connection brought until its end, as the answer to one request.

    Raises:
        ConnectionError: not even an answer's beginning came.
    """
    file: Any = _Received(received)  # Any: it stands in for a socket
    response = HTTPResponse(file, method=method)
    response.begin()
    framed = response.chunked or response.length is not None
    try:
        body, whole = response.read(), framed
    except IncompleteRead as error:
        body, whole = error.partial, False
    return Response(response.status, dict(response.getheaders()), body, whole and not file.read())


@dataclass(frozen=True)
class Caller:
    """Somebody with the token of a principal, or with none.

    Args:
        site: whom they call.
        principal: None for nobody.
        way: one of the site's; by default TCP without TLS.
    """

    site: Site
    principal: str | None
    way: str | None = None

    def ask(self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None) -> Response:
        """One request on a connection of its own."""
        sent = b"" if body is None else msgspec.json.encode(body)
        named = {**self._headers(sent), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        with self.site.connect(self.way) as connection:
            connection.sendall(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + sent)
            return parsed(method, _until_the_end(connection))

    def _headers(self, sent: bytes) -> Mapping[str, str]:
        always = {"Host": "localhost", "Connection": "close"}
        token = {} if self.principal is None else {"Authorization": f"Bearer {self.site.tokens[self.principal]}"}
        kind = {"Content-Type": "application/json", "Content-Length": str(len(sent))} if sent else {}
        return {**always, **kind, **token}


def _until_the_end(connection: socket.socket) -> bytes:
    pieces: list[bytes] = []
    with suppress(ConnectionError):  # an answer that is cut short may end in a reset
        pieces.extend(iter(partial(connection.recv, 65_536), b""))
    return b"".join(pieces)
