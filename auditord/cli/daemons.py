"""Access to a running daemon, over its control socket or at a URL, or to its state folder if no daemon runs.

:mod:`auditord.cli.daemon_client` is imported only if a daemon can answer.
"""

import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from auditord.cli.frame import config_paths
from auditord.cli.installation import load_installation, utc_now
from auditord.config.merging import CONTROL_FILE, configuration_files
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import DaemonError
from auditord_hookspecs import AuditordError
from auditord_hookspecs.terminal import say

if TYPE_CHECKING:
    from auditord.actions import Actions, RunRequest, Section
    from auditord.cli.daemon_client import DaemonClient
    from auditord.cli.installation import Installation
    from auditord.config.model import Configuration


_SILENCE: Final = timedelta(seconds=60)
"""A daemon without any output for this long during a run is considered stuck."""

_LOCAL: Final = "http://auditord"
_UNIX: Final = "unix:"

_HTTP: Final = ("http://", "https://")
_HEADERS: Final = "auditord.headers"
_CA: Final = "auditord.ca"

F = TypeVar("F", bound=Callable[..., Any])  # Any: what a command takes

token_file_option: Final = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A token for the server at --url.",
)
ca_option: Final = click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the CA of the server at --url; default: the system's CAs.",
)


def url_option(command: F) -> F:
    """Add ``--url``, ``--token-file`` and ``--ca`` to a command, which gets only the URL, for :func:`daemon_at`."""

    @wraps(command)
    def wrapper(
        *arguments: Any,  # Any: click's values
        url: str | None,
        token_file: Path | None,
        ca: Path | None,
        **chosen: Any,  # Any: the same
    ) -> Any:  # Any: the same
        note_server(url, token_file, ca)
        return command(*arguments, url=url, **chosen)

    add_url = click.option("--url", metavar="URL", help="Ask the daemon at http://host:port or unix:/path.")
    # click looks at options, not at the type
    return add_url(token_file_option(ca_option(wrapper)))  # type: ignore[return-value]


def note_server(url: str | None, token_file: Path | None, ca: Path | None) -> None:
    """Note token and CA for :func:`daemon_at`; raise UsageError if one has no use without such a URL."""
    if token_file is not None and (url is None or not url.startswith(_HTTP)):
        raise click.UsageError("--token-file needs --url with http:// or https://")
    if ca is not None and (url is None or not url.startswith("https://")):
        raise click.UsageError("--ca needs --url with https://")
    meta = click.get_current_context().meta
    if token_file is not None:
        meta[_HEADERS] = {"Authorization": f"Bearer {token_file.read_text().strip()}"}
    meta[_CA] = ca


@asynccontextmanager
async def connect(path: Path) -> "AsyncGenerator[DaemonClient | None, None]":
    """Yield a client of the daemon that answers on this socket; None if no daemon answers.

    Raises:
        PermissionError: this user may not connect to the socket.
    """
    if not path.is_socket():  # noqa: ASYNC240 one stat() of a local file
        yield None
        return
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
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
    if not url.startswith((_UNIX, *_HTTP)):
        raise click.UsageError(f"--url: '{url}' is neither http://host:port nor https://host nor unix:/path")
    from auditord.cli.daemon_client import LARGEST_ANSWER, ControlSocket, DaemonClient  # noqa: PLC0415 only with a URL

    if url.startswith(_UNIX):
        yield DaemonClient(ControlSocket(url.removeprefix(_UNIX), _SILENCE.total_seconds()), _LOCAL)
        return
    from auditord.client.http import open_client  # noqa: PLC0415 aiohttp, only for a URL
    from auditord_hookspecs.http import HttpOptions  # noqa: PLC0415 the same
    from auditord_hookspecs.sources import TlsFiles  # noqa: PLC0415 the same

    meta = click.get_current_context().meta
    headers: Mapping[str, str] = meta.get(_HEADERS, {})
    options = HttpOptions(
        tls=TlsFiles(ca=meta.get(_CA)),
        headers=headers,
        silence=_SILENCE,
        timeout=timedelta(days=1),
        max_answer=LARGEST_ANSWER,
        attempts=1,
    )
    async with open_client(options) as client:
        yield DaemonClient(client, url.rstrip("/"), has_token=bool(headers))


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
async def actions(url: str | None, request: "RunRequest | None" = None) -> "AsyncGenerator[Actions, None]":
    """Yield the actions of the daemon at a URL or, without one, of the owner of this host's state folder.

    The owner is the running daemon or, if none runs, this process. It creates a missing store only for the run of an
    instance that exists. A dry run without a URL uses the files instead, whether a daemon runs or not.

    Args:
        url: the daemon's address.
        request: the run, if the actions are for one.

    Raises:
        StateInUse: a daemon owns the folder and does not answer.
        UnknownInstance: no enabled instance has the name of the request.
        AuditordError: there is no request, and no record store.
    """
    if url is not None:
        if request is not None and request.dry_run:
            say(f"dry run by the running configuration of {url}", err=True)
        async with daemon_at(url) as daemon:
            yield daemon
        return
    installation = load_installation()
    if request is not None and request.dry_run:
        async with _preview(installation, request) as previews:
            yield previews
        return
    async with connect(installation.configuration.state_dir / CONTROL_FILE) as owner:
        if owner is not None:
            yield owner
            return
    from auditord.supervisor import acting  # noqa: PLC0415 slow to import, only if no daemon runs

    url = installation.configuration.store.url
    if request is not None:
        _find_section(installation.configuration, request)
    elif not is_postgresql(url) and not sqlite_path(url).exists():
        raise AuditordError(
            f"{sqlite_path(url)}: there is no record store, so there is nothing to change: check --config"
        )
    async with acting(installation.configuration, installation.hooks, utc_now) as ourselves:
        yield ourselves


@asynccontextmanager
async def _preview(installation: "Installation", request: "RunRequest") -> "AsyncGenerator[Actions, None]":
    """Yield the actions for the dry run of an instance, which may be disabled."""
    from auditord.contexts.plugins import remote_source  # noqa: PLC0415 slow to import, only for a dry run
    from auditord.supervisor import previewing  # noqa: PLC0415 the same

    name, configuration = request.instance, installation.configuration
    sections = {"collectors": configuration.collectors, "plugins": configuration.plugins}
    trial = configuration.model_copy(
        update={
            section: {each: config.model_copy(update={"enabled": True}) for each, config in instances.items()}
            for section, instances in sections.items()
        }
    )
    section = _find_section(trial, request)
    config = sections[section].get(name)  # None: the lake
    files = ", ".join(map(str, configuration_files(config_paths()))) or "the environment alone"
    disabled = "" if config is None or config.enabled else f", which disables {name}"
    say(f"dry run by the configuration in {files}{disabled}", err=True)
    reads_store = section == "plugins" and (config is None or remote_source(config) is None)
    async with previewing(trial, installation.hooks, utc_now, reads_store=reads_store) as actions:
        yield actions


def _find_section(configuration: "Configuration", request: "RunRequest") -> "Section":
    from auditord.actions import find_section  # noqa: PLC0415 a running daemon checks its requests itself
    from auditord.lake.running import INSTANCE  # noqa: PLC0415 the same
    from auditord.storage import select_enabled  # noqa: PLC0415 the same

    plugins = [*select_enabled(configuration.plugins), *([INSTANCE] if configuration.lake.enabled else [])]
    return find_section(request, {"collectors": select_enabled(configuration.collectors), "plugins": plugins})
