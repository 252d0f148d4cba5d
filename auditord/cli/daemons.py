"""The way to a running daemon: over its control socket, or at a URL.

The client itself is imported once there is a daemon: most of what it knows is about answers.
"""

import errno
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from auditord.errors import DaemonError

if TYPE_CHECKING:
    from auditord.cli.control_socket import ControlSocket
    from auditord.cli.daemon_client import DaemonClient

_SILENCE: Final = timedelta(seconds=60)
"""A daemon that says nothing for so long during a run is stuck."""

_LOCAL: Final = "http://auditord"
_UNIX: Final = "unix:"

url_option: Final = click.option(
    "--url", metavar="URL", help="Ask the daemon at http://host:port or unix:/path, wherever it runs."
)


@asynccontextmanager
async def connected(path: Path) -> "AsyncGenerator[DaemonClient | None, None]":
    """A client of the daemon that answers on this socket; None if none does.

    Raises:
        PermissionError: a daemon may be there, for others.
    """
    if not _is_there(path):
        yield None
        return
    from auditord.cli.daemon_client import NO_ANSWER, DaemonClient  # noqa: PLC0415 where a daemon may answer
    from auditord_hookspecs.http import NoHttpAnswer  # noqa: PLC0415 the same

    client = _control_socket(str(path))
    try:
        await client.request("GET", _LOCAL)
    except NoHttpAnswer as error:
        if error.sent:
            raise DaemonError(f"{NO_ANSWER}: {error}") from error
        yield None
        return
    yield DaemonClient(client, _LOCAL)


@asynccontextmanager
async def daemon_at(url: str) -> "AsyncGenerator[DaemonClient, None]":
    """A client of the daemon at ``http://host:port``, ``https://host`` or ``unix:/path/to/control.sock``.

    Raises:
        UsageError: it is no such URL.
    """
    if not url.startswith((_UNIX, "http://", "https://")):
        raise click.UsageError(f"--url: '{url}' is neither http://host:port nor https://host nor unix:/path")
    from auditord.cli.daemon_client import DaemonClient  # noqa: PLC0415 where a daemon is asked

    if url.startswith(_UNIX):
        yield DaemonClient(_control_socket(url.removeprefix(_UNIX)), _LOCAL)
        return
    from auditord.client.http import open_client  # noqa: PLC0415 aiohttp, where a daemon elsewhere is asked
    from auditord_hookspecs.http import HttpOptions  # noqa: PLC0415 the same

    options = HttpOptions(silence=_SILENCE, timeout=timedelta(days=1), max_answer=1 << 30, attempts=1)
    async with open_client(options) as client:
        yield DaemonClient(client, url.rstrip("/"))


def _is_there(path: Path) -> bool:
    there = path.is_socket()
    if there and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return there


def _control_socket(path: str) -> "ControlSocket":
    from auditord.cli.control_socket import ControlSocket  # noqa: PLC0415 http.client

    return ControlSocket(path, _SILENCE.total_seconds())
