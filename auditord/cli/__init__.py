"""The command line. Every command is a file here, imported only when it is used: ``--version`` and ``--help`` are fast.

A command raises :class:`auditord_hookspecs.AuditordError` to end with its text on standard error and exit code 1; wrong
usage ends with 2.
"""

import sys

import click

from auditord.cli.frame import Commands, Registered, print_version

COMMANDS = (
    Registered("config", "auditord.cli.config", "Check, show and import the configuration."),
    Registered("hooks", "auditord.cli.hooks", "List the hook modules and what they implement."),
    Registered("run", "auditord.cli.run", "Run the daemon in the foreground."),
)

VERSION_HELP = "Print the versions of auditord and of what it is made of."


@click.group(cls=Commands, registered=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=print_version, help="Say and exit."
)
def auditord() -> None:
    """Account for computing resources: collect jobs, keep records, serve them."""


def main() -> None:
    """Run the command line and exit."""
    try:
        auditord(prog_name="auditord")
    except Exception as error:
        from auditord_hookspecs import AuditordError  # noqa: PLC0415 half of the start-up time, needed only here

        if not isinstance(error, AuditordError):
            raise
        click.echo(f"auditord: {error}", err=True)
        sys.exit(1)
