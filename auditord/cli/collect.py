"""``auditord collect`` and ``auditord trigger``: run an instance once, now or for a past period."""

import os
import sys
from datetime import datetime

import click

from auditord.actions import RunRequest
from auditord.cli.daemons import actions, log_to_terminal, url_option
from auditord.cli.installation import complete_instances, run_async, utc_now
from auditord.cli.option_types import PERIOD_INSTANT
from auditord.cli.progress import progress_bar
from auditord.errors import OutputClosed
from auditord_hookspecs import Batch, JobChoice, Produced, RunReport, Window
from auditord_hookspecs.terminal import check_period, escape, output_option, say, say_lines, write_json
from auditord_hookspecs.terminal import output as standard_output
from auditord_hookspecs.wire import encode_record
from auditord_hookspecs.wording import counted


@click.command("collect")
@click.argument("instance", shell_complete=complete_instances("collectors"))
@click.option("--once", is_flag=True, help="Continue from the checkpoint, once; this is the default.")
@click.option("--from", "start", type=PERIOD_INSTANT, help="Collect jobs that ended at or after this time.")
@click.option("--to", "stop", type=PERIOD_INSTANT, help="Collect jobs that ended before this time; default: now.")
@click.option("--job-id", help="Collect one job again, such as 42 or 42.0; not every kind supports it.")
@click.option("--schedd", help="The schedd of --job-id (HTCondor); default: all.")
@click.option(
    "--replace", is_flag=True, help="Overwrite the stored records of these jobs; the old versions stay in the history."
)
@click.option("--dry-run", is_flag=True, help="Print the records as NDJSON and store nothing.")
@output_option
@url_option
def collect_command(
    *,
    instance: str,
    once: bool,
    start: datetime | None,
    stop: datetime | None,
    job_id: str | None,
    schedd: str | None,
    replace: bool,
    dry_run: bool,
    output: str,
    url: str | None,
) -> None:
    """Run the collector INSTANCE once.

    A period can be collected again: this changes neither the checkpoint nor stored records, except those of requeued
    runs, which Slurm changes afterwards. Asks the running daemon, or works on its files if none runs.
    """
    log_to_terminal()
    _check_output(output, dry_run=dry_run)
    if once and start:
        raise click.UsageError(
            "--once continues from the checkpoint, --from starts at a given time: use only one of them"
        )
    if job_id and (once or start or stop):
        raise click.UsageError(
            "--job-id selects one job and --once, --from and --to select others: use only one of them"
        )
    if schedd and not job_id:
        raise click.UsageError("--schedd needs --job-id")
    if not job_id and start is None and (stop or replace):
        raise click.UsageError("--to and --replace need --from")
    window = None
    if start is not None:
        window = Window(start, stop or utc_now())
        check_period(window.start, window.stop)
    job = None if job_id is None else JobChoice(job_id, schedd)
    request = RunRequest(instance, window, replace, dry_run, "collectors", job)
    report = run_async(_run, request, url)
    _print(report, output)
    if request.again and report.records and not (replace or dry_run):
        say("Records that were already stored are unchanged, except those of requeued runs.", err=True)
    if report.error is not None:
        raise SystemExit(1)


@click.command("trigger")
@click.argument("instance", shell_complete=complete_instances("collectors", "plugins"))
@click.option(
    "--dry-run", is_flag=True, help="Print what the run would do (for a collector: its records), and change nothing."
)
@output_option
@url_option
def trigger_command(*, instance: str, dry_run: bool, output: str, url: str | None) -> None:
    """Run the collector or plugin INSTANCE once, now.

    Asks the running daemon, which first waits for a current run to end; works on the files if no daemon runs.
    """
    log_to_terminal()
    _check_output(output, dry_run=dry_run)
    report = run_async(_run, RunRequest(instance, dry_run=dry_run), url)
    _print(report, output)
    if report.error is not None:
        raise SystemExit(1)


def _check_output(output: str, *, dry_run: bool) -> None:
    if dry_run and output == "json":
        raise click.UsageError("--dry-run prints records and not the report of a run: remove --output")


def _print(report: RunReport, output: str) -> None:
    say_lines(summary(report), err=True)
    if output == "json":
        values = {"task": report.task, "kind": report.kind, "started": report.started, "error": report.error}
        counts = {"records": report.records, "quarantined": report.quarantined, "skipped": report.skipped}
        write_json({**values, "seconds": report.duration.total_seconds(), **counts})


async def _run(request: RunRequest, url: str | None) -> RunReport:
    watcher = Watcher(request.instance, dry_run=request.dry_run)
    with watcher.bar:
        async with actions(url, request) as owner:
            report = await owner.run(request, watcher)
    if watcher.closed is not None:  # the closed output ended the run, which has not failed
        raise watcher.closed
    return report


class Terminal:
    def show_line(self, line: str) -> None:
        say(line, err=True)

    def show_output(self, text: str) -> None:
        say_lines(text)

    def show_progress(self, fraction: float) -> None:
        """Ignore progress: a plugin's own command shows it."""


class Watcher(Terminal):
    """Shows a run: a progress bar on the terminal; for a dry run, its records on standard output."""

    def __init__(self, instance: str, *, dry_run: bool = False) -> None:
        self.bar = progress_bar(among_lines=dry_run)
        self._task = self.bar.add_task(instance, total=1.0)
        self.closed: OutputClosed | None = None

    def show_progress(self, fraction: float) -> None:
        self.bar.update(self._task, completed=fraction)

    async def show_batch(self, batch: Batch) -> None:
        """Print the records of a dry run.

        Raises:
            OutputClosed: the reader of standard output has closed it.
        """
        lines = [encode_record(item.record if isinstance(item, Produced) else item).decode() for item in batch.records]
        try:
            standard_output().writelines(f"{line}\n" for line in lines)
            sys.stdout.flush()
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports it again at exit
            self.closed = OutputClosed("the reader of the records has closed the output")
            raise self.closed from error
        for job in batch.quarantined:
            say(f"would be quarantined: {job.source_id}: {job.reason}", err=True)


def summary(report: RunReport) -> str:
    """Return one line about a run, or two if it failed."""
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.skipped.items()))
    parts = [
        counted(report.records, "record"),
        f"{report.quarantined} quarantined",
        *([f"skipped: {skipped}"] if skipped else []),
    ]
    line = f"{report.task}: {'; '.join(parts)} ({report.duration.total_seconds():.1f} s)"
    return line if report.error is None else f"{line}\nfailed: {escape(report.error)}"
