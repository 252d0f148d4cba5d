"""``auditord trigger``: run a collector or a plugin now."""

import click

from auditord.actions import RunRequest
from auditord.cli.acting import actions, log_to_terminal
from auditord.cli.asynchronous import run_async
from auditord.cli.collect import Watcher, summary
from auditord.cli.daemon_client import url_option
from auditord_hookspecs import RunReport
from auditord_hookspecs.terminal import say_lines


@click.command("trigger")
@click.argument("instance")
@click.option("--dry-run", is_flag=True, help="Print what it would do (a collector: its records), and do nothing.")
@url_option
def trigger_command(*, instance: str, dry_run: bool, url: str | None) -> None:
    """Run the collector or plugin INSTANCE once, now.

    Asks the running daemon, which lets a run that is going on end first, or works on the files where none runs.
    """
    report = run_async(_trigger, RunRequest(instance, dry_run=dry_run), url)
    say_lines(summary(report), err=True)
    if report.error is not None:
        raise SystemExit(1)


async def _trigger(request: RunRequest, url: str | None) -> RunReport:
    log_to_terminal()
    watcher = Watcher(request.instance)
    with watcher.bar:
        async with actions(url) as owner:
            return await owner.run(request, watcher)
