"""``auditord database``: make, update and look at the tables of the record store in PostgreSQL."""

import json
from typing import Any

import click

from auditord.cli.asynchronous import run_async
from auditord.cli.clock import utc_now
from auditord.cli.installation import load_installation
from auditord.config.store_url import is_postgresql
from auditord.database.postgres.address import Address, address_of
from auditord.errors import ConfigurationError
from auditord.store.postgres.administration import DatabaseStatus, database_status, migrate_database, pending_script
from auditord_hookspecs.wire import format_time


@click.group("database")
def database_command() -> None:
    """Make or update the tables of the record store in PostgreSQL, and look at them.

    A record store in SQLite needs nothing of this: it migrates itself.
    """


@database_command.command("migrate")
@click.option("--sql", "only_sql", is_flag=True, help="Change nothing; print what psql would have to run.")
def migrate_command(*, only_sql: bool) -> None:
    """Bring the tables up to the version of this auditord: all steps in one transaction, or none.

    Make a backup first. The user of store.url must be allowed to create a schema in the database (its owner is). If
    another one runs the daemon, that one needs: USAGE on schema auditord; SELECT, INSERT, UPDATE and DELETE on all its
    tables.
    """
    address = _address()
    if only_sql:
        click.echo(run_async(pending_script, address), nl=False)
        return
    done = run_async(migrate_database, address, utc_now)
    for script in done:
        click.echo(f"migrated   {script.name}")
    click.echo(f"The database {address.where} is up to date.")


@database_command.command("status")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status_command(output: str) -> None:
    """Say which version the tables have and what they occupy; the exit code is 3 if a migration is due."""
    status = run_async(database_status, _address())
    if output == "json":
        click.echo(json.dumps(_as_json(status), indent=2))
    else:
        _print(status)
    if status.pending:
        raise SystemExit(3)


def _address() -> Address:
    section = load_installation().configuration.store
    if not is_postgresql(section.url):
        raise ConfigurationError(f"store.url: {section.url} is not in PostgreSQL; SQLite files migrate themselves.")
    return address_of(section)


def _as_json(status: DatabaseStatus) -> dict[str, Any]:  # Any: JSON
    return {
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


def _print(status: DatabaseStatus) -> None:
    click.echo(f"database   {status.where}, PostgreSQL {status.server_version}")
    for each in status.applied:
        click.echo(f"applied    {each.name} on {format_time(each.applied_at)}")
    for script in status.pending:
        click.echo(f"pending    {script.name}: run `auditord database migrate`")
    if status.records is not None:
        click.echo(f"records    {status.records}")
    for relation in status.relations:
        per_record = f", {relation.size / status.records:.0f} bytes per record" if status.records else ""
        click.echo(f"size       {relation.name}: {relation.size / 2**20:.1f} MiB{per_record}")
