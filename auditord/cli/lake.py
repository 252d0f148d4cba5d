"""``auditord lake``: sync records to the lake, release old ones, and inspect it."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import click

from auditord.cli.collect import trigger_command
from auditord.cli.daemons import url_option
from auditord.cli.installation import in_event_loop, load_installation, run_async
from auditord.cli.progress import StepBar
from auditord.cli.tables import new_table, print_table
from auditord.config.model import Configuration
from auditord.lake.opening import ConfiguredLake, lake_module, lake_of
from auditord.lake.running import INSTANCE
from auditord.spool import own
from auditord.store.opening import open_configured_store, open_store_for_reading
from auditord.store.store import RecordStore
from auditord_hookspecs.terminal import confirm, output_option, say, write_json, yes_option
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.wording import counted

_LAYOUTS = ("hive", "auditor")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


@click.group("lake")
def lake_command() -> None:
    """Sync records to an Apache Iceberg table that many daemons can share, and inspect it.

    Old records are released: only the lake keeps them, but sums still include them and their ids stay known. A released
    record that is changed returns to the record store. Needs the extra lake: pip install 'auditord[lake]'.
    """


@lake_command.command("run")
@click.option("--dry-run", is_flag=True, help="Print what would be synced and released, and change nothing.")
@output_option
@url_option
@click.pass_context
def run_command(context: click.Context, *, dry_run: bool, output: str, url: str | None) -> None:
    """Sync changes and release old records now; needs lake.enabled. The next run continues an interrupted one."""
    context.invoke(trigger_command, instance=INSTANCE, dry_run=dry_run, output=output, url=url)


@lake_command.command("status")
@output_option
@in_event_loop
async def status_command(output: str) -> None:
    """Show the contents of the lake, and the daemons that sync their records to it."""
    configuration = load_installation().configuration
    async with open_store_for_reading(configuration.store) as store:
        state, waiting = await store.lake_state(), await store.lake_waiting()
    with closing(ConfiguredLake(configuration)) as lake:
        facts = await asyncio.to_thread(lake.table.facts)
    committed = None if facts.committed_at is None else format_time(facts.committed_at)
    if output == "json":
        daemons = {name: position.batch for name, position in facts.positions.items()}
        counts = {"records": facts.records, "files": facts.files, "bytes": facts.size}
        snapshot = {"snapshot_id": facts.snapshot_id, "committed_at": committed}
        filling = sorted(name for name, position in facts.positions.items() if position.is_filling)
        own = {"waiting": waiting, "released": state.records}
        write_json({**snapshot, **counts, **own, "daemons": daemons, "filling": filling})
        return
    table = new_table("daemon", "feed position", "records", "")
    for name, position in sorted(facts.positions.items()):
        synced = "first sync under way" if position.is_filling else "all"
        table.add_row(name, str(position.batch), synced, "this one" if position.store_id == state.store_id else "")
    print_table(table)
    contents = f"{counted(facts.records, 'record')} in {counted(facts.files, 'file')}, {facts.size / 1e6:.1f} MB"
    say(f"{contents}; last commit {committed or 'never'}", err=True)
    say(f"{counted(waiting, 'change')} of this daemon's record store not synced yet", err=True)
    say(f"{counted(state.records, 'record')} released, which only the lake has", err=True)


@lake_command.command("list")
@output_option
@in_event_loop
async def list_command(output: str) -> None:
    """List the rows, bytes and files of each month and site, over all daemons."""
    titles, rows = ("month", "site", "rows", "bytes", "files"), list[tuple[str | None, str | None, int, int, int]]()
    with closing(ConfiguredLake(load_installation().configuration)) as lake:
        partitions = await asyncio.to_thread(lake.table.partitions)
    for (month, site), files in partitions.items():
        sums = sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files)
        rows.append((None if month is None else lake_module("writing").month_name(month), site, *sums, len(files)))
    if output == "json":
        write_json([dict(zip(titles, row, strict=True)) for row in rows])
        return
    table = new_table(*titles)
    for row in rows:
        table.add_row(row[0] or "open", row[1] or "", *map(str, row[2:]))
    print_table(table)


@lake_command.command("verify")
@output_option
@in_event_loop
async def verify_command(output: str) -> None:
    """Read all released records and verify them against the record store; the exit code is 1 if they differ."""
    async with _open() as (store, lake, name):
        bar = StepBar()
        with bar.shown:
            verify = lake_module("syncing").verify
            result = await verify(store, lake.table, name, partial(bar.note_progress, "verifying"))
    if output == "json":
        write_json({"records": result.records, "expected": result.expected, "findings": result.findings})
    else:
        for finding in result.findings:
            say(finding, err=True)
        say(f"{result.records:,} of {counted(result.expected, 'released record')} were read back")
    if result.findings:
        raise SystemExit(1)


@lake_command.command("export")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    default=_LAYOUTS[0],
    show_default=True,
    help="Folders site=…/month=… that pandas and DuckDB can read, or AUDITOR's own files auditor_2024_02.parquet.",
)
@output_option
@in_event_loop
async def export_command(folder: Path, *, layout: str, output: str) -> None:
    """Write this daemon's finished records from the lake to FOLDER, as plain Parquet files."""
    async with _open() as (_, lake, name):
        exporting, bar = lake_module("exporting"), StepBar()
        with bar.shown:
            progressed = partial(bar.note_progress, "exporting")
            exported = await asyncio.to_thread(
                exporting.export, lake.table, name, folder, exporting.LAYOUTS[layout], progressed
            )
    if output == "json":
        write_json({"folder": str(folder), "records": exported.records, "files": exported.files})
    else:
        say(f"wrote {counted(exported.records, 'record')} to {counted(exported.files, 'file')} in {folder}")


