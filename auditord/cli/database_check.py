"""``auditord database check``: whether the files of this daemon are whole, and what to do about one that is not."""

from pathlib import Path

import click

from auditord.cli.asynchronous import run_async
from auditord.cli.installation import load_installation
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.database import findings
from auditord.database.postgres.address import address_of
from auditord.errors import ConfigurationError
from auditord.spool.spool import FILE as SPOOL_FILE
from auditord.store.postgres.administration import database_status
from auditord_hookspecs.terminal import say

_SALVAGE = "sqlite3 {path} .recover | sqlite3 {path}.recovered"

_STORE = f"""\
stop the daemon, then copy {{path}} away, with its -wal and -shm. Put a backup in its place, or what can be salvaged:
  {_SALVAGE}
Records that are missing then come back with `auditord collect INSTANCE --from DATE` (nothing counts twice)."""

_SPOOL = f"""\
stop the daemon, then copy {{path}} away, with its -wal and -shm. Put a backup in its place, or what can be salvaged:
  {_SALVAGE}
Without either, remove it: collectors read their sources again from earliest_datetime (nothing counts twice), but what
clients posted while the record store was away, and the quarantine, are lost with it."""


@click.command("check")
def check_command() -> None:
    """Read every page of the daemon's SQLite files, beside it; the exit code is 1 if one is damaged.

    Of a record store in PostgreSQL only the tables' version is looked at: pg_amcheck, on the server, reads its pages.
    """
    configuration = load_installation().configuration
    files = {configuration.state_dir / SPOOL_FILE: _SPOOL}
    if is_postgresql(configuration.store.url):
        _check_server()
    else:
        files[sqlite_path(configuration.store.url)] = _STORE
    damaged = [path for path, remedy in files.items() if not _is_whole(path, remedy)]
    if damaged:
        raise SystemExit(1)


def _check_server() -> None:
    status = run_async(database_status, address_of(load_installation().configuration.store))
    if status.pending:
        raise ConfigurationError(f"the database {status.where} is not up to date: run `auditord database migrate`")
    say(f"ok         {status.where} (tables; run pg_amcheck on the server for its pages)")


def _is_whole(path: Path, remedy: str) -> bool:
    if not path.exists():
        say(f"missing    {path}: the daemon makes it")
        return True
    found = findings(path)
    if found:
        say(f"damaged    {path}")
        for each in found:
            say(f"           {each.splitlines()[0]}")
        say(remedy.format(path=path))
    else:
        say(f"ok         {path}")
    return not found
