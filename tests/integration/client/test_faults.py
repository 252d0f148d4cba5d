"""Connections that are reset, cut or hang: a client says so, and repeats only what is safe."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, repeat

import pytest

from auditord.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    CutAnswer,
    InvalidAnswer,
    RecordExists,
    ServerFailed,
)
from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_hookspecs.wire import encode_record
from tests.fake_auditor import FakeAuditor, Fault
from tests.integration.client.conftest import AnyClient

Connect = Callable[..., AnyClient]
HOUR = timedelta(hours=1)


def first_fail(auditor: FakeAuditor, *faults: Fault | None) -> None:
    """These things happen to the next requests; then all is well."""
    to_come = chain(faults, repeat(None))
    auditor.fault = lambda _method, _target: next(to_come)


def requests(auditor: FakeAuditor) -> list[str]:
    return [f"{method} {target}" for method, target in auditor.requests]


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER])
def test_an_insert_whose_connection_breaks_is_never_repeated_unasked(
    connect: Connect, auditor: FakeAuditor, fault: Fault
) -> None:
    first_fail(auditor, fault)
    client = connect(auditor.url)
    with pytest.raises(ConnectionFailed) as caught:
        client.add(make_record())
    assert caught.value.sent
    assert requests(auditor) == ["POST /record"]
    if fault is Fault.RESET_AFTER:
        with pytest.raises(RecordExists):
            client.add(make_record())
    else:
        client.add(make_record())
    assert set(auditor.records) == {"test-1"}


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.UNAVAILABLE])
def test_an_update_is_repeated(connect: Connect, auditor: FakeAuditor, fault: Fault) -> None:
    client = connect(auditor.url)
    client.add(make_record(runtime=None))
    first_fail(auditor, fault, fault)
    client.update("test-1", EPOCH + HOUR)
    assert auditor.records["test-1"] == make_record()
    assert requests(auditor).count("PUT /record") == 3


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.UNAVAILABLE])
def test_a_question_is_repeated(connect: Connect, auditor: FakeAuditor, fault: Fault) -> None:
    client = connect(auditor.url)
    client.add(make_record())
    for ask in (client.records, lambda: [client.get("test-1")]):
        first_fail(auditor, fault)
        assert ask() == [make_record()]


def test_it_gives_up(connect: Connect, auditor: FakeAuditor) -> None:
    auditor.fault = lambda _method, _target: Fault.UNAVAILABLE
    with pytest.raises(ServerFailed, match="503 <html>try later"):
        connect(auditor.url).records()
    assert len(auditor.requests) == 3


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.SHORT])
@pytest.mark.parametrize("size", [1, 2, 999])
def test_a_cut_stream_raises(connect: Connect, auditor: FakeAuditor, fault: Fault, size: int) -> None:
    auditor.records.update((f"r{n}", make_record(f"r{n}")) for n in range(size))
    first_fail(auditor, fault)
    with pytest.raises(CutAnswer, match=auditor.url):
        connect(auditor.url).records()
    assert len(auditor.requests) == 1  # somebody may have used the first half already


def test_a_server_that_hangs(connect: Connect, auditor: FakeAuditor) -> None:
    auditor.fault = lambda _method, _target: Fault.HANG
    client = connect(auditor.url, timeout=0.2, retry_waits=())
    for call in (lambda: client.add(make_record()), client.records, lambda: client.update("a", EPOCH)):
        with pytest.raises(ConnectionFailed) as caught:
            call()
        assert caught.value.sent


@contextmanager
def answering(*answers: bytes) -> Generator[str, None, None]:
    """A program that reads a request and answers with bytes, whatever was asked; each time with the next answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


TWO = encode_record(make_record("a")) + encode_record(make_record("b"))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: 100000\r\n\r\n" + TWO,  # ends early, between two objects
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + f"{len(TWO):x}".encode() + b"\r\n" + TWO + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n" + TWO,
    ],
    ids=["length", "no last chunk", "inside a chunk"],
)
def test_a_close_between_two_records_is_no_end(connect: Connect, answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(CutAnswer):
        connect(url, retry_waits=()).records()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n" + TWO,
        HEAD + b"Content-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["no end is announced", "array", "redirect", "ssh"],
)
def test_what_is_no_answer_of_such_a_server(connect: Connect, answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(InvalidAnswer):
        connect(url, retry_waits=()).records()


def test_a_login_page_is_no_success(connect: Connect) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n<html>log in</ht>"
    with answering(page) as url, pytest.raises(InvalidAnswer, match="log in"):
        connect(url, retry_waits=()).add(make_record())


@pytest.mark.anyio
async def test_a_plain_client_works_inside_of_a_running_loop(auditor: FakeAuditor) -> None:
    Client(auditor.url).add(make_record())  # as a cell of a notebook does; it blocks the loop meanwhile
    async with AsyncClient(auditor.url) as client:
        assert await client.get("test-1") == make_record()
    with pytest.raises(RuntimeError, match="async with"):
        await client.get("test-1")
