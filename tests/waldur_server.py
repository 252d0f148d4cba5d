"""A stand-in for Waldur's API, as its documentation and published code describe it; in a thread of its own.

It keeps what is written, records every request, and misbehaves on demand: see :class:`Faults`. Amounts are absolute
and the last one wins; pages are small, so that lists have several.
"""

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from tests import waldur_settings

TOKEN: Final = "token-of-the-offering-manager"  # noqa: S105 a test's own
STAFF_TOKEN: Final = "token-of-staff"  # noqa: S105 a test's own
OIDC_SECRET: Final = "secret-at-the-provider"  # noqa: S105 a test's own
OFFERING: Final = UUID(waldur_settings.OFFERING)

BACKFILL: Final = "Staff privileges are required for backfilling past billing periods."

Json = Any  # Any: JSON


def uuid_of(name: str) -> UUID:
    """The UUID of whatever a test calls by this name."""
    return uuid5(NAMESPACE_URL, name)


@dataclass(frozen=True)
class Made:
    """A request that was made."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: Json
    authorization: str
    status: int | None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Fault:
    """An event instead of an answer.

    Args:
        status: this answer, before anything is done; 0: the connection is reset.
        after: the request is carried out, and then this happens.
        body: of the answer.
        headers: more of the answer.
        cut: the answer ends in its middle.
        broken: the answer is half of its JSON, properly framed.
    """

    status: int = 500
    after: bool = False
    body: bytes = b'{"detail": "A server error occurred."}'
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    broken: bool = False


RESET: Final = Fault(0)
RESET_AFTER: Final = Fault(0, after=True)
CUT: Final = Fault(cut=True)
BROKEN: Final = Fault(broken=True)


def throttled(seconds: int) -> Fault:
    """429 with Retry-After."""
    return Fault(429, body=b'{"detail": "Request was throttled."}', headers=(("Retry-After", str(seconds)),))


@dataclass
class Row:
    """A total."""

    uuid: UUID
    resource: UUID
    type: str
    month: date
    usage: Decimal
    users: dict[str, tuple[Decimal, str | None]] = field(default_factory=dict[str, tuple[Decimal, str | None]])


@dataclass
class FakeWaldur:
    """The contents of Waldur, and its behaviour.

    Args:
        now: its clock.
        version: what it says that it is.
        components: billing types by component.
        state: of the offering; why it is paused may follow a colon.
        resources: ``(backend_id, state)`` by name.
        users: usernames of the offering's users; a state may follow a colon.
        staff: whether the plain token is one of staff.
        roles: whether its user has a role on the offering.
        knows_dates: servers of 2024 do not; they write everything into the present month.
        has_bulk: the same servers take one user at a time.
        page_size: rows in a page, at most.
        links: whether a page names the next one; some proxies remove the header.
        filters: whether lists of totals heed ``billing_period``; unknown parameters are ignored without a word.
        refused_users: usernames that are refused, as by a serializer.
        faults: by ``METHOD /path`` or the beginning of one, what happens to the next ones; None is a proper answer.
        always: the same, for all of them.
        rows: the totals.
        requests: what was asked.
        url: where it is.
        tokens_granted: how many the token endpoint, ``/token``, has handed out.
        token_seconds: how long they last.
    """

    now: datetime = datetime(2026, 3, 15, 12, tzinfo=UTC)
    version: str = "7.5.0"
    components: dict[str, str] = field(default_factory=lambda: {"cpu": "usage", "mem": "usage"})
    state: str = "Active"
    resources: dict[str, tuple[str, str]] = field(default_factory=lambda: {"one": ("acct1", "OK")})
    users: list[str] = field(default_factory=lambda: ["alice", "bob"])
    staff: bool = False
    roles: bool = True
    knows_dates: bool = True
    has_bulk: bool = True
    page_size: int = 300
    links: bool = True
    filters: bool = True
    refused_users: set[str] = field(default_factory=set[str])
    faults: dict[str, deque[Fault | None]] = field(default_factory=dict[str, "deque[Fault | None]"])
    always: dict[str, Fault] = field(default_factory=dict[str, Fault])
    rows: list[Row] = field(default_factory=list[Row])
    requests: list[Made] = field(default_factory=list[Made])
    url: str = ""
    tokens_granted: int = 0
    token_seconds: int = 3600

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self._places: dict[tuple[UUID, str, date], Row] = {}

    # -- for tests ----------------------------------------------------------------------------------------------------

    def fail(self, request: str, *faults: Fault | None) -> None:
        """Let the next requests that begin so fail, one after another."""
        self.faults.setdefault(request, deque()).extend(faults)

    def asked(self, method: str = "") -> list[str]:
        """The requests in order, without their queries."""
        return [str(made) for made in self.requests if made.method.startswith(method)]

    def bodies(self, end: str) -> list[Json]:
        """The bodies of the requests to paths that end so."""
        return [made.body for made in self.requests if made.path.rstrip("/").endswith(end)]

    def totals(self, month: str) -> dict[tuple[str, str], str]:
        """Amounts by account and component."""
        names = {uuid_of(name): account for name, (account, _) in self.resources.items()}
        return {(names[row.resource], row.type): str(row.usage) for row in self.rows if f"{row.month:%Y-%m}" == month}

    def user_amounts(self, month: str) -> dict[tuple[str, str, str], str]:
        """Amounts by account, component and user."""
        names = {uuid_of(name): account for name, (account, _) in self.resources.items()}
        return {
            (names[row.resource], row.type, user): str(amount)
            for row in self.rows
            if f"{row.month:%Y-%m}" == month
            for user, (amount, _) in row.users.items()
        }

    # -- as the API ---------------------------------------------------------------------------------------------------

    def me(self, authorization: str) -> Json:
        role = {"role_name": "OFFERING.MANAGER", "scope_type": "offering", "scope_uuid": OFFERING.hex}
        return {
            "uuid": uuid_of("me").hex,
            "username": "service",
            "full_name": "Service Account",
            "is_staff": self.staff or authorization == f"Token {STAFF_TOKEN}",
            "permissions": [role] if self.roles else [],
        }

    def offering(self) -> Json:
        return {
            "uuid": OFFERING.hex,
            "name": "Cluster",
            "state": self.state.partition(":")[0],
            "paused_reason": self.state.partition(":")[2],
            "backend_id": "",
            "customer_uuid": uuid_of("customer").hex,
            "customer_name": "Centre",
            "components": [
                {"type": name, "name": name.upper(), "billing_type": billing, "measured_unit": "unit"}
                for name, billing in self.components.items()
            ],
        }

    def resource_rows(self, query: dict[str, list[str]]) -> list[Json]:
        if UUID(query["offering_uuid"][0]) != OFFERING:
            return []
        return [
            {"uuid": uuid_of(name).hex, "backend_id": account, "name": name, "state": state}
            for name, (account, state) in self.resources.items()
            if state in query.get("state", [state])
        ]

    def user_rows(self, query: dict[str, list[str]]) -> list[Json]:
        del query
        return [
            {
                "uuid": uuid_of(f"user {name}").hex,
                "url": f"{self.url}/api/marketplace-offering-users/{uuid_of(f'user {name}').hex}/",
                "username": name.partition(":")[0] or None,
                "state": name.partition(":")[2] or "OK",
            }
            for name in self.users
        ]

    def total_rows(self, query: dict[str, list[str]]) -> list[Json]:
        month = date.fromisoformat(query["billing_period"][0])
        one = UUID(query["resource_uuid"][0]) if "resource_uuid" in query else None
        return [
            {
                "uuid": row.uuid.hex,
                "type": row.type,
                "usage": f"{row.usage:.2f}",
                "resource_uuid": row.resource.hex,
                "billing_period": row.month.isoformat(),
            }
            for row in self.rows
            if (row.month == month or not self.filters) and one in {None, row.resource}
        ]

    def user_usage_rows(self, query: dict[str, list[str]]) -> list[Json]:
        month = date.fromisoformat(query["component_usage__billing_period"][0])
        return [
            {
                "username": name,
                "component_type": row.type,
                "usage": f"{amount:.2f}",
                "component_usage": f"{self.url}/api/marketplace-component-usages/{row.uuid.hex}/",
                "user": link,
                "resource_uuid": row.resource.hex,
            }
            for row in self.rows
            if row.month == month
            for name, (amount, link) in row.users.items()
        ]

    def set_usage(self, body: Json, authorization: str) -> tuple[int, Json]:
        if not self.roles:
            return 403, {"detail": "You do not have permission to perform this action."}
        states = {uuid_of(name): state for name, (_, state) in self.resources.items()}
        resource = UUID(body["resource"])
        if states.get(resource) not in {"OK", "Updating", "Terminating"}:
            return 400, {"resource": ["Resource is not in valid state."]}
        month, refusal = self._month(body, authorization)
        if refusal is not None:
            return refusal
        invalid = [
            each["type"] for each in body["usages"] if self.components.get(each["type"]) not in {"usage", "limit"}
        ]
        if invalid:
            return 400, [f"These components are invalid: {', '.join(invalid)}."]
        if any(not _two_decimals(each["amount"]) for each in body["usages"]):
            return 400, {"usages": [{"amount": ["Ensure that there are no more than 2 decimal places."]}]}
        for each in body["usages"]:
            self._row(resource, each["type"], month).usage = Decimal(each["amount"])
        return 201, None

    def set_user_usages(self, row: UUID, usages: Sequence[Json], authorization: str) -> tuple[int, Json]:
        found = next((each for each in self._places.values() if each.uuid == row), None)
        if found is None:
            return 404, {"detail": "Not found."}
        for usage in usages:
            name = usage["username"]
            if not name or len(name) > 100 or name in self.refused_users or not _two_decimals(usage["usage"]):
                return 400, {"username": ["This field is not valid."]}
        for usage in usages:
            month, refusal = self._month(usage, authorization)
            if refusal is not None:
                return refusal
            there = self._row(found.resource, found.type, month)
            there.users[usage["username"]] = Decimal(usage["usage"]), usage.get("user")
        return 201, None

    def _month(self, body: Json, authorization: str) -> tuple[date, tuple[int, Json] | None]:
        present = self.now.date().replace(day=1)
        if not self.knows_dates or "date" not in body:
            return present, None
        moment = datetime.fromisoformat(body["date"]).astimezone(UTC)
        month = moment.date().replace(day=1)
        if moment > self.now:
            return month, (400, {"date": ["Cannot submit usage for future dates."]})
        is_staff = self.staff or authorization == f"Token {STAFF_TOKEN}"
        if month < present and not is_staff and "usage" in self.components.values():
            return month, (400, [BACKFILL])
        return month, None

    def _row(self, resource: UUID, component: str, month: date) -> Row:
        place = (resource, component, month)
        if place not in self._places:
            self._places[place] = Row(uuid_of(" ".join(map(str, place))), *place, Decimal())
            self.rows.append(self._places[place])
        return self._places[place]


def _two_decimals(text: str) -> bool:
    return -(Decimal(text).as_tuple().exponent) <= 2  # type: ignore[operator] # no infinities here


@contextlib.contextmanager
def fake_waldur(
    tls: ssl.SSLContext | None = None, **behaviour: Any
) -> Generator[FakeWaldur, None, None]:  # Any: the fields of FakeWaldur
    """Run one on a free port."""
    waldur = FakeWaldur(**behaviour)
    server = _Server(waldur)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    waldur.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield waldur
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, waldur: FakeWaldur) -> None:
        self.waldur = waldur
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # Any: socketserver's own
        """A connection that was cut is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5  # of a kept connection; its thread is joined at the end
    disable_nagle_algorithm = True  # or each body would wait 40 ms for the acknowledgement of its headers

    @property
    def waldur(self) -> FakeWaldur:
        assert isinstance(self.server, _Server)
        return self.server.waldur

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 http.server's own name
        """Say nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        del timestamp
        return format_datetime(self.waldur.now, usegmt=True)

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_OPTIONS(self) -> None:
        self._handle()

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        is_json = "json" in self.headers.get("Content-Type", "")
        body = json.loads(raw) if is_json and raw else raw.decode() or None
        with self.waldur.lock:
            fault = self._fault(parts.path)
            if fault is not None and not (fault.after or fault.cut or fault.broken):
                self._note(parts.path, parts.query, body, fault.status)
                self._misbehave(fault)
                return
            status, answer, headers = self._answer(parts.path, parse_qs(parts.query), body)
            self._note(parts.path, parts.query, body, status)
        text = b"" if answer is None else json.dumps(answer).encode()
        if fault is not None and fault.after:
            self._misbehave(fault)
            return
        if fault is not None and fault.broken:
            text = text[: len(text) // 2]
        self._send(status, text, headers, cut=fault is not None and fault.cut)

    def _fault(self, path: str) -> Fault | None:
        name = f"{self.command} {path}"
        for beginning, fault in self.waldur.always.items():
            if name.startswith(beginning):
                return fault
        for beginning, faults in self.waldur.faults.items():
            if name.startswith(beginning) and faults:
                return faults.popleft()
        return None

    def _note(self, path: str, query: str, body: Json, status: int) -> None:
        authorization = self.headers.get("Authorization", "")
        self.waldur.requests.append(Made(self.command, path, parse_qs(query), body, authorization, status))

    def _misbehave(self, fault: Fault) -> None:
        if fault.status:
            self._send(fault.status, fault.body, dict(fault.headers), cut=False)
            return
        # A close with lingering switched off is a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _answer(self, path: str, query: dict[str, list[str]], body: Json) -> tuple[int, Json, dict[str, str]]:
        authorization = self.headers.get("Authorization", "")
        if path == "/token":
            return self._grant(body)
        granted = f"Bearer granted-{self.waldur.tokens_granted}" if self.waldur.tokens_granted else None
        if authorization not in {f"Token {TOKEN}", f"Token {STAFF_TOKEN}", granted}:
            return 401, {"detail": "Invalid token."}, {}
        if self.command == "GET":
            return self._get(path, query, authorization)
        status, answer = self._write(path, body, authorization)
        return status, answer, {}

    def _grant(self, body: Json) -> tuple[int, Json, dict[str, str]]:
        form = parse_qs(str(body))
        if form.get("client_secret") != [OIDC_SECRET] or form.get("grant_type") != ["client_credentials"]:
            return 401, {"error": "invalid_client"}, {}
        self.waldur.tokens_granted += 1
        token = f"granted-{self.waldur.tokens_granted}"
        return 200, {"access_token": token, "expires_in": self.waldur.token_seconds, "token_type": "Bearer"}, {}

    def _get(self, path: str, query: dict[str, list[str]], authorization: str) -> tuple[int, Json, dict[str, str]]:
        waldur = self.waldur
        if path == "/api/users/me/":
            return 200, waldur.me(authorization), {}
        if path == "/api/version/":
            return 200, {"version": waldur.version}, {}
        if path == f"/api/marketplace-provider-offerings/{OFFERING}/":
            return (200, waldur.offering(), {}) if waldur.roles else (404, {"detail": "Not found."}, {})
        lists: dict[str, Callable[[dict[str, list[str]]], list[Json]]] = {
            "/api/marketplace-provider-resources/": waldur.resource_rows,
            "/api/marketplace-offering-users/": waldur.user_rows,
            "/api/marketplace-component-usages/": waldur.total_rows,
            "/api/marketplace-component-user-usages/": waldur.user_usage_rows,
        }
        if path not in lists:
            return 404, {"detail": "Not found."}, {}
        return self._page(path, query, lists[path](query))

    def _page(self, path: str, query: dict[str, list[str]], rows: list[Json]) -> tuple[int, Json, dict[str, str]]:
        number = int(query.get("page", ["1"])[0])
        size = min(self.waldur.page_size, int(query.get("page_size", ["10"])[0]))
        fields = query.get("field")
        shown = [{key: row[key] for key in row if fields is None or key in fields} for row in rows]
        page = shown[(number - 1) * size : number * size]
        headers = {"X-Result-Count": str(len(rows))}
        if number * size < len(rows) and self.waldur.links:
            # Behind a proxy that does not say so, the server names itself by another name.
            following = urlencode({**query, "page": [str(number + 1)]}, doseq=True)
            headers["Link"] = (
                f'<http://mastermind.internal{path}?page=1>; rel="first", '
                f'<http://mastermind.internal{path}?{following}>; rel="next"'
            )
        return 200, page, headers

    def _write(self, path: str, body: Json, authorization: str) -> tuple[int, Json]:
        waldur = self.waldur
        pieces = path.strip("/").split("/")
        if pieces[:2] != ["api", "marketplace-component-usages"]:
            return 404, {"detail": "Not found."}
        action = pieces[-1]
        if action == "set_usage" and len(pieces) == 3:
            return waldur.set_usage(body, authorization)
        if action == "set_user_usages" and waldur.has_bulk:
            if self.command == "OPTIONS":
                return 200, {"name": "Component usage"}
            return waldur.set_user_usages(UUID(pieces[2]), body["usages"], authorization)
        if action == "set_user_usage":
            return waldur.set_user_usages(UUID(pieces[2]), [body], authorization)
        return 404, {"detail": "Not found."}

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.wfile.flush()
            self._misbehave(RESET)
