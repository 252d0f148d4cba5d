"""``auditord quarantine``: what could not be handled, why, and what to do with it."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from auditord.actions import Actions
from auditord.cli.acting import actions
from auditord.cli.asynchronous import run_async
from auditord.cli.clock import utc_now
from auditord.cli.installation import load_installation
from auditord.cli.tables import new_table, print_table
from auditord.spool import QuarantineEntry, Spool
from auditord_hookspecs import AuditordError
from auditord_hookspecs.wire import format_time

_PAGE = 1_000


@click.group("quarantine")
def quarantine_command() -> None:
    """List, show, retry or discard what could not be handled.

    A job that could not be converted, a record that a destination refused and a body that was answered 400 are kept
    here with their raw input until somebody decides.
    """


@quarantine_command.command("list")
@click.option("--task", help="Only what this collector or sender left; 'api' for bodies that clients posted.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def list_command(task: str | None, output: str) -> None:
    """List the entries, the oldest first."""
    entries = run_async(_all, task)
    if output == "json":
        click.echo(json.dumps([_summary(entry) for entry in entries], indent=2, ensure_ascii=False))
    else:
        _print_table(entries)


@quarantine_command.command("show")
@click.argument("number", type=int)
def show_command(number: int) -> None:
    """Show one entry as JSON, with its raw input."""
    entry = run_async(_get, number)
    click.echo(json.dumps(_summary(entry) | {"raw": _readable(entry.raw)}, indent=2, ensure_ascii=False))


@quarantine_command.command("retry")
@click.argument("numbers", type=int, nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every entry (with --task: of this collector or sender).")
@click.option("--task", help="With --all: only these.")
def retry_command(numbers: Sequence[int], every: bool, task: str | None) -> None:  # noqa: FBT001 click's signature
    """Try entries again, after their cause has been mended; what is still wrong stays."""
    _require_choice(numbers, every)
    run_async(_retry, numbers, every, task)


@quarantine_command.command("discard")
@click.argument("numbers", type=int, nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every entry (with --task: of this collector or sender).")
@click.option("--task", help="With --all: only these.")
@click.confirmation_option(prompt="Discarded entries are gone for good. Go on?")
def discard_command(numbers: Sequence[int], every: bool, task: str | None) -> None:  # noqa: FBT001 click's signature
    """Forget entries for good."""
    _require_choice(numbers, every)
    run_async(_discard, numbers, every, task)


def _require_choice(numbers: Sequence[int], every: bool) -> None:  # noqa: FBT001 click's signature
    if bool(numbers) == every:
        raise click.UsageError("name entries by their numbers (auditord quarantine list), or use --all")


async def _retry(numbers: Sequence[int], every: bool, task: str | None) -> None:  # noqa: FBT001 as click gives it
    chosen = await _chosen(numbers, every, task)
    async with actions(load_installation()) as owner:
        retried = await owner.retry(chosen)
    click.echo(f"{retried.settled} settled, {retried.queued} records on their way, {len(retried.failed)} still wrong")
    for number, reason in retried.failed.items():
        click.echo(f"  {number}: {reason}", err=True)
    if retried.failed:
        raise SystemExit(1)


async def _discard(numbers: Sequence[int], every: bool, task: str | None) -> None:  # noqa: FBT001 as click gives it
    chosen = await _chosen(numbers, every, task)
    owner: Actions
    async with actions(load_installation()) as owner:
        discarded = await owner.discard(chosen)
    click.echo(f"{discarded} discarded")
    if discarded < len(chosen):
        raise AuditordError(f"{len(chosen) - discarded} of the numbers are no entries: see auditord quarantine list")


async def _chosen(numbers: Sequence[int], every: bool, task: str | None) -> Sequence[int]:  # noqa: FBT001 the same
    return [entry.quarantine_id for entry in await _all(task)] if every else list(numbers)


async def _all(task: str | None) -> Sequence[QuarantineEntry]:
    async with Spool.opened_read_only(load_installation().configuration.state_dir, utc_now) as spool:
        return [entry async for entry in _pages(spool, task)]


async def _pages(spool: Spool, task: str | None) -> AsyncIterator[QuarantineEntry]:
    last = 0
    while page := await spool.quarantine_list(task, after=last, limit=_PAGE):
        for entry in page:
            yield entry
        last = page[-1].quarantine_id


async def _get(number: int) -> QuarantineEntry:
    async with Spool.opened_read_only(load_installation().configuration.state_dir, utc_now) as spool:
        entry = await spool.quarantine_get(number)
    if entry is None:
        raise AuditordError(f"there is no entry {number} in quarantine: see auditord quarantine list")
    return entry


def _summary(entry: QuarantineEntry) -> dict[str, Any]:  # Any: JSON
    return {
        "number": entry.quarantine_id,
        "task": entry.task,
        "stage": entry.stage.value,
        "source_id": entry.source_id,
        "reason": entry.reason,
        "at": format_time(entry.quarantined_at),
        "occurrences": entry.occurrences,
        "route": entry.route,
    }


def _readable(raw: bytes) -> Any:  # Any: JSON
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="backslashreplace")


def _print_table(entries: Sequence[QuarantineEntry]) -> None:
    table = new_table("number", "task", "what", "source id", "at (UTC)", "reason")
    for entry in entries:
        at = f"{entry.quarantined_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(str(entry.quarantine_id), entry.task, entry.stage.value, entry.source_id, at, entry.reason)
    print_table(table)
    click.echo(f"{len(entries)} entries in quarantine", err=True)
