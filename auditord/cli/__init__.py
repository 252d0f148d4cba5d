"""The command line. Each command is imported only when it is used, so that all start fast.

Hook modules may provide further commands (:mod:`auditord.cli.hooks`); ``--help`` imports them to list them.

A command raises :class:`auditord_hookspecs.AuditordError` to print its text to standard error and to exit with its
status, which is 1 by default. Wrong usage exits with 2.
"""

import gc
import sys
from errno import EDQUOT, ENOSPC
from typing import Final

import click

from auditord.cli.frame import Commands, Registered, print_version

COMMANDS = (
    Registered("audit", "auditord.cli.audit", "Compare a collector's source with the stored records."),
    Registered("backup", "auditord.cli.backup", "Back up the record store and the spool while the daemon runs."),
    Registered("collect", "auditord.cli.collect", "Run a collector once, or collect a period again."),
    Registered("config", "auditord.cli.config", "Check, show, import, compare and reload the configuration."),
    Registered("database", "auditord.cli.database", "Migrate, check or copy the record store."),
    Registered("demo", "auditord.cli.demo", "Watch auditord collect and serve recorded jobs."),
    Registered("doctor", "auditord.cli.doctor", "Check what the configuration refers to."),
    Registered("hooks", "auditord.cli.hooks", "List the hook modules and what they implement."),
    Registered("import", "auditord.importing.command", "Import records from another accounting system."),
    Registered("init", "auditord.cli.init", "Write a first configuration that fits this host."),
    Registered("lake", "auditord.cli.lake", "Sync records to an Iceberg table, release old ones, and inspect it."),
    Registered("manual", "auditord.cli.manual", "Read or search the manual."),
    Registered("new-plugin", "auditord.cli.new_plugin", "Create a distribution with a hook module of your own."),
    Registered("quarantine", "auditord.cli.quarantine", "List, show, retry or discard what could not be processed."),
    Registered("records", "auditord.cli.records", "Show, export, correct, close or delete records."),
    Registered(
        "report", "auditord.cli.report", "Report usage and efficiency, by group and over time.", extensible=True
    ),
    Registered("restore", "auditord.cli.restore", "Restore a backup, or recreate a lost store or spool.db."),
    Registered("run", "auditord.cli.run", "Run the daemon in the foreground."),
    Registered("status", "auditord.cli.status", "Show the state of the daemon."),
    Registered("top", "auditord.cli.report", "Show who used the most this month."),
    Registered("trigger", "auditord.cli.collect", "Run a collector or plugin now, or show what a run would do."),
)

_ALLOCATIONS: Final = 100_000
"""Allocations between garbage collections. With the default, a fifth of a command's start is spent on collections."""

GUIDE = """\
auditord accounts for computing resources: it collects jobs, keeps and serves them.

  auditord demo            watch it work, with recorded jobs and a made-up site
  auditord init            write a first configuration that fits this host
  auditord doctor          check what the configuration refers to
  auditord run             run the daemon in the foreground
  auditord status          show the daemon's runs, queues and quarantine
  auditord report usage    show who used what
  auditord manual          read the manual, without a browser

All commands: auditord --help. Options of a command: auditord COMMAND --help.
"""


@click.group(
    cls=Commands,
    registered=COMMANDS,
    provided="auditord.cli.hooks",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the versions and exit.",
)
@click.pass_context
def auditord(ctx: click.Context) -> None:
    """Account for computing resources: collect jobs, keep records, serve them."""
    if ctx.invoked_subcommand is None:
        from auditord_hookspecs.terminal import write  # noqa: PLC0415 half of the start-up time, needed only here

        write(GUIDE)


def main() -> None:
    """Run the command line and exit."""
    gc.set_threshold(_ALLOCATIONS)
    try:
        auditord(prog_name="auditord")
    except Exception as error:
        from auditord.errors import PERMISSION_REMEDY, OutputClosed  # noqa: PLC0415 half of the start-up time
        from auditord_hookspecs import AuditordError  # noqa: PLC0415 the same
        from auditord_hookspecs.terminal import say_error  # noqa: PLC0415 the same

        if isinstance(error, PermissionError):
            say_error(f"{error.filename or error}: permission denied: {PERMISSION_REMEDY}")
        elif isinstance(error, OSError) and error.errno in {ENOSPC, EDQUOT}:
            where = error.filename or "the output"
            say_error(f"{where}: the disk is full: free some space, then run the command again")
        elif not isinstance(error, AuditordError):
            raise
        elif not isinstance(error, OutputClosed):  # such as head
            say_error(str(error))
        sys.exit(error.exit_status if isinstance(error, AuditordError) else 1)
    finally:
        gc.freeze()  # skips the last garbage collection, a sixth of a short command's time
