"""``auditord run``: the daemon, and the signals that stop it."""

import faulthandler
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import anyio
import click
from anyio import CancelScope
from anyio.abc import TaskStatus

from auditord import logs
from auditord.cli.frame import config_paths
from auditord.cli.installation import load_installation, run_async, utc_now
from auditord.config.loading import ConfigurationFiles
from auditord.supervisor import run
from auditord.systemd import notifier

_log: Final = logging.getLogger(__name__)

_OPEN_FILES: Final = 65_536

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_ECHO: Final = 0.5
"""Seconds in which a repeated signal is ignored, since ``timeout`` and terminals signal both process and group."""


@click.command("run")
def run_command() -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C.

    The first signal cancels running collectors (they continue from their checkpoints at the next start), completes
    requests, and drains the queue within shutdown.grace. A second signal ends the daemon at once. Nothing is lost
    either way.
    """
    installation = load_installation(lambda _: False)
    settings = installation.configuration.logging
    logs.set_up(settings.level, settings.format)
    faulthandler.enable()  # reports fatal signals, such as SIGBUS after a disk error under a mapped file
    # Raise the limit of open files, which include connections. The usual 1,024 exists for programs with select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    hooks = installation.hooks
    files = ConfigurationFiles(config_paths(), hooks.kinds, os.environ, hooks.resolve_secret)

    async def work(stop: anyio.Event) -> None:
        await run(
            installation.configuration,
            installation.hooks,
            ready=lambda _: None,  # the supervisor logs it
            now=utc_now,
            stop=stop,
            notifier=notifier(),
            files=files,
        )

    sys.exit(0 if run_async(run_until_signalled, work) else 1)


async def run_until_signalled(work: Callable[[anyio.Event], Awaitable[None]]) -> bool:
    """Run work that stops once its event is set. SIGTERM or SIGINT sets the event.

    After an orderly stop, signals are ignored, so that a repeated signal cannot kill the process in its last
    milliseconds. A Python handler would not do: the interpreter removes those while it shuts down.

    Returns:
        False if a second signal has cancelled the work.
    """
    stop = anyio.Event()
    in_order = False
    async with anyio.create_task_group() as group:
        await group.start(_listen, stop, group.cancel_scope)
        await work(stop)
        in_order = True
        group.cancel_scope.cancel()
    if in_order:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    return in_order


async def _listen(stop: anyio.Event, everything: CancelScope, *, task_status: TaskStatus[None]) -> None:
    first = -inf
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            if anyio.current_time() - first < _ECHO:
                continue
            if stop.is_set():
                _log.warning("%s again: ending at once; the queue is kept", number.name)
                everything.cancel()
                return
            first = anyio.current_time()
            _log.info("%s: shutting down; a second signal ends at once", number.name)
            stop.set()
