"""A whole daemon on each kind of store, whose callers prove who they are by tokens."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord.testing.daemon import running_daemon
from auditord_builtin.access.token_file import StoredToken, TokenFile, new_token
from tests.access_callers import LONG_AGO, PRINCIPALS, ROLES, STORED, Caller, Site
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon with records of two sites, and a token for each principal; shared, so that no test may change them."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "state").mkdir()
    tokens, stored = dict[str, str](), list[StoredToken]()
    for name, roles in PRINCIPALS.items():
        expires = LONG_AGO if name == "expired" else datetime.now(UTC) + timedelta(days=1)
        token, tokens[name] = new_token(name, roles, LONG_AGO, expires)
        stored.append(token)
    TokenFile(folder / "state").change(lambda _: stored)
    sections: dict[str, Any] = {
        "access": {"roles": ROLES},
        "authenticators": {"tokens": {"kind": "tokens"}},
        "metrics": {"database": {"interval": "1h"}},
    }
    with ExitStack() as stack:
        if request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = server.create(request.getfixturevalue("postgres_template"))
            stack.callback(server.drop, url)
            sections["store"] = {"url": url}
        daemon = stack.enter_context(running_daemon(folder, sections))
        found = Site(daemon.url, folder / "state", tokens)
        assert Caller(found, "administrator").ask("POST", "/records", STORED).status == 200
        yield found
