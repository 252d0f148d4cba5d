"""``auditord lake``: sync records to the lake, and look at it."""

import asyncio
from contextlib import closing

import click

from auditord.cli.collect import trigger_command
from auditord.cli.daemons import url_option
from auditord.cli.installation import load_installation, run_async
from auditord.cli.tables import new_table, print_table
from auditord.config.model import Configuration
from auditord.lake.opening import ConfiguredLake
from auditord.lake.running import INSTANCE
from auditord.spool import own
from auditord.store.opening import open_store, open_store_for_reading
from auditord_hookspecs.terminal import confirm, output_option, say, write_json, yes_option
from auditord_hookspecs.wording import counted


@click.group("lake")
def lake_command() -> None:
    """Sync records to an Apache Iceberg table that many daemons share, and look at it.

    Needs the extra lake: pip install 'auditord[lake]'.
    """


@lake_command.command("run")
@click.option("--dry-run", is_flag=True, help="Say how many changes would be synced, and sync none.")
@output_option
@url_option
@click.pass_context
def run_command(context: click.Context, *, dry_run: bool, output: str, url: str | None) -> None:
    """Sync what has changed now; needs lake.enabled. Interrupted, it goes on the next time."""
    context.invoke(trigger_command, instance=INSTANCE, dry_run=dry_run, output=output, url=url)


@lake_command.command("status")
@output_option
def status_command(output: str) -> None:
    """Show what is in the lake, and the daemons that sync their records there."""
    run_async(_status, output)


@lake_command.command("forget")
@click.argument("name")
@output_option
def forget_command(name: str, output: str) -> None:
    """Take all records of the daemon NAME out of the lake, whose record store is lost or has another name by now.

    A daemon that still syncs records under this name syncs all of them again with its next run.
    """
    with closing(ConfiguredLake(load_installation().configuration)) as lake:
        taken = lake.table.remove(name)
    if output == "json":
        write_json({"records": taken})
        return
    words = counted(taken, "record is taken out", "records are taken out")
    say(f"{words}: former snapshots have them until they expire")


@lake_command.command("end")
@yes_option
@output_option
def end_command(*, yes: bool, output: str) -> None:
    """Note no more changes for a lake that the configuration has no more; its records stay there.

    The daemon must not run meanwhile. With lake.enabled again, all records are synced once more.
    """
    configuration = load_installation().configuration
    if configuration.lake.enabled:
        raise click.UsageError("lake.enabled is true: set it to false first, or the next run begins anew.")
    confirm("The lake keeps what it has, and hears of no change any more. Go on?", yes=yes)
    with own(configuration.state_dir):
        waiting = run_async(_end, configuration)
    if output == "json":
        write_json({"changes": waiting})
    else:
        say(f"{counted(waiting, 'change')} forgotten, and none will be noted")


async def _end(configuration: Configuration) -> int:
    async with open_store(configuration.store, counted_keys=configuration.metrics.database.counted_keys) as store:
        waiting = await store.lake_waiting()
        if (await store.lake_state()).lake_id:
            await store.begin_lake()
        return waiting


async def _status(output: str) -> None:
    configuration = load_installation().configuration
    async with open_store_for_reading(configuration.store) as store:
        state, waiting = await store.lake_state(), await store.lake_waiting()
    with closing(ConfiguredLake(configuration)) as lake:
        facts = await asyncio.to_thread(lake.table.facts)
    committed = None if facts.committed_at is None else facts.committed_at.isoformat()
    if output == "json":
        daemons = {name: position.batch for name, position in facts.positions.items()}
        counts = {"records": facts.records, "files": facts.files, "bytes": facts.size}
        snapshot = {"snapshot_id": facts.snapshot_id, "committed_at": committed}
        filling = sorted(name for name, position in facts.positions.items() if position.is_filling)
        write_json({**snapshot, **counts, "waiting": waiting, "daemons": daemons, "filling": filling})
        return
    table = new_table("daemon", "batches", "records", "")
    for name, position in sorted(facts.positions.items()):
        held = "first sync under way" if position.is_filling else "all"
        table.add_row(name, str(position.batch), held, "this one" if position.store_id == state.store_id else "")
    print_table(table)
    held = f"{counted(facts.records, 'record')} in {counted(facts.files, 'file')}, {facts.size / 1e6:.1f} MB"
    say(f"{held}; last commit {committed}", err=True)
    say(f"{counted(waiting, 'change')} of this daemon's record store not synced yet", err=True)
