"""Callers with different rights, and what they get: for the tests of access control."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.api_server import record

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
    "monitor": ["monitor"],
    "operator": ["operator"],
    "administrator": ["administrator"],
    "without_role": ["of_the_past"],
    "expired": ["administrator"],
}
"""Each with its roles; one role is none that the configuration has."""

STORED: Final = [
    record("a-1", meta={"site_id": ["A"], "group_id": ["g"]}),
    record("b-1", meta={"site_id": ["B"], "group_id": ["g"]}),
    record("b-2", meta={"site_id": ["B"], "group_id": ["h"]}),
    record("ab-1", meta={"site_id": ["B", "A"]}),
    record("none-1", meta=None),
    record("a-open", stop_time=None, meta={"site_id": ["A"]}),
    record("b-open", stop_time=None, meta={"site_id": ["B"]}),
]


@dataclass(frozen=True)
class Site:
    """A running daemon.

    Args:
        url: where it serves.
        state_dir: where its files are.
        tokens: of the principals.
    """

    url: str
    state_dir: Path
    tokens: Mapping[str, str]


@dataclass(frozen=True)
class Got:
    """An answer.

    Args:
        status: of it.
        headers: of it.
        body: as far as it came.
        whole: whether all of it came.
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
    def told(self) -> tuple[int, Mapping[str, str], bytes, bool]:
        """All that tells one refusal from another."""
        return self.status, {name: self.headers[name] for name in self.headers if name != "Date"}, self.body, self.whole


@dataclass(frozen=True)
class Caller:
    """Somebody with the token of a principal, or with none.

    Args:
        site: whom they call.
        principal: None for nobody.
    """

    site: Site
    principal: str | None

    def ask(self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None) -> Got:
        """One request on a connection of its own."""
        sent = None if body is None else msgspec.json.encode(body)
        token = {} if self.principal is None else {"Authorization": f"Bearer {self.site.tokens[self.principal]}"}
        kind = {} if sent is None else {"Content-Type": "application/json"}
        connection = HTTPConnection(self.site.url.removeprefix("http://"), timeout=30)
        try:
            connection.request(method, target, sent, {**kind, **token, **(headers or {})})
            response = connection.getresponse()
            try:
                text, whole = response.read(), True
            except IncompleteRead as error:
                text, whole = error.partial, False
            return Got(response.status, dict(response.getheaders()), text, whole)
        finally:
            connection.close()
