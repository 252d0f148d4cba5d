"""``auditord demo``: show auditord at work, without other software and without leaving anything behind."""

import socket
from contextlib import closing
from typing import Final

import click

from auditord import __version__
from auditord_hookspecs.terminal import say

PORT: Final = 8_000


@click.command("demo")
@click.option("--check", is_flag=True, help="Replay only the recorded jobs, verify that they are served, and exit.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"The port to serve on; default: {PORT}, or another one if it is taken.",
)
def demo_command(*, check: bool, port: int | None) -> None:
    """Replay recorded jobs and three months of a made-up site, and serve them until Ctrl-C."""
    say(f"auditord {__version__}: starting a daemon in a temporary folder")
    from auditord.cli.demo_run import run_demo  # noqa: PLC0415 imports the daemon, after the message

    run_demo(_free_port(0 if check and port is None else port), check=check)


def _free_port(wanted: int | None) -> int:
    with closing(socket.socket()) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the daemon does, so that the port of the last demo is free
        try:
            probe.bind(("127.0.0.1", PORT if wanted is None else wanted))
        except OSError:
            return _free_port(0)
        port: int = probe.getsockname()[1]
        return port
