"""Archive records in a process of its own, and be killed at the step whose number is given.

    python killed.py FOLDER STORE BEFORE STEP

Steps are what leaves a trace: each synchronisation or deletion of a file, each commit of a catalog, each transaction of
the record store, before and after it.
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy.orm import Session

from auditord.archive.archiver import Archiver
from auditord.archive.reading import ArchiveReader
from auditord.archive.table import ArchiveTable
from auditord.store.archiving_store import ArchivingStore
from auditord.store.opening import open_store


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


async def archive(folder: Path, url: str, before: datetime) -> None:
    """Archive what stopped before an instant."""
    table = ArchiveTable(f"sqlite:///{folder}/catalog.db", f"file://{folder}/archive")
    async with open_store(url, counted_keys=("site_id",)) as store:
        store.archive = ArchiveReader(table)
        await Archiver(store, table).run(before)
    table.close()


def main() -> None:
    """Do it."""
    folder, url, before, last = sys.argv[1:]
    steps = Steps(int(last))
    os.fsync = steps.around(os.fsync)
    patched: Any = Session
    patched.commit = steps.around(Session.commit)
    path: Any = Path
    path.unlink = steps.around(Path.unlink)
    store: Any = ArchivingStore
    for name in ("begin_archive", "publish_chunk", "forget_removals"):
        setattr(store, name, steps.around_async(getattr(store, name)))
    anyio.run(archive, Path(folder), url, datetime.fromisoformat(before))


if __name__ == "__main__":
    main()
