"""The owner of the state folder, for a command: a daemon or, where none runs, the command itself."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from auditord.actions import CONTROL_FILE, Actions
from auditord.cli.daemons import connected, daemon_at
from auditord.cli.installation import load_installation, utc_now
from auditord.logs import MessageFormatter


def log_to_terminal() -> None:
    """Print warnings on standard error, once: what an observer of a run receives is left out."""
    log = logging.getLogger("auditord")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(MessageFormatter())
        handler.addFilter(lambda record: not getattr(record, "observed", False))
        log.addHandler(handler)


@asynccontextmanager
async def actions(url: str | None) -> AsyncGenerator[Actions, None]:
    """The actions of the daemon at a URL or, without one, of the owner of this installation's state folder.

    Raises:
        StateInUse: a daemon owns it and does not answer.
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
    from auditord.supervisor import acting  # noqa: PLC0415 half of the daemon, where none runs

    async with acting(installation.configuration, installation.hooks, utc_now) as ourselves:
        yield ourselves
