"""Messages to systemd, through a real datagram socket."""

import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from auditord.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"{tmp_path}/notify" if request.param == "path" else f"@auditord-test-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        receiver.settimeout(10)
        yield receiver, name


def test_states_arrive(systemd: tuple[socket.socket, str]) -> None:
    receiver, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name}, 1)
    notifier.ready()
    notifier.status("two\nlines")
    notifier.stopping(timedelta(minutes=10))
    assert [receiver.recv(1_000) for _ in range(4)] == [
        b"READY=1",
        b"STATUS=two lines",
        b"EXTEND_TIMEOUT_USEC=660000000",
        b"STOPPING=1",
    ]


def test_a_long_start_asks_for_more_time_while_the_event_loop_waits(systemd: tuple[socket.socket, str]) -> None:
    receiver, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name}, 1)
    with notifier.starting(every=timedelta(milliseconds=1)):
        asked = [receiver.recv(1_000) for _ in range(3)]  # this very thread waits, as it does for a migration
    assert asked == [b"EXTEND_TIMEOUT_USEC=60000000"] * 3
    notifier.ready()
    while (state := receiver.recv(1_000)) == asked[0]:
        pass
    assert state == b"READY=1"
    receiver.settimeout(0)
    with pytest.raises(BlockingIOError):
        receiver.recv(1_000)


@pytest.mark.anyio
async def test_the_watchdog_is_fed_only_while_alive(systemd: tuple[socket.socket, str]) -> None:
    receiver, name = systemd
    answers = iter([True, False, True])
    over = anyio.Event()

    async def alive() -> bool:
        answer = next(answers, None)
        if answer is None:
            over.set()
            await anyio.sleep_forever()
        return bool(answer)

    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "7"}, 7)
    async with anyio.create_task_group() as group:
        group.start_soon(notifier.feed_watchdog, alive)
        with anyio.fail_after(10):
            await over.wait()
        group.cancel_scope.cancel()
    assert [receiver.recv(1_000), receiver.recv(1_000)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
    receiver.settimeout(0)
    with pytest.raises(BlockingIOError):
        receiver.recv(1_000)


@pytest.mark.anyio
@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "8"}])
async def test_nobody_asked_for_a_watchdog(environ: dict[str, str]) -> None:
    async def alive() -> bool:
        raise AssertionError

    with anyio.fail_after(10):
        await Notifier(environ, 7).feed_watchdog(alive)


def test_without_systemd_there_is_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}, 1).ready()
    with Notifier({}, 1).starting(every=timedelta(microseconds=1)):
        pass
    assert caplog.records == []
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, 1).ready()
    assert "cannot send READY to systemd" in caplog.text
