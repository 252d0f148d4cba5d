"""A stand-in for AUDITOR's own server 0.11, as its wire contract describes it, quirks and all; in threads.

What it keeps is a dictionary that tests look into, and ``fault`` makes it misbehave.
"""

import contextlib
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, cast
from urllib.parse import unquote, unquote_plus

import msgspec

from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record, decode_records, decode_update, encode_record, parse_time

MAX_BODY: Final = 2_097_152
OPERATORS: Final = ("gt", "lt", "gte", "lte", "equals")

_COMPARE: Final = re.compile(r"(start_time|stop_time|runtime)\[(gt|lt|gte|lte|equals)\]")
_META: Final = re.compile(r"meta\[([^\[\]]+)\]\[(c|dnc)\]\[(\d*)\]")
_COMPONENT: Final = re.compile(r"component\[([^\[\]]+)\]\[(gt|lt|gte|lte|equals)\]")
_SORT: Final = re.compile(r"sort_by\[(asc|desc)\]")


class Fault(Enum):
    """A fault of one request."""

    RESET_BEFORE = "the connection is reset, nothing has happened"
    RESET_AFTER = "it is done, and the connection is reset before the answer"
    HANG = "no answer ever comes; nothing has happened"
    UNAVAILABLE = "a proxy in front says 503"
    ERROR = "the database has failed: 500 UNEXPECTED_ERROR"
    CUT = "the answer is reset in the middle"
    SHORT = "the answer ends in order, in the middle of an object"
    ENDED = "the database has failed: the answer ends in order, between two records, as if there were no more"


@dataclass
class FakeAuditor:
    """The server's state.

    Args:
        records: what it keeps.
        ignore_exists: AUDITOR's option ``ignore_record_exists_error``.
        fault: what goes wrong with a request, asked once per request with its method and target.
        refuse_with: a status that every request is answered with.
        requests: method and target of every request, in order.
    """

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    ignore_exists: bool = False
    fault: Callable[[str, str], Fault | None] = lambda _method, _target: None
    refuse_with: int | None = None
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add(self, records: Sequence[Record]) -> bool:
        """All or nothing, also where an id occurs twice in the batch."""
        with self.lock:
            ids = [record.record_id for record in records]
            if len(set(ids)) < len(ids) or any(record_id in self.records for record_id in ids):
                return False
            self.records.update(zip(ids, records, strict=True))
            return True


