"""``auditord database``: migrate and inspect the tables in PostgreSQL, check files, copy a record store."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, NoReturn

import anyio
import click
import msgspec

from auditord.backup.notes import refuse_unfinished
from auditord.cli.installation import load_installation, run_async, utc_now
from auditord.cli.progress import StepBar
from auditord.config.model import Configuration, forwarding_senders
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.database import find_changes, find_damage
from auditord.database.migrations import SAID_EVERY
from auditord.database.postgres.address import Address, address_of
from auditord.database.sql_files import Script
from auditord.errors import ConfigurationError
from auditord.ingest import Pairing
from auditord.spool import Spool, own
from auditord.spool.spool import FILE as SPOOL_FILE
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store.copying import copy_store
from auditord.store.opening import open_configured_store, section_of
from auditord.store.postgres.administration import database_status, migrate_database, pending_script
from auditord.store.sqlite.store import MIGRATIONS as STORE_MIGRATIONS
from auditord_hookspecs.terminal import confirm, output_option, say, say_lines, write, write_json, yes_option
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.wording import counted

_SALVAGE = """\
  sqlite3 FOLDER/{path.name} .recover | sqlite3 FOLDER/recovered.db
(The sqlite3 of Debian 12 has no .recover: use that of sqlite.org.)"""

_STORE = f"""\
stop the daemon and move {{path}}, its -wal and -shm to another FOLDER. Restore a backup, or copy what can be salvaged:
{_SALVAGE}
  auditord database copy --from sqlite://FOLDER/recovered.db
Then collect the missing records again with `auditord collect INSTANCE --from DATE` (nothing counts twice)."""

_SPOOL = f"""\
stop the daemon and move {{path}}, its -wal and -shm to another FOLDER. Restore a backup, or move what can be salvaged
to {{path}}:
{_SALVAGE}
Without either, run `auditord restore --without-backup`: collectors read their sources again from
earliest_datetime (nothing counts twice). The quarantine is lost, and records that clients posted while the record store
was unavailable."""


_CHANGED: Final = """\
stop the daemon, which refuses to start with this file, and remove the foreign parts with the sqlite3 program (DROP …),
or restore a backup. A trigger may have changed records: compare them with their sources (auditord audit)."""


@click.group("database")
def database_command() -> None:
    """Migrate and check the record store's database; copy one store into another.

    The daemon migrates a record store in SQLite automatically.
    """


@database_command.command("migrate")
@click.option("--sql", "only_sql", is_flag=True, help="Print the SQL for psql and change nothing.")
@click.option(
    "--end-sessions", is_flag=True, help="End the database sessions of running daemons instead of refusing to migrate."
)
@output_option
def migrate_command(*, only_sql: bool, end_sessions: bool, output: str) -> None:
    """Migrate the tables to the version of this auditord, in one transaction.

    Make a backup first, and stop the daemons: the migration is refused while one is connected. With --end-sessions they
    lose their connections; an older daemon is refused when it reconnects, and exits. An interrupted migration changes
    nothing.

    The user of store.url must be allowed to create a schema in the database, as the database's owner is. If the
    daemon runs as another database user, that user needs: USAGE on schema auditord; SELECT, INSERT, UPDATE and DELETE
    on all its tables.
    """
    if only_sql and output == "json":
        raise click.UsageError("--sql prints SQL: leave --output out")
    address = _address()
    if only_sql:
        write(run_async(pending_script, address))
        return
    done = run_async(partial(_migrate, address, end_sessions=end_sessions))
    if output == "json":
        write_json({"database": address.where, "migrated": [script.name for script in done]})
        return
    for script in done:
        say(f"migrated   {script.name}")
    say(f"The database {address.where} is up to date.")


async def _migrate(address: Address, *, end_sessions: bool) -> Sequence[Script]:
    """Migrate, and regularly print the current step. A cancellation also stops the migration in the server."""
    step, began = "", anyio.current_time()

    def begins(script: Script) -> None:
        nonlocal step, began
        step, began = script.name, anyio.current_time()
        say(f"migrating  {step}", err=True)

    async def say_regularly() -> NoReturn:
        while True:
            await anyio.sleep(SAID_EVERY)
            say(f"migrating  {step}: still running after {anyio.current_time() - began:.0f} s", err=True)

    done: Sequence[Script] = ()
    async with anyio.create_task_group() as group:
        group.start_soon(say_regularly)
        done = await migrate_database(address, utc_now, end_sessions=end_sessions, begins=begins)
        group.cancel_scope.cancel()
    return done


@database_command.command("status")
@output_option
def status_command(output: str) -> None:
    """Show the tables' version and size; the exit code is 3 if a migration is due."""
    status = run_async(database_status, _address())
    if output == "json":
        write_json(
            {
                "database": status.where,
                "server_version": status.server_version,
                "applied": [
                    {"version": each.version, "name": each.name, "applied_at": format_time(each.applied_at)}
                    for each in status.applied
                ],
                "pending": [script.name for script in status.pending],
                "records": status.records,
                "bytes": {relation.name: relation.size for relation in status.relations},
            }
        )
    else:
        say(f"database   {status.where}, PostgreSQL {status.server_version}")
        for each in status.applied:
            say(f"applied    {each.name} on {format_time(each.applied_at)}")
        for script in status.pending:
            say(f"pending    {script.name}: run `auditord database migrate`")
        if status.records is not None:
            say(f"records    {status.records}")
        for relation in status.relations:
            per_record = f", {relation.size / status.records:.0f} bytes per record" if status.records else ""
            say(f"size       {relation.name}: {relation.size / 2**20:.1f} MiB{per_record}")
    if status.pending:
        raise SystemExit(3)


