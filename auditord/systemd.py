"""Notify systemd of the state of the service (sd_notify). Nothing is sent without ``NOTIFY_SOCKET``."""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import Final

import anyio

from auditord_hookspecs.terminal import escape

_log: Final = logging.getLogger(__name__)

_EXTEND_EVERY: Final = timedelta(seconds=20)
"""Well within systemd's default time limit of a start (90 s)."""

_EXTEND_BY: Final = timedelta(seconds=60)


class Notifier:
    """Sends states to the socket in ``NOTIFY_SOCKET``."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = _watchdog(environ, pid)

    def ready(self) -> None:
        """Report that start-up is complete."""
        self._send("READY=1")

    @contextmanager
    def starting(self, every: timedelta = _EXTEND_EVERY) -> Generator[None, None, None]:
        """Ask for more start-up time until the context exits, since migrating millions of records takes minutes.

        This needs a thread, because a migration blocks the event loop.
        """
        over = Event()
        extending = Thread(target=self._extend, args=(over, every), name="start", daemon=True)
        if self._address:
            extending.start()
        try:
            yield
        finally:
            over.set()
            if self._address:
                extending.join()

    def stopping(self, grace: timedelta) -> None:
        """Report that the service is stopping, which takes ``grace`` and a little longer."""
        self._ask_for(grace + _EXTEND_BY)
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self._send("STATUS=" + escape(text.replace("\n", " ")))

    async def feed_watchdog(self, alive: Callable[[], Awaitable[bool]]) -> None:
        """Feed the watchdog at half its time limit, while ``alive`` is true. Return at once if there is no watchdog."""
        while self._watchdog is not None:
            if await alive():
                self._send("WATCHDOG=1")
            else:
                _log.error("systemd's watchdog was not notified: the spool does not answer")
            await anyio.sleep(self._watchdog.total_seconds() / 2)

    def _extend(self, over: Event, every: timedelta) -> None:
        while not over.wait(every.total_seconds()):
            self._ask_for(_EXTEND_BY)

    def _ask_for(self, time: timedelta) -> None:
        self._send(f"EXTEND_TIMEOUT_USEC={time // timedelta(microseconds=1)}")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagrams:
                datagrams.connect(self._address)
                datagrams.sendall(state.encode())
        except OSError as error:
            _log.warning("cannot send %s to systemd: %s", state.partition("=")[0], error)


def _watchdog(environ: Mapping[str, str], pid: int) -> timedelta | None:
    micros = environ.get("WATCHDOG_USEC", "")
    if not micros.isdigit() or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return timedelta(microseconds=int(micros)) or None


def notifier() -> Notifier:
    """Return the notifier of this process."""
    return Notifier(os.environ, os.getpid())