@contextlib.contextmanager
def fake_auditor(tls: ssl.SSLContext | None = None) -> Generator[FakeAuditor, None, None]:
    """A running server on a free port, with TLS if it is given a context."""
    auditor = FakeAuditor()
    server = _Server(("127.0.0.1", 0), _Handler)
    server.auditor = auditor
    auditor.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    if tls is not None:  # the handshake is made in the connection's own thread
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield auditor
    finally:
        auditor.gone.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    auditor: FakeAuditor
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients leave as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5  # AUDITOR's keep-alive
    wbufsize = 64 * 1024  # or each answer waits for the acknowledgement of its head
    disable_nagle_algorithm = True

    @property
    def auditor(self) -> FakeAuditor:
        return cast("_Server", self.server).auditor

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name of the standard library
        """Keep quiet."""

    def setup(self) -> None:
        super().setup()
        self.fault: Fault | None = None

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_POST(self) -> None:
        self._handle(self._post)

    def do_PUT(self) -> None:
        self._handle(self._put)

    def _handle(self, act: Callable[[], None]) -> None:
        self.auditor.requests.append((self.command, self.path))
        self.fault = self.auditor.fault(self.command, self.path)
        if self.fault is Fault.RESET_BEFORE:
            self._reset()
        elif self.auditor.refuse_with is not None:
            self._drain()
            self._answer(self.auditor.refuse_with, b"not today")
        elif self.fault is Fault.HANG:
            self.auditor.gone.wait()
            self.close_connection = True
        elif self.fault is Fault.UNAVAILABLE:
            self._drain()
            self._answer(503, b"<html>try later</html>", "text/html")
        elif self.fault is Fault.ERROR:
            self._drain()
            self._answer(500, b"UNEXPECTED_ERROR")
        else:
            act()

    # -- routes -------------------------------------------------------------------------------------------------------

    def _post(self) -> None:
        body = self._body()
        if body is None:
            return
        try:
            records = decode_records(body) if self.path == "/records" else [decode_record(body)]
        except InvalidRecord as error:
            self._answer(400, f"Json deserialize error: {error}".encode(), "text/plain; charset=utf-8")
            return
        added = self.auditor.add(records)
        if self.fault is Fault.RESET_AFTER:
            self._reset()
        elif added:
            self._answer(200, b"")
        elif self.auditor.ignore_exists:
            self._answer(200, b'{"warning":"Record already exists"}', "application/json")
        else:
            self._answer(500, b"RECORD_EXISTS")

    def _put(self) -> None:
        body = self._body()
        if body is None:
            return
        try:
            update = decode_update(body)
        except InvalidRecord as error:
            self._answer(400, f"Json deserialize error: {error}".encode(), "text/plain; charset=utf-8")
            return
        with self.auditor.lock:
            stored = self.auditor.records.get(update.record_id)
            if stored is not None:
                closed = msgspec.structs.replace(stored, stop_time=update.stop_time)
                self.auditor.records[update.record_id] = closed
        if self.fault is Fault.RESET_AFTER:
            self._reset()
        elif stored is None:
            self._answer(404, f"record with id {update.record_id} not found".encode(), "text/plain; charset=utf-8")
        else:
            self._answer(200, b"")

    def _get(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/health_check":
            self._answer(200, b"")
        elif path == "/records":
            self._list(query)
        elif (match := re.fullmatch(r"/record/([^/]+)", path)) is not None:
            self._one(unquote(match[1]))
        else:
            self._answer(404, b"nothing here")

    def _one(self, record_id: str) -> None:
        record = self.auditor.records.get(record_id)
        if record is None:
            self._answer(500, b'{"error":"no rows returned by a query"}', "application/json")
        else:
            self._answer(200, encode_record(record), "application/json")

    def _list(self, query: str) -> None:
        try:
            found = select(list(self.auditor.records.values()), query)
        except (InvalidRecord, ValueError) as error:
            self._answer(400, json.dumps({"error": str(error)}).encode(), "application/json")
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = [encode_record(record) for record in found]
        middle = len(pieces) // 2
        if self.fault is Fault.ENDED:
            del pieces[middle:]
        for number, piece in enumerate(pieces):
            broken = number == middle and self.fault in {Fault.CUT, Fault.SHORT}
            text = piece[: len(piece) // 2] if broken else piece
            self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
            if broken and self.fault is Fault.CUT:
                self.wfile.flush()
                self._reset()
                return
            if broken:
                break
        self.wfile.write(b"0\r\n\r\n")

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _body(self) -> bytes | None:
        length = int(self.headers.get("Content-Length", "0"))
        if length > MAX_BODY:
            self._drain()
            self._answer(413, b"JSON payload (2097153 bytes) is larger than allowed (limit: 2097152 bytes).")
            return None
        body = self.rfile.read(length)
        if "json" not in self.headers.get("Content-Type", ""):
            self._answer(400, b"Content type error")
            return None
        return body

    def _drain(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _answer(self, status: int, body: bytes, content_type: str | None = None) -> None:
        self.send_response(status)
        if content_type is not None:
            self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        # A close with lingering switched off is a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


# -- the query grammar, strict as AUDITOR's --------------------------------------------------------------------------


def select(records: Sequence[Record], query: str) -> list[Record]:
    """The answer to a query string.

    Raises:
        ValueError: AUDITOR would answer 400.
    """
    kept, order, limit = list(records), ("asc", "stop_time"), None
    compared: dict[str, dict[str, str]] = {}
    for key, value in _pairs(query).items():
        if key == "record_id":
            kept = [record for record in kept if record.record_id == value]
        elif key == "limit":
            limit = int(value)
        elif match := _SORT.fullmatch(key):
            order = (match[1], value)
        elif match := _COMPARE.fullmatch(key):
            compared.setdefault(match[1], {})[match[2]] = value
        else:
            kept = _select_by_key(kept, key, value)
    for name, operators in compared.items():
        kept = _select_compared(kept, name, operators)
    return _ordered(kept, *order)[:limit]


def _pairs(query: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for piece in filter(None, query.split("&")):
        key, _, value = piece.partition("=")
        if key in pairs:
            raise ValueError(f"duplicate field {key}")
        if not value:
            raise ValueError("an empty value: the client under test sends none")
        pairs[key] = unquote_plus(value)
    return pairs


def _select_by_key(records: Sequence[Record], key: str, value: str) -> list[Record]:
    if match := _META.fullmatch(key):
        return _select_meta(records, unquote_plus(match[1]), match[2], value)
    if match := _COMPONENT.fullmatch(key):
        return _select_component(records, unquote_plus(match[1]), match[2], int(value))
    raise ValueError(f"unknown field `{key}`")


def _select_compared(records: Sequence[Record], name: str, operators: dict[str, str]) -> list[Record]:
    values = {op: int(text) if name == "runtime" else parse_time(text) for op, text in operators.items()}
    if {"gt", "gte"} <= values.keys() or {"lt", "lte"} <= values.keys():
        return list(records)  # the whole filter disappears
    if name != "runtime":
        values.pop("equals", None)  # silently ignored
    return [record for record in records if all(_holds(getattr(record, name), op, v) for op, v in values.items())]


def _holds(actual: datetime | int | None, operator: str, value: datetime | int) -> bool:
    if actual is None:
        return False
    left, right = cast("int", actual), cast("int", value)
    return {
        "gt": left > right,
        "lt": left < right,
        "gte": left >= right,
        "lte": left <= right,
        "equals": left == right,
    }[operator]


def _select_meta(records: Sequence[Record], key: str, operator: str, value: str) -> list[Record]:
    if key[0].isdigit():
        raise ValueError("a key that starts with a digit is taken for an index")
    having = [record for record in records if key in (record.meta or {})]
    return [record for record in having if (value in (record.meta or {})[key]) == (operator == "c")]


def _select_component(records: Sequence[Record], name: str, operator: str, amount: int) -> list[Record]:
    return [
        record
        for record in records
        if record.components
        and record.components[0].name == name
        and _holds(record.components[0].amount, operator, amount)
    ]


def _ordered(records: Sequence[Record], direction: str, name: str) -> list[Record]:
    if name not in {"start_time", "stop_time", "runtime", "record_id"}:
        raise ValueError(f"unknown variant `{name}`")
    known = [record for record in records if getattr(record, name) is not None]
    unknown = [record for record in records if getattr(record, name) is None]
    known.sort(key=lambda record: cast("int", getattr(record, name)), reverse=direction == "desc")
    return [*unknown, *known] if direction == "desc" else [*known, *unknown]
