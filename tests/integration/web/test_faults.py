"""Faults of the store, the spool or a client: no record is lost without a word."""

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from auditord.config.model import ApiSection
from auditord.duplicates import Duplicates
from auditord.errors import StoreDamaged, StoreMisconfigured, StoreUnavailable
from auditord.ingest import Ingest
from auditord.store import Provenance, Verdict
from auditord.store.store import RecordStore
from auditord.web.server import serve
from auditord_hookspecs import (
    Close,
    Entry,
    Insert,
    InvalidRecord,
    Record,
    RecordQuery,
    RecordUpdate,
)
from auditord_hookspecs.wire import decode_record

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AWAY = StoreUnavailable("no space left on device, see to /srv")
REFUSED = StoreMisconfigured("password authentication failed for user me")
DAMAGED = StoreDamaged("database disk image is malformed")
RECORD = b'{"record_id":"r1","components":[],"start_time":"2026-11-20T10:00:00Z"}'
UPDATE = b'{"record_id":"r1","components":[],"stop_time":"2026-11-20T11:00:00Z"}'
STEP_SECONDS = 0.01
DEADLINE_SECONDS = 20


async def nothing() -> None:
    """The default of a hook of the fake store."""


@dataclass
class FakeStore:
    """A store with set answers: each error is raised by every method, pages may be errors too."""

    error: Exception | None = None
    verdicts: Sequence[Verdict] = (Verdict.ADDED,)
    pages: Sequence[Sequence[bytes] | Exception] = ()
    endless: Sequence[bytes] | None = None
    before_add: Callable[[], Awaitable[None]] = nothing
    records: list[Record] = field(default_factory=list[Record])
    writes: int = 0
    stoppable: Sequence[str] = ("r1",)
    pages_given: int = 0
    streams_left: int = 0

    async def add(
        self, record: Record, provenance: Provenance, duplicates: Duplicates, text: bytes | None = None
    ) -> Verdict:
        del text
        return (await self.add_all([record], provenance, duplicates, atomic=True))[0]

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        del provenance, duplicates, atomic
        await self.before_add()
        self._fail()
        self.records.extend(records)
        return self.verdicts if len(self.verdicts) == len(records) else [self.verdicts[0]] * len(records)

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        del provenance
        self._fail()
        return update.record_id in self.stoppable

    async def get(self, record_id: str) -> bytes | None:
        self._fail()
        return record_id.encode()

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        self._fail()
        return {each.record_id: RECORD for each in self.records if each.record_id in record_ids}

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        del query
        self._fail()
        try:
            yield self._pages()
        finally:
            self.streams_left += 1

    async def _pages(self) -> AsyncIterator[Sequence[bytes]]:
        for page in self.pages:
            if isinstance(page, Exception):
                raise page
            yield page
        while self.endless:
            self.pages_given += 1
            yield self.endless

    async def check(self) -> None:
        self._fail()

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass
class FakeSpool:
    """A spool that remembers what it was given, or cannot."""

    error: Exception | None = None
    accepted: list[tuple[Entry, str | None, Sequence[str]]] = field(
        default_factory=list[tuple[Entry, str | None, Sequence[str]]]
    )
    bodies: list[tuple[bytes, str, str]] = field(default_factory=list[tuple[bytes, str, str]])
    held: Sequence[str] = ()

    async def accept(self, entries: Sequence[Entry], provenance: Provenance, destinations: Sequence[str]) -> None:
        self._fail()
        self.accepted += [(entry, provenance.agent, destinations) for entry in entries]

    @property
    def occupied(self) -> AbstractSet[str]:
        return {"local"} if self.held else set[str]()

    async def waiting(self, record_ids: Collection[str], senders: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        assert senders == ("local",)
        self._fail()
        return {each: [Insert(decode_record(RECORD))] for each in record_ids if each in self.held}

    async def keep_refused_body(
        self, body: bytes, reason: str, provenance: Provenance, route: str, _roles: object
    ) -> None:
        assert provenance.received_at == NOW
        self._fail()
        self.bodies.append((body, reason, route))

    async def check(self) -> None:
        self._fail()

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass(frozen=True)
class Running:
    """A server in this process."""

    port: int
    registry: CollectorRegistry

    async def ask(self, request: bytes, *, half_close: bool = False) -> bytes:
        """Everything that is answered until the server ends the connection, however it does so."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = b""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                writer.write(request)
                if half_close:
                    writer.write_eof()
                while piece := await reader.read(65536):
                    answer += piece
        except ConnectionError:
            pass  # an aborted connection is what some tests are about
        finally:
            writer.transport.abort()
        return answer

    def count(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, f"{name} {labels} is not there"
        return value


@asynccontextmanager
async def serving(
    store: FakeStore,
    spool: FakeSpool | None = None,
    *,
    max_body: int = 1 << 20,
    duplicates: Duplicates = Duplicates.SAME_RUN,
    grace: timedelta = timedelta(seconds=5),
    destinations: Sequence[str] = ("local",),
) -> AsyncGenerator[Running, None]:
    registry = CollectorRegistry()
    api = ApiSection.model_validate({"listen": ["127.0.0.1:0"], "max_body": max_body, "duplicates": duplicates})
    keeping: Any = spool or FakeSpool()  # Any: it has the methods of a spool that ingest calls
    async with serve(
        api,
        Ingest(cast("RecordStore", store), keeping, destinations),
        registry=registry,
        now=lambda: NOW,
        grace=grace,
    ) as (url,):
        yield Running(int(url.rpartition(":")[2]), registry)


def http(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    named = {"host": "h", "connection": "close", "content-type": "application/json", "user-agent": "test/1"}
    if body:
        named["content-length"] = str(len(body))
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 what is waited for has no event
            await asyncio.sleep(STEP_SECONDS)


@pytest.mark.parametrize(("path", "body"), [("/record", RECORD), ("/records", b"[" + RECORD + b"]")])
async def test_posts_go_to_the_spool_while_the_store_is_away(path: str, body: bytes) -> None:
    spool = FakeSpool()
    async with serving(FakeStore(error=AWAY), spool) as server:
        answer = await server.ask(http("POST", path, body))
        assert server.count("auditord_http_spooled_records_total") == 1
    assert status(answer) == 200
    [(entry, agent, destinations)] = spool.accepted
    assert isinstance(entry, Insert)
    assert (entry.record.record_id, agent, destinations) == ("r1", "test/1", ("local",))


async def test_a_post_that_nobody_can_keep_gets_no_answer() -> None:
    async with serving(FakeStore(error=AWAY), FakeSpool(error=AWAY)) as server:
        assert await server.ask(http("POST", "/record", RECORD)) == b""
        assert server.count("auditord_http_aborted_connections_total", reason="not_durable") == 1
        labels = {"route": "/record", "method": "POST", "status": "aborted"}
        assert server.count("auditord_http_requests_total", **labels) == 1


async def test_a_fault_of_our_own_never_looks_like_success(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeStore(error=RuntimeError("a bug"))) as server:
        assert await server.ask(http("POST", "/record", RECORD)) == b""
        assert status(await server.ask(http("PUT", "/record", UPDATE))) == 500
        for method, outcome in (("POST", "aborted"), ("PUT", "500")):
            labels = {"route": "/record", "method": method, "status": outcome}
            assert server.count("auditord_http_requests_total", **labels) == 1
    assert "a bug" in caplog.text


async def test_an_update_waits_behind_an_insert_that_is_still_in_the_spool() -> None:
    spool = FakeSpool(held=["r1"])
    async with serving(FakeStore(stoppable=()), spool) as server:
        assert status(await server.ask(http("PUT", "/record", UPDATE))) == 200
    [(entry, agent, destinations)] = spool.accepted
    assert entry == Close("r1", datetime(2026, 11, 20, 11, tzinfo=UTC))
    assert (agent, destinations) == ("test/1", ("local",))


async def test_an_update_of_nothing_is_not_found() -> None:
    spool = FakeSpool()
    async with serving(FakeStore(stoppable=()), spool) as server:
        assert status(await server.ask(http("PUT", "/record", UPDATE))) == 404
    assert spool.accepted == []


@pytest.mark.parametrize(
    "request_", [http("PUT", "/record", UPDATE), http("GET", "/record/r1"), http("GET", "/records")]
)
async def test_reads_and_updates_say_500_without_internals(request_: bytes) -> None:
    async with serving(FakeStore(error=AWAY), FakeSpool(error=AWAY)) as server:
        answer = await server.ask(request_)
    assert status(answer) == 500
    assert b"not available" in answer
    assert b"no space" not in answer


async def test_a_fault_of_the_first_page_is_a_real_500() -> None:
    async with serving(FakeStore(pages=[AWAY])) as server:
        assert status(await server.ask(http("GET", "/records"))) == 500


async def test_a_fault_behind_a_short_first_page_is_a_real_500_as_well() -> None:
    async with serving(FakeStore(pages=[[b'{"a":1}'], AWAY])) as server:
        assert status(await server.ask(http("GET", "/records"))) == 500


LONG = b'{"a":"%b"}' % (b"x" * 0x10000)


@pytest.mark.parametrize("fault", [AWAY, RuntimeError("a bug")])
async def test_a_fault_in_the_middle_cuts_the_answer(fault: Exception) -> None:
    store = FakeStore(pages=[[LONG, b'{"a":2}'], fault])
    async with serving(store) as server:
        answer = await server.ask(http("GET", "/records"))
        if fault is AWAY:
            assert server.count("auditord_http_aborted_connections_total", reason="store_failed") == 1
    assert not answer.endswith(b"0\r\n\r\n")
    assert store.streams_left == 1


async def test_records_are_streamed_one_behind_the_other() -> None:
    store = FakeStore(pages=[[LONG, b'{"a":2}'], [], [b'{"a":3}']])
    async with serving(store) as server:
        answer = await server.ask(http("GET", "/records"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"transfer-encoding: chunked" in head.lower()
    assert body == b'1000f\r\n%b{"a":2}\r\n7\r\n{"a":3}\r\n0\r\n\r\n' % LONG


@pytest.mark.parametrize("pages", [[[b'{"a":1}', b'{"a":2}']], [[b'{"a":1}'], [], [b'{"a":2}']]])
async def test_few_records_are_a_stream_of_one_chunk(pages: Sequence[Sequence[bytes]]) -> None:
    async with serving(FakeStore(pages=pages)) as server:
        answer = await server.ask(http("GET", "/records"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"transfer-encoding: chunked" in head.lower()
    assert body == b'e\r\n{"a":1}{"a":2}\r\n0\r\n\r\n'


async def test_no_records_are_an_empty_answer() -> None:
    async with serving(FakeStore()) as server:
        answer = await server.ask(http("GET", "/records"))
    assert status(answer) == 200
    assert body_of(answer) == b"0\r\n\r\n"


async def test_a_client_that_leaves_ends_the_query() -> None:
    store = FakeStore(endless=[b"x" * 1000] * 10)
    async with serving(store) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(http("GET", "/records"))
        await reader.readexactly(100_000)
        writer.transport.abort()
        await eventually(lambda: store.streams_left == 1)
        assert status(await server.ask(http("GET", "/health_check"))) == 200


async def test_a_slow_reader_slows_the_query() -> None:
    page = [b"x" * 1000] * 64
    store = FakeStore(endless=page)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.settimeout(0)
    async with serving(store) as server:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        writer.write(http("GET", "/records"))
        await reader.readexactly(1000)
        given = await settled(lambda: store.pages_given)
        assert given * 64_000 < 16 * 1024 * 1024  # buffers of the kernel, mostly
        await reader.readexactly(given * 64_000)
        await eventually(lambda: store.pages_given > given)
        writer.transport.abort()
        await eventually(lambda: store.streams_left == 1)


async def settled(number: Callable[[], int]) -> int:
    """The number, once it has stayed the same for a while."""
    seen = [-1]
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(seen) < 20 or len(set(seen[-20:])) > 1:
            seen.append(number())
            await asyncio.sleep(STEP_SECONDS)
    return seen[-1]


ANNOUNCED = http("POST", "/record", content_length="2000000")
CHUNKED = http("POST", "/record", transfer_encoding="chunked") + b"100000\r\n" + b"x" * 0x100000 + b"\r\n100000\r\nx"
BOMB = http("POST", "/record", gzip.compress(b" " * 2_000_000), content_encoding="gzip")


@pytest.mark.parametrize("request_", [ANNOUNCED, CHUNKED, BOMB], ids=["announced", "chunked", "packed"])
async def test_a_body_above_the_limit_is_cut_off(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store, spool = FakeStore(), FakeSpool()
    async with serving(store, spool) as server:
        assert await server.ask(request_) == b""
        assert server.count("auditord_http_aborted_connections_total", reason="body_too_large") == 1
    assert "api.max_body" in caplog.text
    assert (store.records, spool.bodies) == ([], [])


@pytest.mark.parametrize("path", ["/record", "/records"])
async def test_a_record_of_two_mebibytes_is_stored_and_a_larger_one_kept_in_quarantine(path: str) -> None:
    store, spool = FakeStore(), FakeSpool()
    async with serving(store, spool, max_body=8 << 20) as server:
        for values in (10_000, 14_000):
            body = RECORD.replace(b"{", b'{"meta":{"k":[%b]},' % b",".join([b'"%b"' % (b"v" * 180)] * values))
            answer = await server.ask(http("POST", path, b"[%b]" % body if path == "/records" else body))
            assert status(answer) == (200 if values == 10_000 else 400)
    assert (len(store.records), [len(each) > 2_500_000 for each, *_ in spool.bodies]) == (1, [True])


async def test_an_update_above_the_limit_is_told_so() -> None:
    async with serving(FakeStore()) as server:
        answer = await server.ask(http("PUT", "/record", UPDATE + b" " * 2_000_000))
    assert status(answer) == 413
    assert b"api.max_body" in answer


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (RECORD, {"content_type": "text/plain"}, "Content type error"),
        (RECORD, {"content_type": ""}, "Content type error"),
        (RECORD, {"content_type": "json"}, "Content type error"),
        (RECORD, {"content_type": "application/json5"}, "Content type error"),
        (RECORD[:-1], {}, "Json deserialize error: Input data was truncated"),
        (RECORD + RECORD, {}, "Json deserialize error: JSON is malformed: trailing characters"),
        (b"\xff\x00\xfe", {}, "Json deserialize error: "),
        (b"null", {}, "Json deserialize error: "),
        (RECORD, {"content_encoding": "br"}, "Content-Encoding 'br' is not supported"),
        (RECORD, {"content_encoding": "gzip"}, "Content-Encoding: the body cannot be decompressed"),
        (
            gzip.compress(RECORD, mtime=0)[:-9],
            {"content_encoding": "gzip"},
            "Content-Encoding: the compressed body is incomplete",
        ),
    ],
)
async def test_a_refused_body_is_kept(body: bytes, headers: dict[str, str], reason: str) -> None:
    spool = FakeSpool()
    async with serving(FakeStore(), spool) as server:
        answer = await server.ask(http("POST", "/record", body, **headers))
        assert server.count("auditord_http_refused_bodies_total") == 1
    assert status(answer) == 400
    assert b"content-type: text/plain; charset=utf-8" in answer.lower()
    assert body_of(answer).decode().startswith(reason)
    assert spool.bodies == [(body, body_of(answer).decode(), "POST /record")]


async def test_a_record_that_the_database_refuses_for_good_is_kept_as_well() -> None:
    spool = FakeSpool()
    async with serving(FakeStore(error=InvalidRecord("no")), spool) as server:
        assert status(await server.ask(http("POST", "//record/?x", RECORD))) == 400
    assert spool.bodies == [(RECORD, "Json deserialize error: no", "POST /record")]


async def test_a_refused_body_that_cannot_be_kept_gets_no_answer() -> None:
    async with serving(FakeStore(), FakeSpool(error=AWAY)) as server:
        assert await server.ask(http("POST", "/record", b"{")) == b""
        assert server.count("auditord_http_aborted_connections_total", reason="not_durable") == 1


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Text/JSON", "application/ld+json"]
)
async def test_whatever_is_declared_to_be_json_is_read(content_type: str) -> None:
    async with serving(FakeStore()) as server:
        assert status(await server.ask(http("POST", "/record", RECORD, content_type=content_type))) == 200


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate), ("identity", bytes)],
)
async def test_packed_bodies_are_unpacked(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    store = FakeStore()
    async with serving(store) as server:
        answer = await server.ask(http("POST", "/record", pack(RECORD), content_encoding=encoding))
    assert status(answer) == 200
    assert [record.record_id for record in store.records] == ["r1"]


async def test_a_truncated_request_stores_nothing_and_gets_no_answer() -> None:
    store, spool = FakeStore(), FakeSpool()
    async with serving(store, spool) as server:
        truncated = http("POST", "/record", RECORD)[:-10]
        assert await server.ask(truncated, half_close=True) == b""
        assert status(await server.ask(http("GET", "/health_check"))) == 200
    assert (store.records, spool.bodies) == ([], [])


BROKEN_CHUNK = http("POST", "/record", transfer_encoding="chunked") + b"zz\r\n"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        BROKEN_CHUNK,
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 9,
    ],
)
async def test_garbage_ends_its_own_connection_only(garbage: bytes) -> None:
    async with serving(FakeStore()) as server:
        answer = await server.ask(garbage, half_close=True)
        assert answer == b"" or status(answer) == 400
        assert status(await server.ask(http("GET", "/health_check"))) == 200


async def test_garbage_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(FakeStore()) as server:
        assert status(await server.ask(b"GET /health_check HTTP/1.1\r\n\r\n")) == 400
    (line,) = [each for each in caplog.records if each.name == "auditord.web.connections"]
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert line.getMessage().endswith("it is not HTTP: Missing 'Host' header in request")


async def test_http_1_0_ends_the_connection() -> None:
    async with serving(FakeStore()) as server:
        assert status(await server.ask(b"GET /health_check HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")) == 200
        assert body_of(await server.ask(b"GET /records HTTP/1.0\r\n\r\n")) == b""


async def test_requests_in_one_packet_are_answered_in_order() -> None:
    store = FakeStore()
    twice = http("POST", "/record", RECORD, connection="keep-alive") + http("POST", "/record", RECORD)
    async with serving(store) as server:
        answer = await server.ask(twice)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert len(store.records) == 2


async def test_a_client_that_waits_to_send_its_body_is_asked_for_it() -> None:
    store = FakeStore()
    async with serving(store) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(http("POST", "/record", content_length=str(len(RECORD)), expect="100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(RECORD)
        assert status(await reader.readuntil(b"\r\n\r\n")) == 200
        writer.transport.abort()
    assert len(store.records) == 1


@pytest.mark.parametrize(
    ("duplicates", "verdict", "body"),
    [
        (Duplicates.SAME_RUN, Verdict.SAME, b""),
        (Duplicates.SAME_RUN, Verdict.EXISTS, b"RECORD_EXISTS"),
        (Duplicates.REFUSE, Verdict.EXISTS, b"RECORD_EXISTS"),
        (Duplicates.IGNORE, Verdict.ADDED, b""),
        (Duplicates.IGNORE, Verdict.CLOSED, b""),
    ],
)
async def test_the_answer_follows_the_verdict(duplicates: Duplicates, verdict: Verdict, body: bytes) -> None:
    async with serving(FakeStore(verdicts=[verdict]), duplicates=duplicates) as server:
        answer = await server.ask(http("POST", "/record", RECORD))
    assert (status(answer), body_of(answer)) == (500 if body else 200, body)
    assert b"content-type" not in answer.lower()


async def test_ignored_duplicates_are_mentioned() -> None:
    store = FakeStore(verdicts=[Verdict.ADDED, Verdict.SAME])
    async with serving(store, duplicates=Duplicates.IGNORE) as server:
        answer = await server.ask(http("POST", "/records", b"[" + RECORD + b"," + RECORD + b"]"))
    assert status(answer) == 200
    assert list(json.loads(body_of(answer))) == ["warning"]
    assert len(store.records) == 2


async def test_an_empty_batch_needs_no_store() -> None:
    async with serving(FakeStore(error=AWAY), FakeSpool(error=AWAY)) as server:
        assert status(await server.ask(http("POST", "/records", b"[]"))) == 200


async def test_records_too_large_for_the_asynchronous_client_are_stored_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = ",".join(f'"{"v" * 90}{number}"' for number in range(110))
    large = RECORD[:-1] + b',"meta":{"k":[' + values.encode() + b"]}}"
    store = FakeStore()
    async with serving(store) as server:
        assert status(await server.ask(http("POST", "/records", b"[" + RECORD + b"," + large + b"]"))) == 200
        assert server.count("auditord_http_large_records_total") == 1
    assert len(store.records) == 2
    assert "'r1'" in caplog.text


@pytest.mark.parametrize(
    ("store_error", "spool_error", "expected", "text"),
    [
        (None, None, 200, b""),
        (AWAY, None, 200, b"the record store is unavailable: posts go to the send-queue; see auditord status"),
        (REFUSED, None, 200, b"the record store refuses the daemon: posts go to the send-queue; see auditord status"),
        (DAMAGED, None, 500, b"the record store is damaged"),  # though a post would be durable: somebody must come
        (None, AWAY, 200, b""),
        (AWAY, AWAY, 500, b"the record store is unavailable"),
    ],
)
async def test_health_is_whether_a_post_would_be_durable(
    store_error: Exception | None, spool_error: Exception | None, expected: int, text: bytes
) -> None:
    async with serving(FakeStore(error=store_error), FakeSpool(error=spool_error)) as server:
        answer = await server.ask(http("GET", "/health_check"))
    assert (status(answer), body_of(answer)) == (expected, text)
    assert b"Content-Length: %d\r\n" % len(text) in answer


async def test_without_a_sender_the_spool_makes_nothing_durable() -> None:
    async with serving(FakeStore(error=AWAY), destinations=()) as server:
        assert status(await server.ask(http("GET", "/health_check"))) == 500


async def test_a_request_that_runs_is_finished_before_the_server_stops() -> None:
    running, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        running.set()
        await go_on.wait()

    store = FakeStore(before_add=wait)
    async with serving(store) as server:
        asked = asyncio.create_task(server.ask(http("POST", "/record", RECORD, connection="keep-alive")))
        await running.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    answer = await asked
    assert status(answer) == 200
    assert b"Connection: close\r\n" in answer
    assert len(store.records) == 1


async def test_a_request_that_hangs_is_cut_off_after_the_grace_period() -> None:
    running = asyncio.Event()

    async def hang() -> None:
        running.set()
        await asyncio.Event().wait()

    async with serving(FakeStore(before_add=hang), grace=timedelta(seconds=0.05)) as server:
        asked = asyncio.create_task(server.ask(http("POST", "/record", RECORD)))
        await running.wait()
    assert await asked == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_unknown_paths_are_one_label() -> None:
    async with serving(FakeStore()) as server:
        for number in range(3):
            assert status(await server.ask(http("GET", f"/nothing/{number}"))) == 404
        assert status(await server.ask(http("PROPFIND", "/coffee"))) == 404
        for name, labels in (
            ("auditord_http_requests_total", {"route": "default", "method": "GET", "status": "404"}),
            (
                "http_server_duration_seconds_count",
                {"http_route": "default", "http_request_method": "GET", "http_response_status_code": "404"},
            ),
        ):
            assert server.count(name, **labels) == 3
        labels = {"route": "default", "method": "other", "status": "404"}
        assert server.count("auditord_http_requests_total", **labels) == 1
        assert server.count("auditord_http_requests_in_flight", route="/record", method="POST") == 0
