"""A state folder with its store, its backups, and what can be lost of it."""

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Final

import psycopg

from auditord.backup.creation import BackupOptions, Made, make_backup
from auditord.backup.restoring import Restoration, Restored
from auditord.config.model import Configuration, StoreSection
from auditord.ingest import Pairing, StoreSink
from auditord.spool import Spool
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord.testing import make_record
from auditord_hookspecs import Batch, RecordQuery
from auditord_hookspecs.wire import decode_record

NOW: Final = datetime(2026, 11, 22, 1, 2, 3, tzinfo=UTC)


@dataclass
class Steps:
    """Keeps the phases of a backup, and does something once in one of them."""

    during: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    seen: list[str] = field(default_factory=list[str])

    def progressed(self, phase: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        self.seen.append(phase)
        self.during.pop(phase, lambda: None)()


class Site:
    """A state folder with its store."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.state = folder / "state"
        self.place = folder / "backups"
        self.url = url or f"sqlite://{self.state / 'records.db'}"
        self._days = count()

    def now(self) -> datetime:
        return NOW + timedelta(days=next(self._days))

    async def backup(self, steps: Steps | None = None, *, keep: int | None = None, dump: bool = True) -> Made:
        options = BackupOptions(self.place, keep=keep, dump=dump)
        return await make_backup(self.configuration, options, self.now, steps or Steps())

    @asynccontextmanager
    async def opened(self, *, outbox: bool = False) -> AsyncGenerator[tuple[Spool, RecordStore], None]:
        self.state.mkdir(exist_ok=True)
        async with (
            Spool.opened(self.state, lambda: NOW) as spool,
            open_store(self.url, counted_keys=(), outbox=outbox) as store,
        ):
            await Pairing(store, spool).advance_both()
            yield spool, store

    async def restore(self, *, force: bool = False, steps: Steps | None = None) -> Restored:
        return await Restoration.verify(self.place, self.configuration, self.now, steps or Steps()).restore(force=force)

    @property
    def configuration(self) -> Configuration:
        return Configuration(state_dir=self.state, store=StoreSection(url=self.url))

    # -- a source, and what a collector makes of it ------------------------------------------------------------------

    async def collect(self, jobs: int) -> None:
        """Read a source that has had so many jobs until now, a job at a time."""
        async with self.opened() as (spool, _):
            for number in range((await spool.checkpoint("slurm") or 0) + 1, jobs + 1):
                name = f"job-{number}"
                if not await spool.find_seen("slurm", [name]):
                    seen = {name: NOW + timedelta(days=999)}
                    await spool.enqueue("slurm", Batch([make_record(name)], checkpoint=number, seen=seen), ["local"])

    async def deliver(self, most: int = 1_000) -> None:
        """Let so many entries reach the store."""
        async with self.opened() as (spool, store):
            claimed = await spool.claim("local", most)
            await StoreSink(store, lambda: NOW, pairing=Pairing(store, spool)).deliver([each.entry for each in claimed])
            await spool.settle("local", [each.entry_id for each in claimed], {})

    async def records(self) -> list[str]:
        """The ids in the store, in their order."""
        async with open_store(self.url, counted_keys=()) as store, store.stream(RecordQuery()) as pages:
            return sorted([decode_record(document).record_id async for page in pages for document in page])

    # -- disasters ---------------------------------------------------------------------------------------------------

    def lose_store(self) -> None:
        if self.url.startswith("sqlite"):
            _remove(self.state / "records.db")
        else:
            with psycopg.connect(self.url) as connection:
                connection.execute("DROP SCHEMA auditord CASCADE")

    def lose_spool(self) -> None:
        _remove(self.state / "spool.db")


def _remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def ids(path: Path, query: str) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {value for (value,) in connection.execute(query)}


QUEUED: Final = "SELECT record_id FROM queue"
STORED: Final = "SELECT record_id FROM records"
WAITING: Final = (
    "SELECT record_id FROM records WHERE position > (SELECT position FROM consumers WHERE name = 'senders')"
)
"""Those that senders have not taken over."""
