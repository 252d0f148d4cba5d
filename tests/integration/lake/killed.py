"""Sync records to a lake in a process of its own, and be killed at the step whose number is given.

    python killed.py LAKE DAEMON STORE STEP

Steps are what leaves a trace: each synchronisation of a file, each object that is begun, each commit of the catalog,
each transaction of the record store, before and after it.
"""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from pyiceberg.io.pyarrow import PyArrowFile
from sqlalchemy.orm import Session

from auditord.lake.syncing import sync
from auditord.lake.table import LakeTable
from auditord.store.archived import ArchiveOvertaken
from auditord.store.opening import open_store
from auditord.store.syncing_store import SyncingStore
from tests.integration.archive.killed import Steps
from tests.s3_server import BUCKET, s3_properties

LOG: "logging.LoggerAdapter[logging.Logger]" = logging.LoggerAdapter(logging.getLogger(__name__))


def lake_in(folder: Path) -> LakeTable:
    """A lake whose catalog is in a folder; so are its files, unless LAKE_TEST_S3 names an object store."""
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = os.environ.get("LAKE_TEST_S3")
    warehouse = folder.as_uri() if endpoint is None else f"s3://{BUCKET}/{folder.parent.name}"
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse}
    return LakeTable(catalog | ({} if endpoint is None else s3_properties(endpoint)), warehouse)


async def run(folder: Path, daemon: str, url: str) -> None:
    """Sync what has changed, and put small files together."""
    table = lake_in(folder)
    async with open_store(url, counted_keys=()) as store:
        await sync(store, table, daemon, LOG)
        with suppress(ArchiveOvertaken):
            table.compact(daemon)
    table.close()


def main() -> None:
    """Do it."""
    folder, daemon, url, last = sys.argv[1:]
    steps = Steps(int(last))
    os.fsync = steps.around(os.fsync)
    patched: Any = Session
    patched.commit = steps.around(Session.commit)
    files: Any = PyArrowFile  # of an object store
    files.create = steps.around(PyArrowFile.create)
    store: Any = SyncingStore
    for name in ("begin_lake", "fill_lake", "lake_batch"):
        setattr(store, name, steps.around_async(getattr(store, name)))
    anyio.run(run, Path(folder), daemon, url)


if __name__ == "__main__":
    main()
