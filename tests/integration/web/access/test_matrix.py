"""The access matrix: who x on which way x every route x every record, each answer as the decision table has it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from msgspec.structs import replace

from auditord.manual import text_of
from auditord.web.dispatch import Route
from auditord_hookspecs import Permission
from tests.access_callers import PRINCIPALS, STORED, Caller, Response, Site
from tests.access_decisions import (
    CONTROL,
    CONTROL_AS_NOBODY,
    DECISIONS,
    EVERY,
    NOTHING,
    OPEN,
    RIGHTS,
    WAYS,
    Requester,
)
from tests.other_user import needs_root
from tests.unit.test_promises import routes as promised_routes

AUDITORS_POSTS: Final = {("POST", "/record"), ("POST", "/records")}
"""A refusal of these is cut short, since AUDITOR's clients take every whole answer for success."""

ELSEWHERE: Final = {("GET", "/records"), ("GET", "/api/v1/records"), ("GET", "/jobs")}
"""Lists of records."""

OF_THE_PAGE: Final = re.compile(r"/(?:login|logout$|page/)")
"""The routes of the page that every browser may ask for; the others answer a refused browser with a login."""
"""Paths that people visit, which the manual describes elsewhere."""

_ids: Final = re.compile(rb"(?<![\w-])(?:" + b"|".join(each.encode() for each in EVERY) + rb")(?![\w-])")


@dataclass(frozen=True)
class Cell:
    """One request, and what is decided about it.

    Args:
        route: its method and path as the table has them.
        target: of the request.
        body: of the request.
        status: of the answer to whoever is not refused at the route.
        shown: the records that the answer holds then, of those that are stored.
        asked: the record that the request itself names, so that an answer may name it as well.
    """

    route: tuple[str, str]
    target: str
    body: object
    status: int
    shown: frozenset[str] = NOTHING
    asked: str = ""

    def fault(self, asking: Requester, got: Response) -> str | None:
        """The fault of the answer; None if there is none."""
        refused = asking.refusal(DECISIONS[self.route])
        status, shown = (self.status, self.shown) if refused is None else (refused, NOTHING)
        cut = self.route in AUDITORS_POSTS and got.status in {401, 403}
        wanted = (status, not cut, {*shown} - {self.asked})
        found = (got.status, got.whole, ids_in(got.body) - {self.asked})
        if found != wanted or (not shown and b'"components"' in got.body and self.target != "/openapi.json"):
            return f"{self.route[0]} {self.target} by {asking}: {found} instead of {wanted}: {got.body[:300]!r}"
        return None


def ids_in(body: bytes) -> set[str]:
    """The stored records that an answer names."""
    return {found.decode() for found in _ids.findall(body)}


def route_cells() -> Iterator[Cell]:
    """The request of the table at each route where records make no difference."""
    for (method, path), decision in DECISIONS.items():
        if (method, path) not in ELSEWHERE:
            yield Cell((method, path), decision.target or path, decision.body, decision.status)


def listing_cells(asking: Requester) -> Iterator[Cell]:
    """Everything that lists records."""
    sees = frozenset(asking.rights.sees)
    for path, queries in {
        "/records": ["", "?sort_by[desc]=record_id"],
        "/api/v1/records": ["", "?format=ndjson"],
        "/jobs": ["", "?open=true"],
        "/jobs.csv": ["", "?open=true"],
        "/jobs.json": [""],
    }.items():
        for query in queries:
            yield Cell(("GET", path), path + query, None, 200, sees & OPEN if "open=" in query else sees)


def record_cells(asking: Requester, stored: Mapping[str, Any]) -> Iterator[Cell]:  # Any: JSON
    """Every request about one record that is stored; none changes it."""
    name, rights = str(stored["record_id"]), asking.rights
    seen = frozenset({name} & rights.sees)
    for path in ("/record/{record_id}", "/api/v1/records/{record_id}", "/jobs/{record_id}"):
        yield Cell(("GET", path), path.format(record_id=name), None, 200 if seen else 404, seen, name)
    path = "/api/v1/records/{record_id}/versions"
    yield Cell(("GET", path), path.format(record_id=name), None, 200, asked=name)
    yield Cell(("GET", "/records"), f"/records?record_id={name}", None, 200, seen, name)
    mine = name in rights.writes
    for path, body in (("/record", stored), ("/records", [stored])):
        yield Cell(("POST", path), path, body, 200 if mine else 403, asked=name)
    yield Cell(("POST", "/api/v1/records"), "/api/v1/records", [stored], 200 if mine else 207, asked=name)
    if name not in rights.updates & OPEN:  # this would close it
        yield Cell(("PUT", "/record"), "/record", stored_as_closed(stored), update_status(asking, name), asked=name)