@lake_command.command("recall")
@click.argument("month")
@click.option("--site", help="Only records of this site; default: all sites.")
@output_option
@in_event_loop
async def recall_command(month: str, *, site: str | None, output: str) -> None:
    """Put the released records that stopped in MONTH (2024-02) back into the record store.

    The daemon must not run meanwhile. The next run releases them again, unless lake.keep_months was raised.
    """
    if not _MONTH.fullmatch(month):
        raise click.BadParameter(f"'{month}' is not a month: write it as 2024-02", param_hint="MONTH")
    configuration = load_installation().configuration
    with own(configuration.state_dir):
        async with open_configured_store(configuration) as store:
            with lake_of(store, configuration) as lake:
                exporting, released = lake_module("exporting"), await store.list_released()
                name = configuration.lake.name or ""
                ids = await asyncio.to_thread(exporting.ids_of, lake.table, name, released, month, site)
                recalled = await store.recall(ids)
    if output == "json":
        write_json({"records": recalled})
    else:
        say(f"{counted(recalled, 'record is', 'records are')} back in the record store")


@lake_command.command("forget")
@click.argument("name")
@click.option("--released", is_flag=True, help="Also remove released records, which have no other copy.")
@output_option
def forget_command(name: str, *, released: bool, output: str) -> None:
    """Remove all records of the daemon NAME from the lake, if its record store is lost or it has a new name.

    A daemon that still syncs records under this name syncs all of them again at its next run.
    """
    with closing(ConfiguredLake(load_installation().configuration)) as lake:
        removed = lake.table.remove(name, with_released=released)
    if output == "json":
        write_json({"records": removed})
        return
    words = counted(removed, "record was removed", "records were removed")
    say(f"{words}; earlier snapshots contain them until the snapshots expire")


@lake_command.command("end")
@yes_option
@output_option
def end_command(*, yes: bool, output: str) -> None:
    """Stop tracking changes for a lake that is no longer configured; the lake keeps its records.

    The daemon must not run meanwhile. If lake.enabled becomes true later, all records are synced again. Refused while
    the lake has released records: recall them first.
    """
    configuration = load_installation().configuration
    if configuration.lake.enabled:
        raise click.UsageError(
            "lake.enabled is true: set it to false first, or the next run starts to sync all records again."
        )
    confirm("The lake keeps its records, but later changes will not be synced to it. Continue?", yes=yes)
    with own(configuration.state_dir):
        waiting = run_async(_end, configuration)
    if output == "json":
        write_json({"changes": waiting})
    else:
        say(f"{counted(waiting, 'pending change')} discarded; changes are no longer tracked")


async def _end(configuration: Configuration) -> int:
    async with open_configured_store(configuration) as store:
        waiting, state = await store.lake_waiting(), await store.lake_state()
        if state.records:
            raise click.UsageError(
                f"{counted(state.records, 'record exists', 'records exist')} only in the lake: "
                "run `auditord lake recall` first."
            )
        if state.lake_id:
            await store.begin_lake()
        return waiting


@asynccontextmanager
async def _open() -> AsyncGenerator[tuple[RecordStore, ConfiguredLake, str], None]:
    """Yield the record store and its lake, for reading beside a daemon, and the daemon's name in the lake."""
    configuration = load_installation().configuration
    if configuration.lake.name is None:
        raise click.UsageError("the configuration has no lake.name")
    async with open_store_for_reading(configuration.store) as store:
        with lake_of(store, configuration) as lake:
            yield store, lake, configuration.lake.name
