"""Telling systemd how the service fares (sd_notify); silent where systemd did not ask."""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final

import anyio

_log: Final = logging.getLogger(__name__)


class Notifier:
    """Sends states to the socket that systemd named in ``NOTIFY_SOCKET``.

    Args:
        environ: the process's environment.
        pid: the process's id; a watchdog that is meant for another process is not fed.
    """

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # An @ stands for the NUL that begins an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = _watchdog(environ, pid)

    def ready(self) -> None:
        """Start-up is complete."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The service is on its way down."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send("STATUS=" + text.replace("\n", " "))

    async def feed_watchdog(self, alive: Callable[[], Awaitable[bool]]) -> None:
        """Feed the watchdog, at half its patience, as long as ``alive`` says so; returns at once if there is none."""
        while self._watchdog is not None:
            if await alive():
                self._send("WATCHDOG=1")
            else:
                _log.error("the watchdog is not fed: the spool does not answer")
            await anyio.sleep(self._watchdog.total_seconds() / 2)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagrams:
                datagrams.connect(self._address)
                datagrams.sendall(state.encode())
        except OSError as error:
            _log.warning("systemd does not hear %s: %s", state.partition("=")[0], error)


def _watchdog(environ: Mapping[str, str], pid: int) -> timedelta | None:
    micros = environ.get("WATCHDOG_USEC", "")
    if not micros.isdigit() or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return timedelta(microseconds=int(micros)) or None


def notifier() -> Notifier:
    """The notifier of this process."""
    return Notifier(os.environ, os.getpid())
