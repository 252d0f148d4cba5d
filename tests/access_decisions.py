"""The decision table of access control: who may do what, and what every route needs; all tests of it ask here.

A route that is not in :data:`DECISIONS` fails ``tests/integration/web/access/test_matrix.py``.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from auditord_hookspecs import Permission
from tests.access_callers import STORED
from tests.api_server import record

EVERY: Final = frozenset(str(each["record_id"]) for each in STORED)
OPEN: Final = frozenset(str(each["record_id"]) for each in STORED if each["stop_time"] is None)
OF_A: Final = frozenset({"a-1", "ab-1", "a-open"})
NOTHING: Final = frozenset[str]()


@dataclass(frozen=True)
class Decision:
    """The decision about a route.

    Args:
        permission: what it needs; None: nothing.
        status: of the answer to the request below, for whoever may.
        target: of a request that changes nothing; by default the route's path.
        body: of the same request.
        acts: whether only the control socket offers it where nobody is asked who they are.
    """

    permission: Permission | None
    status: int = 200
    target: str | None = None
    body: object = None
    acts: bool = False


_NOBODY: Final = "nobody-1"
_WHY: Final = {"reason": "a test"}

DECISIONS: Final[Mapping[tuple[str, str], Decision]] = {
    ("POST", "/record"): Decision(Permission.WRITE, 400, body={}),
    ("POST", "/records"): Decision(Permission.WRITE, body=[]),
    ("PUT", "/record"): Decision(Permission.UPDATE, 400, body={}),
    ("GET", "/record/{record_id}"): Decision(Permission.READ, 404, f"/record/{_NOBODY}"),
    ("GET", "/records"): Decision(Permission.READ),
    ("GET", "/health_check"): Decision(None),
    ("GET", "/metrics"): Decision(Permission.METRICS),
    ("GET", "/openapi.json"): Decision(Permission.READ),
    ("GET", "/"): Decision(Permission.READ),
    ("GET", "/usage"): Decision(Permission.READ),
    ("GET", "/usage.csv"): Decision(Permission.READ),
    ("GET", "/usage.json"): Decision(Permission.READ),
    ("GET", "/usage.parquet"): Decision(Permission.READ),
    ("GET", "/usage.xlsx"): Decision(Permission.READ),
    ("GET", "/usage.svg"): Decision(Permission.READ),
    ("GET", "/jobs"): Decision(Permission.READ),
    ("GET", "/jobs.csv"): Decision(Permission.READ, target="/jobs.csv?record_id=nobody-1"),
    ("GET", "/jobs.xlsx"): Decision(Permission.READ, target="/jobs.xlsx?record_id=nobody-1"),
    ("GET", "/jobs.json"): Decision(Permission.READ, target="/jobs.json?record_id=nobody-1"),
    ("GET", "/jobs/{record_id}"): Decision(Permission.READ, 404, f"/jobs/{_NOBODY}"),
    ("GET", "/suggestions"): Decision(Permission.READ, target="/suggestions?label=site_id"),
    ("GET", "/my"): Decision(Permission.READ),
    ("GET", "/operations"): Decision(Permission.OPERATE),
    ("GET", "/panels"): Decision(Permission.READ),
    ("GET", "/manual"): Decision(Permission.READ),
    ("GET", "/manual/{topic}"): Decision(Permission.READ, target="/manual/page"),
    ("GET", "/login"): Decision(None),
    ("GET", "/login/{authenticator}"): Decision(None, 404, "/login/nobody"),
    ("GET", "/login/{authenticator}/callback"): Decision(None, 404, "/login/nobody/callback"),
    ("POST", "/login"): Decision(None, 415, body={}),
    ("POST", "/logout"): Decision(None, 303, body={}),
    ("GET", "/operations/instances/{instance}/{act}"): Decision(
        Permission.OPERATE, 404, "/operations/instances/nobody/run"
    ),
    ("POST", "/operations/instances/{instance}/{act}"): Decision(
        Permission.OPERATE, 415, "/operations/instances/nobody/run", {}, acts=True
    ),
    ("GET", "/operations/runs/{number}"): Decision(Permission.OPERATE, 404, "/operations/runs/0"),
    ("GET", "/operations/quarantine"): Decision(Permission.OPERATE),
    ("GET", "/operations/quarantine/{act}"): Decision(Permission.OPERATE, 404, "/operations/quarantine/nothing"),
    ("POST", "/operations/quarantine/{act}"): Decision(
        Permission.OPERATE, 415, "/operations/quarantine/retry", {}, acts=True
    ),
    ("GET", "/jobs/{record_id}/{act}"): Decision(Permission.ADMINISTER, 404, f"/jobs/{_NOBODY}/delete"),
    ("POST", "/jobs/{record_id}/{act}"): Decision(Permission.ADMINISTER, 415, f"/jobs/{_NOBODY}/delete", {}, acts=True),
    ("GET", "/page/{file}"): Decision(None, 404, "/page/none"),
    ("GET", "/api/v1/records"): Decision(Permission.READ),
    ("POST", "/api/v1/records"): Decision(Permission.WRITE, body=[]),
    ("GET", "/api/v1/records/{record_id}"): Decision(Permission.READ, 404, f"/api/v1/records/{_NOBODY}"),
    ("GET", "/api/v1/aggregates"): Decision(Permission.READ),
    ("GET", "/api/v1/health"): Decision(Permission.METRICS),
    ("GET", "/api/v1/instances"): Decision(Permission.OPERATE),
    ("GET", "/api/v1/site_reports"): Decision(Permission.METRICS),
    ("PUT", "/api/v1/site_reports/{reporter}"): Decision(
        Permission.WRITE,
        200,
        "/api/v1/site_reports/nobody",
        {"sent_at": "2026-01-01T00:00:00Z", "first_day": "2026-01-01", "days": []},
    ),
    ("POST", "/api/v1/instances/{instance}/runs"): Decision(
        Permission.OPERATE, 404, "/api/v1/instances/nobody/runs", {}, acts=True
    ),
    ("POST", "/api/v1/instances/{instance}/audits"): Decision(
        Permission.OPERATE,
        404,
        "/api/v1/instances/nobody/audits",
        {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
        acts=True,
    ),
    ("GET", "/api/v1/quarantine"): Decision(Permission.OPERATE),
    ("GET", "/api/v1/quarantine/{number}"): Decision(Permission.OPERATE, 404, "/api/v1/quarantine/9999", acts=True),
    ("POST", "/api/v1/quarantine/retry"): Decision(Permission.OPERATE, body={"ids": []}, acts=True),
    ("POST", "/api/v1/quarantine/discard"): Decision(Permission.OPERATE, body={"ids": []}, acts=True),
    ("POST", "/api/v1/configuration/reload"): Decision(Permission.OPERATE, 409, body={"dry_run": True}, acts=True),
    ("POST", "/api/v1/corrections"): Decision(
        Permission.ADMINISTER, body={"record": record(_NOBODY), **_WHY}, acts=True
    ),
    ("POST", "/api/v1/closings"): Decision(Permission.ADMINISTER, body={"closings": [], **_WHY}, acts=True),
    ("POST", "/api/v1/deletions"): Decision(Permission.ADMINISTER, body={"ids": [], **_WHY}, acts=True),
    ("GET", "/api/v1/records/{record_id}/versions"): Decision(
        Permission.ADMINISTER, 200, f"/api/v1/records/{_NOBODY}/versions", acts=True
    ),
}


@dataclass(frozen=True)
class Rights:
    """The decision about somebody.

    Args:
        permissions: what they may do; None if nobody knows them.
        sees: the ids of :data:`STORED` that they read.
        writes: those of which they may send the record, as it is stored, again.
        updates: those whose stop time they may set.
        prefixes: what the ids that they may name in an update begin with; None: anything.
    """

    permissions: AbstractSet[Permission] | None
    sees: AbstractSet[str] = NOTHING
    writes: AbstractSet[str] = NOTHING
    updates: AbstractSet[str] = NOTHING
    prefixes: tuple[str, ...] | None = None

    def may(self, decision: Decision) -> bool:
        """Tell if they may ask for a route at all."""
        return decision.permission is None or decision.permission in (self.permissions or ())


UNKNOWN: Final = Rights(None)
OWNER: Final = Rights(frozenset(Permission), EVERY, EVERY, EVERY)
_READER: Final = Rights({Permission.READ}, EVERY)
_WRITER: Final = Rights({Permission.WRITE, Permission.UPDATE}, NOTHING, EVERY, EVERY)

RIGHTS: Final[Mapping[str | None, Rights]] = {
    None: UNKNOWN,
    "expired": UNKNOWN,
    "wrong": UNKNOWN,
    "malformed": UNKNOWN,
    "without_role": Rights(frozenset()),
    "reader": _READER,
    "reader_a": replace(_READER, sees=OF_A),
    "reader_a_or_h": replace(_READER, sees=OF_A | {"b-2"}),
    "reader_none": replace(_READER, sees=NOTHING),
    "writer": _WRITER,
    "site_a": replace(_WRITER, writes={"a-1", "a-open"}, updates={"a-1", "a-open"}),
    "prefix_a": replace(_WRITER, writes={"a-1", "a-open"}, updates={"a-1", "a-open"}, prefixes=("a-",)),
    "shared_a": replace(_WRITER, writes=NOTHING, updates=NOTHING, prefixes=("shared-", "b-")),
    "seen_a": Rights({Permission.UPDATE}, NOTHING, NOTHING, OF_A),
    "alice": replace(_READER, sees={"b-2"}),
    "self": replace(_READER, sees=NOTHING),
    "monitor": Rights({Permission.METRICS}),
    "operator": Rights({Permission.READ, Permission.METRICS, Permission.OPERATE}, EVERY),
    "administrator": OWNER,
    "only_read": _READER,
    "only_write": Rights({Permission.WRITE}, NOTHING, EVERY),
    "only_update": Rights({Permission.UPDATE}, NOTHING, NOTHING, EVERY),
    "only_metrics": Rights({Permission.METRICS}),
    "only_operate": Rights({Permission.OPERATE}),
    "only_administer": Rights({Permission.ADMINISTER}),
}
"""By the principal whose token is sent; None: no token. ``tests/access_callers.py`` says how each gets its roles."""

WAYS: Final[Mapping[str, str | None]] = {
    "tcp": None,
    "tcp from 127.0.0.2": "monitor",
    "tls": None,
    "tls, certificate of reader_a": "reader_a",
    "tls, certificate of a stranger": None,
    "unix": None,
    "unix, as nobody": "site_a",
}
"""Whom each way shows while no token is sent; a token, right or wrong, counts alone."""

CONTROL: Final = "control"
CONTROL_AS_NOBODY: Final = "control, as nobody"
"""The control socket is its owner's, whatever is sent, and closed to everybody else."""


@dataclass(frozen=True)
class Requester:
    """Somebody who asks.

    Args:
        principal: whose token is sent; None for no token.
        way: one of :data:`WAYS`, or the control socket.
        known: whether the daemon asks who they are.
    """

    principal: str | None
    way: str
    known: bool = True

    @property
    def rights(self) -> Rights:
        """The decision about them."""
        if self.way == CONTROL or not self.known:
            return OWNER
        return RIGHTS[WAYS[self.way] if self.principal is None else self.principal]

    def refusal(self, decision: Decision) -> int | None:
        """With which status they are refused at a route, whatever they ask for; None if they are not."""
        if not self.rights.may(decision):
            return 401 if self.rights.permissions is None else 403
        return 403 if decision.acts and not self.known and self.way != CONTROL else None
