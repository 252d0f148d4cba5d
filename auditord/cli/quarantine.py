"""``auditord quarantine``: list, show, retry or discard jobs, records and bodies that could not be processed."""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime

import click

from auditord.cli.daemons import actions, daemon_at, url_option
from auditord.cli.installation import in_event_loop, load_place, run_async, utc_now
from auditord.cli.tables import new_table, print_table
from auditord.spool import Spool
from auditord.web.api.shapes import QuarantineEntry, summary, with_input
from auditord_hookspecs import AuditordError
from auditord_hookspecs.terminal import confirm, json_option, output_option, say, write_json, yes_option
from auditord_hookspecs.wording import counted

_PAGE = 1_000


@click.group("quarantine")
def quarantine_command() -> None:
    """List, show, retry or discard jobs, records and request bodies that could not be processed.

    Quarantine keeps jobs that could not be converted, records that a destination refused, and bodies of POST /record
    and POST /records that were answered with 400, each with its raw input.
    """


@quarantine_command.command("list")
@click.option("--task", help="Only entries of this collector or sender; 'api' for bodies that clients posted.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@url_option
def list_command(task: str | None, output: str, url: str | None) -> None:
    """List the entries, oldest first."""
    entries = run_async(_entries, task, url)
    if output == "json":
        write_json(entries)
    else:
        table = new_table("number", "task", "stage", "source id", "at (UTC)", "reason")
        for entry in entries:
            at = f"{datetime.fromisoformat(entry.at):%Y-%m-%d %H:%M:%S}"
            table.add_row(str(entry.number), entry.task, entry.stage, entry.source_id, at, entry.reason)
        print_table(table)
        say(f"{counted(len(entries), 'entry')} in quarantine", err=True)


@quarantine_command.command("show")
@click.argument("number", type=int)
@json_option
@url_option
@in_event_loop
async def show_command(number: int, url: str | None) -> None:
    """Show one entry as JSON, with its raw input."""
    if url is not None:
        async with daemon_at(url) as daemon:
            write_json(await daemon.get_quarantined(number))
        return
    async with Spool.opened_read_only(load_place().state_dir, utc_now) as spool:
        entry = await spool.quarantine_get(number)
    if entry is None:
        raise AuditordError(f"there is no entry {number} in quarantine: see auditord quarantine list")
    write_json(with_input(entry))


@quarantine_command.command("retry")
@click.argument("numbers", type=int, nargs=-1)
@click.option("--all", "every", is_flag=True, help="All entries; with --task: all of that collector or sender.")
@click.option("--task", help="With --all: only entries of this collector or sender.")
@click.option("--collector", metavar="NAME", help="Convert jobs of a collector that was renamed with this one.")
@output_option
@url_option
@in_event_loop
async def retry_command(
    *, numbers: Sequence[int], every: bool, task: str | None, collector: str | None, output: str, url: str | None
) -> None:
    """Retry entries after their cause has been fixed; entries that fail again stay."""
    _require_choice(numbers, task, every=every)
    chosen = await _choose_numbers(None if every else numbers, task, url)
    async with actions(url) as owner:
        retried = await owner.retry(chosen, collector)
    if output == "json":
        write_json(retried)
    else:
        failed = len(retried.failed)
        say(f"{retried.settled} resolved, {counted(retried.queued, 'record')} queued, {failed} failed again")
        for number, reason in retried.failed.items():
            say(f"  {number}: {reason}", err=True)
    if retried.failed:
        raise SystemExit(1)


@quarantine_command.command("discard")
@click.argument("numbers", type=int, nargs=-1)
@click.option("--all", "every", is_flag=True, help="All entries; with --task: all of that collector or sender.")
@click.option("--task", help="With --all: only entries of this collector or sender.")
@yes_option
@output_option
@url_option
def discard_command(
    *, numbers: Sequence[int], every: bool, task: str | None, yes: bool, output: str, url: str | None
) -> None:
    """Delete entries for good."""
    _require_choice(numbers, task, every=every)
    confirm("Discarded entries are deleted for good. Continue?", yes=yes)
    run_async(_discard, None if every else numbers, task, output, url)


def _require_choice(numbers: Sequence[int], task: str | None, *, every: bool) -> None:
    """Raise UsageError unless the user gave either numbers or ``--all``, and ``--task`` only with ``--all``."""
    if task is not None and not every:
        raise click.UsageError("--task needs --all: it chooses among all entries")
    if bool(numbers) == every:
        raise click.UsageError("name entries by their numbers (auditord quarantine list), or use --all")


async def _discard(numbers: Sequence[int] | None, task: str | None, output: str, url: str | None) -> None:
    """Delete entries and print their number.

    Raises:
        AuditordError: some of the numbers do not exist. The other entries were deleted.
    """
    chosen = await _choose_numbers(numbers, task, url)
    async with actions(url) as owner:
        discarded = await owner.discard(chosen)
    write_json({"discarded": discarded}) if output == "json" else say(f"{discarded} discarded")
    if discarded < len(chosen):
        raise AuditordError(f"{len(chosen) - discarded} of the entries do not exist: see auditord quarantine list")


async def _choose_numbers(numbers: Sequence[int] | None, task: str | None, url: str | None) -> Sequence[int]:
    """Return the given numbers; for None, the numbers of all entries (of the instance ``task``, if given)."""
    return [entry.number for entry in await _entries(task, url)] if numbers is None else numbers


async def _entries(task: str | None, url: str | None) -> Sequence[QuarantineEntry]:
    """Return all entries, from the daemon at a URL; without a URL, from the spool of this host."""
    if url is not None:
        async with daemon_at(url) as daemon, aclosing(daemon.quarantine(task)) as entries:
            return [entry async for entry in entries]
    found: list[QuarantineEntry] = []
    async with Spool.opened_read_only(load_place().state_dir, utc_now) as spool:
        while page := await spool.quarantine_summaries(task, after=found[-1].number if found else 0, limit=_PAGE):
            found += map(summary, page)
    return found
