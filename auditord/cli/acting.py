"""Who acts for a command: the running daemon, or, where none runs, the command itself as owner of the state folder."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from auditord.actions import Actions
from auditord.cli.clock import utc_now
from auditord.cli.control_client import connected
from auditord.cli.installation import Installation
from auditord.supervisor import acting
from auditord.web.control import FILE


@asynccontextmanager
async def actions(installation: Installation) -> AsyncGenerator[Actions, None]:
    """The actions of whoever owns the state folder.

    Raises:
        StateInUse: a daemon owns it and does not answer.
    """
    async with connected(installation.configuration.state_dir / FILE) as daemon:
        if daemon is not None:
            yield daemon
            return
    async with acting(installation.configuration, installation.hooks, utc_now) as owner:
        yield owner
