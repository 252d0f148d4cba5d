"""Access to a running daemon, over its control socket or at a URL, or to its state folder if no daemon runs.

:mod:`auditord.cli.daemon_client` is imported only if a daemon can answer.
"""

import errno
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from auditord.cli.installation import load_installation, utc_now
from auditord.config.merging import CONTROL_FILE
from auditord.errors import DaemonError

if TYPE_CHECKING:
    from auditord.actions import Actions
    from auditord.cli.daemon_client import DaemonClient


_SILENCE: Final = timedelta(seconds=60)
"""A daemon without any output for this long during a run is considered stuck."""

_LOCAL: Final = "http://auditord"
_UNIX: Final = "unix:"

url_option: Final = click.option("--url", metavar="URL", help="Ask the daemon at http://host:port or unix:/path.")


@asynccontextmanager
async def connected(path: Path) -> "AsyncGenerator[DaemonClient | None, None]":
    """Yield a client of the daemon that answers on this socket; None if no daemon answers.

    Raises:
        PermissionError: this user may not connect to the socket.
    """
    if not _is_there(path):
        yield None
        return
    from auditord.cli.daemon_client import NO_ANSWER, ControlSocket, DaemonClient  # noqa: PLC0415 only if a daemon can run
    from auditord_hookspecs.http import NoHttpAnswer  # noqa: PLC0415 the same

    client = ControlSocket(str(path), _SILENCE.total_seconds())
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
    """Yield a client of the daemon at ``http://host:port``, ``https://host`` or ``unix:/path/to/control.sock``.

    Raises:
        UsageError: the URL has another form.
    """
    if not url.startswith((_UNIX, "http://", "https://")):
        raise click.UsageError(f"--url: '{url}' is neither http://host:port nor https://host nor unix:/path")
    from auditord.cli.daemon_client import ControlSocket, DaemonClient  # noqa: PLC0415 only with a URL

    if url.startswith(_UNIX):
        yield DaemonClient(ControlSocket(url.removeprefix(_UNIX), _SILENCE.total_seconds()), _LOCAL)
        return
    from auditord.client.http import open_client  # noqa: PLC0415 aiohttp, only for a URL
    from auditord_hookspecs.http import HttpOptions  # noqa: PLC0415 the same

    options = HttpOptions(silence=_SILENCE, timeout=timedelta(days=1), max_answer=1 << 30, attempts=1)
    async with open_client(options) as client:
        yield DaemonClient(client, url.rstrip("/"))


def _is_there(path: Path) -> bool:
    is_socket = path.is_socket()
    if is_socket and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return is_socket


def log_to_terminal() -> None:
    """Print warnings to standard error, except those that the observer of a run prints."""
    from auditord.logs import MessageFormatter  # noqa: PLC0415 only for commands that act

    log = logging.getLogger("auditord")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(MessageFormatter())
        handler.addFilter(lambda record: not getattr(record, "observed", False))
        log.addHandler(handler)


@asynccontextmanager
async def actions(url: str | None) -> "AsyncGenerator[Actions, None]":
    """Yield the actions of the daemon at a URL or, without one, of the owner of this host's state folder.

    The owner is the running daemon or, if none runs, this process.

    Raises:
        StateInUse: a daemon owns the folder and does not answer.
    """
    if url is not None:
        async with daemon_at(url) as daemon:
            yield daemon
        return
    installation = load_installation()
    async with connected(installation.configuration.state_dir / CONTROL_FILE) as owner:
        if owner is not None:
            yield owner
            return
    from auditord.supervisor import acting  # noqa: PLC0415 slow to import, only if no daemon runs

    async with acting(installation.configuration, installation.hooks, utc_now) as ourselves:
        yield ourselves
