"""The control socket's client, against servers that are gone, cut answers and say nothing."""

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import anyio
import pytest

from auditord.cli.daemon_client import ControlSocket
from auditord_hookspecs.http import HttpStatusError, NoHttpAnswer

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answering(path: Path, answer: Callable[[socket.socket], None]) -> Generator[ControlSocket, None, None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(30)

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.settimeout(30)
                connection.recv(65_536)
                answer(connection)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield ControlSocket(str(path), 20)
        finally:
            thread.join()


async def test_pieces_come_as_they_are_sent(tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"3\r\none\r\n")
        assert connection.recv(1) == b""  # until the client has seen it, and left

    pieces: list[bytes] = []
    with answering(tmp_path / "socket", answer) as client:
        async with client.stream("GET", "http://auditord/runs") as stream:
            async for piece in stream:
                pieces.append(piece)
                break
    assert pieces == [b"one"]


async def test_an_answer_that_is_cut_raises(tmp_path: Path) -> None:
    with answering(tmp_path / "socket", lambda connection: connection.sendall(HEAD + b"9\r\none")) as client:
        async with client.stream("GET", "http://auditord/runs") as stream:
            with pytest.raises(NoHttpAnswer, match="GET http://auditord/runs: IncompleteRead") as caught:
                assert [piece async for piece in stream] == []
    assert caught.value.sent


async def test_a_refusal_raises_before_the_stream_begins(tmp_path: Path) -> None:
    text = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    with (
        answering(tmp_path / "socket", lambda connection: connection.sendall(text)) as client,
        pytest.raises(HttpStatusError) as caught,
    ):
        async with client.stream("GET", "http://auditord/runs"):
            pass
    assert (caught.value.answer.status, caught.value.answer.body) == (404, b"no")


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(NoHttpAnswer, match=r"cannot connect: .*: No such file") as caught:
        await ControlSocket(str(tmp_path / "socket"), 20).request("GET", "http://auditord")
    assert not caught.value.sent


async def test_who_gives_up_does_not_wait_for_the_answer(tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        assert connection.recv(1) == b""

    with answering(tmp_path / "socket", answer) as client:
        with anyio.move_on_after(0.05) as scope:
            await client.request("GET", "http://auditord")
        assert scope.cancelled_caught