def stored_as_closed(stored: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    """The update that changes nothing, unless the record is open."""
    return {**stored, "stop_time": stored["stop_time"] or "2026-01-01T01:00:00Z"}


def update_status(asking: Requester, name: str) -> int:
    """The answer to an update: 403 for an id that is nobody's to ask about, 404 for a record of others."""
    if name in asking.rights.updates:
        return 200
    prefixes = asking.rights.prefixes
    return 404 if prefixes is None or name.startswith(prefixes) else 403


def faults(site: Site, asking: Requester, cells: Iterable[Cell]) -> list[str]:
    """The faults of the answers."""
    caller = Caller(site, asking.principal, asking.way)
    found = ((each, caller.ask(each.route[0], each.target, each.body)) for each in cells)
    return [fault for cell, got in found if (fault := cell.fault(asking, got))]


def undecided(routes: Iterable[Route]) -> list[tuple[str, str]]:
    """Routes that the table does not have, or with another permission."""
    return [
        (each.method, each.path)
        for each in routes
        if (decision := DECISIONS.get((each.method, each.path))) is None or decision.permission is not each.permission
    ]


def documented(site: Site) -> Iterator[tuple[tuple[str, str], str]]:
    """Method and path of every call that the API's own description has, with its words."""
    for path, calls in Caller(site, "administrator").ask("GET", "/openapi.json").json["paths"].items():
        for method, call in calls.items():
            yield (method.upper(), path), call["description"]


def test_every_principal_and_every_way_is_decided(site: Site) -> None:
    assert RIGHTS.keys() == {None, "wrong", "malformed", *PRINCIPALS}
    assert {*site.ways} | {"unix, as nobody", CONTROL_AS_NOBODY} == {*WAYS, CONTROL, CONTROL_AS_NOBODY}


def test_every_route_is_decided(site: Site, open_site: Site) -> None:
    for routes in (*site.routes, *open_site.routes):
        assert undecided(routes) == []
        assert {(each.method, each.path) for each in routes} == DECISIONS.keys()
        assert {(each.method, each.path) for each in routes if each.audited} == {
            key for key, decision in DECISIONS.items() if decision.acts
        }


def test_a_route_that_nobody_has_decided_is_found(site: Site) -> None:
    routes = site.routes[0]
    other = replace(routes[0], permission=Permission.METRICS)
    assert undecided([replace(routes[0], path="/new"), other, routes[1]]) == [("POST", "/new"), ("POST", "/record")]


def test_the_description_of_the_api_says_what_is_decided(site: Site) -> None:
    described = dict(documented(site))
    ours = {key for key in DECISIONS if key[1].startswith("/api/")}
    assert described.keys() == ours
    for key, words in described.items():
        permission = DECISIONS[key].permission
        assert permission is not None
        assert words.startswith(f"Needs the permission {permission.value}.")
        assert words.endswith("on the control socket only.") == DECISIONS[key].acts


def test_the_manual_and_the_promises_have_every_route_of_programs(site: Site) -> None:
    """The routes are those of a running daemon, so a list that forgets one is found here."""
    every = [each for routes in site.routes for each in routes if each.refuse_browser is None]
    served = {f"{each.method} {each.path}" for each in every if not OF_THE_PAGE.match(each.path)}
    assert {"POST /record", "GET /metrics", "POST /api/v1/configuration/reload"} <= served
    text = text_of("routes")
    named = re.findall(r"^(?:\| `|### )([A-Z]+ /[^`?\n]*)", text, re.MULTILINE)
    assert sorted(named) == sorted(served)
    promised = {line.partition(":")[0].partition("?")[0] for line in promised_routes()}
    assert served <= promised


def all_cells(asking: Requester, stored: Sequence[Mapping[str, Any]]) -> list[Cell]:  # Any: JSON
    """Every request of the matrix by somebody, about these records."""
    about = [cell for each in stored for cell in record_cells(asking, each)]
    return [*route_cells(), *listing_cells(asking), *about]


on_sqlite = pytest.mark.parametrize("site", ["sqlite"], indirect=True)
"""A route is decided before the store is asked; test_rows.py puts the rows of readers to both kinds of store."""


@pytest.mark.parametrize("site", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("principal", RIGHTS, ids=str)
def test_every_principal_at_every_route_and_record(site: Site, principal: str | None) -> None:
    asking = Requester(principal, "tcp")
    assert faults(site, asking, all_cells(asking, STORED)) == []


def reached(site: Site, way: str) -> None:
    """Skip where a way needs another user, whom only root can be."""
    if way not in site.ways:
        pytest.skip("only root can act as another user")


OTHER_WAYS: Final = [way for way in WAYS if way != "tcp"]


@on_sqlite
@pytest.mark.parametrize("way", OTHER_WAYS)
@pytest.mark.parametrize("principal", [None, "wrong", "reader_a", "administrator"], ids=str)
def test_every_way(site: Site, way: str, principal: str | None) -> None:
    reached(site, way)
    asking = Requester(principal, way)
    assert faults(site, asking, all_cells(asking, STORED[1:2])) == []


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("way", [*OTHER_WAYS, CONTROL])
@pytest.mark.parametrize("principal", RIGHTS, ids=str)
def test_every_principal_on_every_way(site: Site, way: str, principal: str | None) -> None:
    reached(site, way)
    asking = Requester(principal, way)
    assert faults(site, asking, all_cells(asking, STORED)) == []


@on_sqlite
@pytest.mark.parametrize("principal", [None, "wrong", "reader_a"], ids=str)
def test_the_control_socket_is_its_owners_whatever_is_sent(site: Site, principal: str | None) -> None:
    asking = Requester(principal, CONTROL)
    assert faults(site, asking, all_cells(asking, STORED[1:2])) == []


@needs_root
def test_the_control_socket_is_closed_to_others(site: Site, open_site: Site) -> None:
    for each in (site, open_site):
        with pytest.raises(PermissionError, match="Permission denied"):
            Caller(each, "administrator", CONTROL_AS_NOBODY).ask("GET", "/health_check")


@pytest.mark.parametrize("open_site", ["sqlite"], indirect=True)
@pytest.mark.parametrize("way", ["tcp", "tls", "unix", "unix, as nobody", CONTROL])
@pytest.mark.parametrize("principal", [None, "wrong"], ids=str)
def test_where_nobody_is_asked_only_the_control_socket_acts(open_site: Site, way: str, principal: str | None) -> None:
    reached(open_site, way)
    asking = Requester(principal, way, known=False)
    assert faults(open_site, asking, all_cells(asking, STORED[:1])) == []