@database_command.command("check")
@output_option
def check_command(output: str) -> None:
    """Check every page of the daemon's SQLite files while it runs; the exit code is 1 if one is damaged.

    The same goes for tables, indexes, views and triggers that another program has added or changed.

    For a record store in PostgreSQL it checks only the tables' version: run pg_amcheck on the server for its pages.
    """
    configuration = load_installation().configuration
    files = {configuration.state_dir / SPOOL_FILE: (_SPOOL, SPOOL_MIGRATIONS)}
    server = None
    if is_postgresql(configuration.store.url):
        status = run_async(database_status, address_of(configuration.store))
        if status.pending:
            raise ConfigurationError(f"the database {status.where} is not up to date: run `auditord database migrate`")
        server = status.where
    else:
        files[sqlite_path(configuration.store.url)] = _STORE, STORE_MIGRATIONS
    checked = [_check(path, *each) for path, each in files.items()]
    if output == "json":
        write_json({"database": server, "files": checked})
    else:
        if server is not None:
            say(f"ok         {server} (tables; run pg_amcheck on the server for its pages)")
        for file in checked:
            say(f"{file.state:<10} {file.path}{': the daemon creates it' if file.state == 'missing' else ''}")
            for each in file.findings:
                say(f"           {each}")
            if file.remedy is not None:
                say_lines(file.remedy)
    if any(each.remedy is not None for each in checked):
        raise SystemExit(1)


@database_command.command("copy")
@click.option("--from", "source", metavar="URL", help="Copy this store into the configured one.")
@click.option("--to", "target", metavar="URL", help="Copy the configured store into this one.")
@click.option("--resume", is_flag=True, help="Continue an interrupted copy.")
@output_option
def copy_command(*, source: str | None, target: str | None, resume: bool, output: str) -> None:
    """Copy a record store into an empty one, from SQLite to PostgreSQL or back.

    Copies everything: records with their senders and times, differences, former versions, the queues of senders, and
    the state of plugins. Then compares both stores record by record. The daemon must not run meanwhile.

    URL is sqlite:///path/to/file or postgresql://user@host/database; keep the password in ~/.pgpass. The configured
    store uses its own options.
    """
    if (source is None) == (target is None):
        raise click.UsageError("give either --from or --to; the other store is the configured one")
    configuration = load_installation().configuration
    other, own_store = section_of(source or target or ""), configuration.store
    ends = (other, own_store) if target is None else (own_store, other)
    bar = StepBar()
    with own(configuration.state_dir), bar.shown:
        copied = run_async(partial(copy_store, *ends, resume=resume, now=utc_now, progress=bar))
    if output == "json":
        write_json(copied)
    else:
        records = counted(copied.records, "record is", "records are")
        say(f"{records} in both stores ({copied.written} written now); digest {copied.digest}")


