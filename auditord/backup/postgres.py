"""Dump and restore of a record store in PostgreSQL by PostgreSQL's own programs.

The password is passed in the environment, never on the command line, which every user can read.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from psycopg.pq import Conninfo

from auditord.contexts.instances import CommandRunner
from auditord.database.durable_files import sync
from auditord.database.postgres.address import Address

DUMP: Final = "records.dump"

_LONGEST: Final = timedelta(days=2)

RECIPE: Final = """\
The record store in {where} is not in this backup. Dump it now, after the spool and not before:
  pg_dump --format=custom --schema=auditord --no-owner --no-privileges --file={folder}/records.dump …
or archive its WAL (archive_mode, pg_basebackup), and restore to a moment after {made_at}.
`auditord backup --dump` does both as of one moment."""


async def dump(address: Address, snapshot: str, target: Path) -> None:
    """Dump the schema as of an exported snapshot to a new file, which is synchronised to disk.

    Raises:
        CommandFailed: pg_dump is not installed, too old for the server, or failed.
    """
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    options = ("--format=custom", "--schema=auditord", "--no-owner", "--no-privileges")
    command = ["pg_dump", *options, f"--snapshot={snapshot}", f"--file={target}"]
    await CommandRunner().run_command(command, timeout=_LONGEST, environment=environment(address))
    sync(target)


async def load_dump(address: Address, dumped: Path) -> None:
    """Restore the schema of a dump in one transaction.

    Raises:
        CommandFailed: pg_restore is not installed or failed; nothing has changed.
    """
    command = ["pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    where = environment(address)
    command = [*command, f"--dbname={where.get('PGDATABASE', 'postgres')}", str(dumped)]
    await CommandRunner().run_command(command, timeout=_LONGEST, environment=where)


def environment(address: Address) -> Mapping[str, str]:
    """Return libpq's environment variables for a database. The configuration overrides this process's variables."""
    wanted, found = address.parameters(), dict[str, str]()
    for option in Conninfo.get_defaults():
        value = wanted.get(option.keyword.decode()) or (option.val or b"").decode()
        if option.envvar is not None and value:
            found[option.envvar.decode()] = str(value)
    return found
