"""Whole daemons on each kind of store: one whose callers prove who they are, and one that asks nobody."""

import ssl
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from auditord.config.merging import CONTROL_FILE
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web import server
from auditord.web.dispatch import Dispatcher, Route
from auditord_builtin.access.tokens import StoredToken, TokenFile, new_token
from tests.access_callers import LONG_AGO, PRINCIPALS, ROLES, STORED, Caller, Connect, Site, tcp, tls, unix
from tests.access_decisions import CONTROL
from tests.host_certificates import Authority, HostFiles
from tests.other_user import IS_ROOT, NOBODY, connecting_as_nobody
from tests.postgres_server import PostgresServer

AUTHENTICATORS: Final[dict[str, Any]] = {
    "tokens": {"kind": "tokens"},
    "certificates": {"kind": "certificates", "rules": [{"common_name": "reader_a", "roles": ["reader_a"]}]},
    "users": {"kind": "unix_users", "rules": [{"user": str(NOBODY), "roles": ["site_a"]}]},
    "hosts": {"kind": "networks", "rules": [{"network": "127.0.0.2", "roles": ["monitor"]}]},
}


@dataclass
class Watched:
    """The routes of every dispatcher of a daemon: of the control socket, and of the addresses of ``api.listen``."""

    routes: list[list[Route]] = field(default_factory=list[list[Route]])

    def dispatcher(self, routes: Iterable[Route], *rest: Any, **more: Any) -> Dispatcher:  # Any: passed on
        """A dispatcher as the server makes it."""
        self.routes.append(list(routes))
        return Dispatcher(self.routes[-1], *rest, **more)


@dataclass(frozen=True)
class DaemonSetup:
    """The folder and the store of a daemon of these tests.

    Args:
        folder: of its files.
        authority: signs the server's certificate and the clients'.
        store: the section of its configuration.
    """

    folder: Path
    authority: Authority
    store: dict[str, Any]

    def sections(self, authenticators: dict[str, Any]) -> dict[str, Any]:
        """Its configuration."""
        of_server = self.authority.issue("server", old_style_key=False)
        secured = {"certificate": str(of_server.certificate), "key": str(of_server.key)}
        asking = {**secured, "client_ca": str(self.authority.file), "client_certificate": "optional"}
        return {
            "api": {
                "listen": [
                    "127.0.0.1:0",
                    {"address": "127.0.0.1:0", "tls": asking},
                    {"address": f"unix:{self._socket}", "mode": "0666"},
                ],
                "allow_insecure": True,
            },
            "access": {"roles": ROLES},
            "authenticators": authenticators,
            "metrics": {"database": {"interval": "1h"}},
            "lake": {"enabled": True, "name": "here", "schedule": "0 0 1 1 *"},  # synced to where a test wants it
            **self.store,
        }

    @property
    def _socket(self) -> Path:
        return self.folder / "api.sock"

    def ways(self, daemon: TestDaemon, stack: ExitStack) -> dict[str, Connect]:
        """The ways by which it is reached."""
        plain, secured = (urlsplit(url).port or 0 for url in daemon.urls[:2])
        sockets = {"unix": self._socket, CONTROL: self.folder / "state" / CONTROL_FILE}
        ways: dict[str, Connect] = {
            "tcp": partial(tcp, plain),
            "tcp from 127.0.0.2": partial(tcp, plain, "127.0.0.2"),
            "tls": partial(tls, secured, self._trust(None)),
            "tls, certificate of reader_a": partial(tls, secured, self._trust("reader_a")),
            "tls, certificate of a stranger": partial(tls, secured, self._trust("stranger")),
            **{name: partial(unix, path) for name, path in sockets.items()},
        }
        if IS_ROOT:
            for name, path in sockets.items():
                ways[f"{name}, as nobody"] = stack.enter_context(connecting_as_nobody(path))
        return ways

    def _trust(self, client: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if client is not None:
            files: HostFiles = self.authority.issue(client, old_style_key=False)
            context.load_cert_chain(files.certificate, files.key)
        return context


@contextmanager
def _serving(setup: DaemonSetup, authenticators: dict[str, Any]) -> Generator[Site, None, None]:
    """A daemon with the records of :data:`STORED`."""
    setup.folder.chmod(0o711)  # or nobody could not reach the sockets
    (setup.folder / "state").mkdir()
    wrong = {"wrong": new_token("x", ["administrator"], LONG_AGO, None)[1], "malformed": "of-another-make"}
    tokens = {**_with_tokens(setup.folder / "state"), **wrong}
    watched = Watched()
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(server, "Dispatcher", watched.dispatcher)
        daemon = stack.enter_context(running_daemon(setup.folder, setup.sections(authenticators)))
        ways = setup.ways(daemon, stack)
        site = Site(
            daemon.url, setup.folder / "state", {**tokens, "malformed": "of-another-make"}, ways, watched.routes
        )
        assert Caller(site, None, CONTROL).ask("POST", "/records", STORED).status == 200
        yield site


def _with_tokens(state_dir: Path) -> dict[str, str]:
    """A token of each principal, kept in the daemon's folder."""
    tokens, stored = dict[str, str](), list[StoredToken]()
    for name, roles in PRINCIPALS.items():
        expires = LONG_AGO if name == "expired" else datetime.now(UTC) + timedelta(days=1)
        token, tokens[name] = new_token(name, roles, LONG_AGO, expires)
        stored.append(token)
    TokenFile(state_dir).change(lambda _: stored)
    return tokens


@contextmanager
def _setup(request: pytest.FixtureRequest, folder: Path) -> Generator[DaemonSetup, None, None]:
    """A folder with a store of the kind that the fixture is made for."""
    with ExitStack() as stack:
        store: dict[str, Any] = {}
        if request.param == "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres_server")
            url = postgres.create(request.getfixturevalue("postgres_template"))
            stack.callback(postgres.drop, url)
            store = {"store": {"url": url}}
        yield DaemonSetup(folder, Authority(folder), store)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon with records of two sites that asks who calls; shared, so that no test may change its records."""
    with _setup(request, tmp_path_factory.mktemp("site")) as setup, _serving(setup, AUTHENTICATORS) as found:
        yield found


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def open_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same without authenticators."""
    with _setup(request, tmp_path_factory.mktemp("open")) as setup, _serving(setup, {}) as found:
        yield found