@database_command.command("adopt")
@yes_option
@output_option
def adopt_command(*, yes: bool, output: str) -> None:
    """Accept the record store and the state folder's spool.db as a pair, without changing either.

    Use this if the daemon refuses to start because only one of them was restored or replaced, and the matching file is
    lost. Afterwards collect missing periods again. The daemon must not run meanwhile.
    """
    confirm("Jobs that one of the two lacks stay missing until you collect them again. Continue?", yes=yes)
    configuration = load_installation().configuration
    with own(configuration.state_dir):
        refuse_unfinished(configuration.state_dir)
        run_async(_adopt, configuration)
    collectors = sorted(name for name, config in configuration.collectors.items() if config.enabled)
    if output == "json":
        write_json({"collect_again": collectors})
        return
    say("The record store and spool.db are a pair now. Collectors continue from their checkpoints. Collect again")
    say("what the store lacks, from the time of its copy until now:")
    for name in collectors or ["NAME"]:
        say(f"  auditord collect {name} --from DATE --to DATE")


async def _adopt(configuration: Configuration) -> None:
    async with Spool.opened(configuration.state_dir, utc_now) as spool, open_configured_store(configuration) as store:
        await Pairing(store, spool).adopt()


@database_command.command("end-forwarding")
@yes_option
@output_option
def end_forwarding_command(*, yes: bool, output: str) -> None:
    """Keep no changes by clients for senders any more, after the last sender with from: api or all was removed.

    Else these changes wait for such a sender, and their records are never released to the lake. The daemon must not run
    meanwhile, and no other daemon of this record store may have such a sender.
    """
    configuration = load_installation().configuration
    if names := forwarding_senders(configuration):
        raise click.UsageError(f"{', '.join(names)} forwards changes by clients: remove or disable it first.")
    confirm("Changes that wait are never forwarded, also if a sender is added later. Continue?", yes=yes)
    with own(configuration.state_dir):
        run_async(_end_forwarding, configuration)
    if output == "json":
        write_json({"forwarding": False})
    else:
        say("changes by clients are no longer kept for senders")


async def _end_forwarding(configuration: Configuration) -> None:
    async with open_configured_store(configuration) as store:
        await store.end_outbox()


def _address() -> Address:
    section = load_installation().configuration.store
    if not is_postgresql(section.url):
        raise ConfigurationError(
            f"store.url: {section.url} is not in PostgreSQL; the daemon migrates SQLite files automatically."
        )
    return address_of(section)


class _CheckedFile(msgspec.Struct, frozen=True):
    """The state of an SQLite file; ``findings`` and ``remedy`` are set only if it is damaged or changed."""

    path: str
    state: Literal["ok", "missing", "damaged", "changed"]
    findings: Sequence[str] = ()
    remedy: str | None = None


def _check(path: Path, remedy: str, migrations: str) -> _CheckedFile:
    if not path.exists():
        return _CheckedFile(str(path), "missing")
    if damage := [each.splitlines()[0] for each in find_damage(path)]:
        return _CheckedFile(str(path), "damaged", damage, remedy.format(path=path))
    if changes := find_changes(path, migrations):
        return _CheckedFile(str(path), "changed", changes, _CHANGED)
    return _CheckedFile(str(path), "ok")
