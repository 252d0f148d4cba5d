"""``auditord run``: the daemon."""

import resource
import sys
from typing import Final

import anyio
import click

from auditord import logs
from auditord.cli.clock import utc_now
from auditord.cli.installation import Installation, load_installation
from auditord.cli.signals import run_until_signalled
from auditord.errors import plain_errors
from auditord.supervisor import run
from auditord.systemd import notifier

_OPEN_FILES: Final = 65_536


@click.command("run")
def run_command() -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C.

    The first signal ends it in order: running collectors are cancelled (they continue from their checkpoints), requests
    are answered, the queue is drained within shutdown.grace. A second signal ends it at once; nothing is lost either
    way.
    """
    installation = load_installation()
    logging = installation.configuration.logging
    logs.set_up(logging.level, logging.format)
    _allow_connections()
    with plain_errors():
        in_order = anyio.run(_run, installation, backend_options={"use_uvloop": True})
    sys.exit(0 if in_order else 1)


def _allow_connections() -> None:
    """Every connection is an open file; the 1,024 that most systems give first are for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(installation: Installation) -> bool:
    return await run_until_signalled(
        lambda stop: run(
            installation.configuration,
            installation.hooks,
            ready=lambda _: None,  # the supervisor logs it
            now=utc_now,
            stop=stop,
            notifier=notifier(),
        )
    )
