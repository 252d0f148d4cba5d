"""Sync and release records in a process of its own, and be killed at the step whose number is given.

    python killed.py LAKE DAEMON STORE MONTH STEP

Records of earlier months than MONTH are released, as partitions number them.

Steps are what leaves a trace: each synchronisation of a file, each object that is begun, each commit of the catalog,
each transaction of the record store, before and after it.
"""

import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from pyiceberg.io.pyarrow import PyArrowFile
from sqlalchemy.orm import Session

from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.queries import LakeReader
from auditord.lake.syncing import release, sync
from auditord.lake.table import LakeTable
from auditord.store.lake import LakeOvertaken
from auditord.store.lake_store import LakeStore
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from tests.contract.store.feeds import settled
from tests.s3_server import BUCKET, s3_properties

LOG: "logging.LoggerAdapter[logging.Logger]" = logging.LoggerAdapter(logging.getLogger(__name__))


class Steps:
    """Counts steps, and dies at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        """Be killed, if it is time."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with a step before and behind it."""

        def stepping(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = call(*args, **kwargs)
            self.step()
            return result

        return stepping

    def around_async(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same for a coroutine function."""

        async def stepping(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = await call(*args, **kwargs)
            self.step()
            return result

        return stepping


def lake_in(folder: Path) -> LakeTable:
    """A lake whose catalog is in a folder; so are its files, unless LAKE_TEST_S3 names an object store."""
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = os.environ.get("LAKE_TEST_S3")
    warehouse = folder.as_uri() if endpoint is None else f"s3://{BUCKET}/{folder.parent.name}"
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse}
    return LakeTable(catalog | ({} if endpoint is None else s3_properties(endpoint)), warehouse)


Opened: TypeAlias = AbstractAsyncContextManager[tuple[RecordStore, LakeTable]]
"""A store, and the lake."""


@asynccontextmanager
async def opened(folder: Path, daemon: str, url: str) -> AsyncGenerator[tuple[RecordStore, LakeTable], None]:
    """A store that can read the records which it has released, and the lake."""
    table = lake_in(folder)
    reader = LakeReader(table, daemon, DuckDb(EngineLimits(256 << 20, 1, folder / f"spill-{daemon}")))
    async with open_store(url, counted_keys=()) as store:
        store.lake = reader
        yield store, table
    reader.close()
    table.close()


async def run(store: RecordStore, table: LakeTable, daemon: str, month: int, *, waits: bool = True) -> int:
    """Sync what has changed, release records of earlier months, put small files together; returns how many left.

    Args:
        store: has the records.
        table: of the lake.
        daemon: the name of the store.
        month: the first one that stays, as partitions number it.
        waits: until the feed is final: other transactions of the server keep it from that.
    """
    if waits:
        await settled(store)
    await sync(store, table, daemon, LOG)
    released = await release(store, table, daemon, lambda each: each[0] is not None and each[0] < month)
    with suppress(LakeOvertaken):
        table.compact(daemon)
    return released


async def _main(folder: Path, daemon: str, url: str, month: int) -> None:
    async with opened(folder, daemon, url) as (store, table):
        second = datetime.now(UTC).second
        await store.recall([f"job-{number:03}{second:02}" for number in range(50)])
        await run(store, table, daemon, month, waits=False)
        keep = timedelta(seconds=float(os.environ.get("LAKE_TEST_KEEP", "86400")))
        with suppress(LakeOvertaken):
            now = datetime.now(UTC)
            table.expire(now - keep, (await store.lake_state()).snapshot_id)
            table.delete_strays(now - timedelta(hours=1))


def main() -> None:
    """Do it."""
    folder, daemon, url, month, last = sys.argv[1:]
    steps = Steps(int(last))
    os.fsync = steps.around(os.fsync)
    patched: Any = Session
    patched.commit = steps.around(Session.commit)
    files: Any = PyArrowFile  # of an object store
    files.create = steps.around(PyArrowFile.create)
    store: Any = LakeStore
    for name in ("begin_lake", "fill_lake", "lake_batch", "release", "recall", "forget_recalled"):
        setattr(store, name, steps.around_async(getattr(store, name)))
    anyio.run(_main, Path(folder), daemon, url, int(month))


if __name__ == "__main__":
    main()
