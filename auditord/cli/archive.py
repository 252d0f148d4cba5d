"""``auditord archive``: move old records into an Apache Iceberg table, look at it, take records back out of it."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from auditord.archive.opening import ConfiguredArchive, archive_of
from auditord.archive.running import INSTANCE
from auditord.cli.collect import trigger_command
from auditord.cli.daemons import url_option
from auditord.cli.installation import load_installation, run_async
from auditord.cli.progress import StepBar
from auditord.cli.record_listing import Export, export_of, listing_options, query_of, write_records
from auditord.cli.tables import new_table, print_table
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError
from auditord.spool import own
from auditord.store import RecordStore
from auditord.store.merging import archived_pages, merged_pages
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.reading import decoded
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.terminal import output_option, say, write_json
from auditord_hookspecs.wording import counted

_LAYOUTS = ("hive", "auditor")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


@click.group("archive")
def archive_command() -> None:
    """Move old records into an Apache Iceberg table, which other programs read, and look at it.

    Sums are over the archive and the record store together. Archived ids stay known; a record comes back by itself when
    it is changed. Needs the extra archive: pip install 'auditord[archive]'.
    """


@archive_command.command("run")
@click.option("--dry-run", is_flag=True, help="Say which records would move, and move none.")
@output_option
@url_option
@click.pass_context
def run_command(context: click.Context, *, dry_run: bool, output: str, url: str | None) -> None:
    """Move what is old enough now; needs archive.enabled. Interrupted, it goes on the next time."""
    context.invoke(trigger_command, instance=INSTANCE, dry_run=dry_run, output=output, url=url)


@archive_command.command("list")
@output_option
def list_command(output: str) -> None:
    """List months and sites with the rows and bytes of their files."""
    run_async(_list, output)


@archive_command.command("verify")
@output_option
def verify_command(output: str) -> None:
    """Read all of the archive and compare it with what the record store knows; the exit code is 1 if they differ."""
    if not run_async(_verify, output):
        raise SystemExit(1)


@archive_command.command("query")
@listing_options
def query_command(**chosen: Any) -> None:  # Any: click's values
    """Show the records of the archive, or write them as JSON, NDJSON or CSV, as `auditord records` does.

    Those of the record store are not among them: `auditord records --include archive` has both.
    """
    run_async(_query, query_of(**chosen), export_of(**chosen))


@archive_command.command("export")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    default=_LAYOUTS[0],
    show_default=True,
    help="Folders site=…/month=… that pandas and DuckDB understand, or AUDITOR's own files auditor_2024_02.parquet.",
)
@output_option
def export_command(folder: Path, *, layout: str, output: str) -> None:
    """Write the archive to FOLDER as plain Parquet."""
    run_async(_export, folder, layout, output)


@archive_command.command("restore")
@click.argument("month")
@click.option("--site", help="Of this site alone; by default of all.")
@output_option
def restore_command(month: str, *, site: str | None, output: str) -> None:
    """Put the archived records that stopped in MONTH (2024-02) back into the record store.

    The daemon must not run meanwhile. The next run of the archive moves them again, unless archive.after_months has
    become more.
    """
    if not _MONTH.fullmatch(month):
        raise click.BadParameter(f"'{month}' is no month: write it as 2024-02", param_hint="MONTH")
    run_async(_restore, month, site, output)


@asynccontextmanager
async def _opened() -> AsyncGenerator[tuple[RecordStore, ConfiguredArchive], None]:
    """The record store and its archive, to be read beside a daemon."""
    configuration = load_installation().configuration
    async with open_store_for_reading(configuration.store) as store:
        with archive_of(store, configuration) as archive:
            if not (await store.archive_state()).archive_id:
                raise ConfigurationError("there is no archive yet: see archive in the configuration.")
            yield store, archive


async def _list(output: str) -> None:
    writing: Any = import_module("auditord.archive.writing")
    async with _opened() as (store, archive):
        state = await store.archive_state()
        files = await asyncio.to_thread(archive.table.files, state.snapshot_id)
    titles, rows = ("month", "site", "rows", "bytes", "files"), list[tuple[str, str | None, int, int, int]]()
    for partition in sorted({file.partition for file in files}, key=lambda each: (each[0], each[1] or "")):
        inside = [file for file in files if file.partition == partition]
        sums = sum(file.rows for file in inside), sum(file.size for file in inside)
        rows.append((writing.month_name(partition[0]), partition[1], *sums, len(inside)))
    if output == "json":
        write_json([dict(zip(titles, row, strict=True)) for row in rows])
        return
    table = new_table(*titles)
    for month, site, *counts in rows:
        table.add_row(month, site or "", *map(str, counts))
    print_table(table)
    archived = counted(state.records, "record is", "records are")
    say(f"{archived} archived in {state.location}, snapshot {state.snapshot_id}", err=True)


async def _verify(output: str) -> bool:
    async with _opened() as (store, archive):
        bar = StepBar()
        with bar.shown:
            verify = import_module("auditord.archive.verifying").verify
            result = await verify(store, archive.table, partial(bar.progressed, "verifying"))
    if output == "json":
        write_json({"records": result.records, "expected": result.expected, "findings": result.findings})
        return not result.findings
    for finding in result.findings:
        say(finding, err=True)
    say(f"{result.records:,} of {counted(result.expected, 'archived record')} were read back")
    return not result.findings


async def _query(query: RecordQuery, export: Export) -> None:
    async with _opened() as (store, archive):
        found = archived_pages(archive, await store.archive_counted(), query)
        async with (
            aclosing(found),
            aclosing(merged_pages([found], query)) as pages,
            aclosing(decoded(pages)) as records,
        ):
            await write_records(records, query, export)


async def _export(folder: Path, layout: str, output: str) -> None:
    async with _opened() as (store, archive):
        exporting: Any = import_module("auditord.archive.exporting")
        counts, bar = await store.archive_counted(), StepBar()
        with bar.shown:
            progressed = partial(bar.progressed, "exporting")
            export = partial(exporting.export, archive.table, counts, folder, exporting.LAYOUTS[layout], progressed)
            exported = await asyncio.to_thread(export)
    if output == "json":
        write_json({"folder": str(folder), "records": exported.records, "files": exported.files})
    else:
        say(f"wrote {counted(exported.records, 'record')} to {counted(exported.files, 'file')} in {folder}")


async def _restore(month: str, site: str | None, output: str) -> None:
    configuration: Configuration = load_installation().configuration
    keys = configuration.metrics.database.counted_keys
    with own(configuration.state_dir):
        async with open_store(configuration.store, counted_keys=keys) as store:
            with archive_of(store, configuration) as archive:
                exporting: Any = import_module("auditord.archive.exporting")
                ids = partial(exporting.ids_of, archive.table, await store.archive_counted(), month, site)
                back = await store.recall(await asyncio.to_thread(ids))
    if output == "json":
        write_json({"records": back})
    else:
        say(f"{counted(back, 'record is', 'records are')} back in the record store")
