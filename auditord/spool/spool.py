"""The daemon's own SQLite file: send-queue, checkpoints and quarantine, so that they commit together."""

import hashlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from auditord.database import Database
from auditord.database.memory import Occasion, PluginMemory, sqlite_memory
from auditord.spool import memory, quarantine, queue, values
from auditord.spool.encoding import Operation, SetAside, decode_entry, entry_row, prepare, printable
from auditord.spool.values import Enqueued, Generation, LastRun, QuarantineEntry, Queued, SpoolStatistics, Stage
from auditord_hookspecs import Batch, Entry, InvalidRecord, Provenance, RunReport, Transform

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FILE: Final = "spool.db"
MIGRATIONS: Final = "auditord.spool"
MAX_BODIES: Final = 10_000
MAX_BODY_BYTES: Final = 256 * 1024 * 1024


class Spool:
    """Everything between a source and a destination that must survive the process.

    Every method raises :class:`auditord.errors.StoreUnavailable` when the file cannot be used (a full disk, say); then
    nothing of what it was to do has happened. Use :meth:`opened` or :meth:`opened_read_only`.

    Args:
        max_bodies: how many refused bodies are kept.
        max_body_bytes: how many bytes of them.
        transform: what every record meets before it is kept.
        occupied: the senders for which something waits.
        generation: the one that is kept; nobody else writes to the file.
    """

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        generation: Generation,
        *,
        max_bodies: int = MAX_BODIES,
        max_body_bytes: int = MAX_BODY_BYTES,
        transform: Transform | None = None,
        occupied: Iterable[str] = (),
    ) -> None:
        self._database = database
        self._now = now
        self._max_bodies = max_bodies
        self._max_body_bytes = max_body_bytes
        self._transform = transform
        self._listeners: dict[str, Callable[[], None]] = {}
        self._occupancy = queue.Occupancy(occupied)
        self.occupied: Final = self._occupancy.senders
        """The senders for which something may wait, now and later; asks no database."""
        self._generation = self._reached = generation

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        state_dir: Path,
        now: Callable[[], datetime],
        *,
        max_page_count: int | None = None,
        max_bodies: int = MAX_BODIES,
        max_body_bytes: int = MAX_BODY_BYTES,
        transform: Transform | None = None,
    ) -> AsyncGenerator["Spool", None]:
        """The spool of a state folder, which the caller owns (:func:`auditord.spool.own`)."""
        database = Database.open(state_dir / FILE, MIGRATIONS, max_page_count=max_page_count)
        limits = {"max_bodies": max_bodies, "max_body_bytes": max_body_bytes}
        try:
            occupied, generation = await database.read(queue.senders), await database.read(queue.generation)
            yield cls(database, now, generation, **limits, transform=transform, occupied=occupied)
        finally:
            await database.close()

    @classmethod
    @asynccontextmanager
    async def opened_read_only(cls, state_dir: Path, now: Callable[[], datetime]) -> AsyncGenerator["Spool", None]:
        """The spool of a state folder that a running daemon may own; only the reading methods work."""
        database = Database.open_read_only(state_dir / FILE, MIGRATIONS)
        try:
            yield cls(database, now, await database.read(queue.generation))
        finally:
            await database.close()

    @classmethod
    @asynccontextmanager
    async def opened_beside(cls, state_dir: Path, now: Callable[[], datetime]) -> AsyncGenerator["Spool", None]:
        """The spool beside a daemon that may own it, for what plugins keep; migrates nothing of a daemon's.

        Raises:
            SchemaMismatch: it is of another version.
        """
        with suppress(OSError):  # opening a file in it says better what is wrong
            await anyio.Path(state_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
        if (state_dir / FILE).exists():
            await Database.open_read_only(state_dir / FILE, MIGRATIONS).close()
        async with cls.opened(state_dir, now) as spool:
            yield spool

    @property
    def state_dir(self) -> Path:
        """The folder that it lies in."""
        return self._database.path.parent

    # -- in ---------------------------------------------------------------------------------------------------------

    async def enqueue(
        self, task: str, batch: Batch, destinations: Sequence[str], operation: Operation = "insert"
    ) -> Enqueued:
        """Keep a batch in one transaction: its records for every destination, quarantine, checkpoint, memory.

        Records that are invalid are quarantined alone.

        Args:
            task: the collector.
            batch: what it made.
            destinations: the senders that forward the records.
            operation: whether they are new or replace what is stored of the same runs.

        Raises:
            TypeError: checkpoint or pending values are no JSON; nothing is kept.
        """
        now = self._now()
        prepared = await anyio.to_thread.run_sync(prepare, task, batch, now, operation, self._transform)
        queued = await self._queue(destinations, memory.keep, task, prepared, destinations, now)
        return Enqueued(queued, len(prepared.set_aside), prepared.oversized)

    async def accept(self, entries: Sequence[Entry], provenance: Provenance, destinations: Sequence[str]) -> None:
        """Queue what a client sent, on which the transforms have acted; all of it or, where one is invalid, nothing.

        Raises:
            InvalidRecord: an entry breaks a rule.
        """
        named, now = [replace(entry, provenance=provenance) for entry in entries], self._now()
        rows = await anyio.to_thread.run_sync(lambda: [entry_row(entry, now) for entry in named])
        await self._queue(destinations, queue.put, rows, destinations)

    async def take_over(self, entries: Sequence[tuple[int, Entry]], destinations: Sequence[str]) -> None:
        """Queue numbered entries of the record store's outbox, in order; leave out what was taken over before.

        Call :meth:`forget_taken` when they are not in the outbox any more.
        """
        now = self._now()
        rows = [(number, entry_row(entry, now)) for number, entry in entries]
        await self._queue(destinations, memory.take_over, rows, destinations)

    async def forget_taken(self, numbers: Collection[int]) -> None:
        """Forget the numbers of entries that were taken over and are not in the outbox any more."""
        await self._write(memory.forget_taken, numbers)

    async def waiting(self, record_ids: Collection[str], senders: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        """The waiting entries of the records, by id, in order; what comes later must wait behind them."""
        rows = await self._read(queue.waiting, record_ids, senders)
        found: dict[str, list[Entry]] = {}
        for row in rows:
            with suppress(InvalidRecord):  # set aside when it is claimed
                found.setdefault(row.record_id, []).append(decode_entry(row))
        return found

    async def _queue(
        self, destinations: Sequence[str], work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts
    ) -> T:
        self._occupancy.queueing(destinations)
        done = await self._write(work, *args)
        for sender in destinations:
            if sender in self._listeners:
                self._listeners[sender]()
        return done

    async def _write(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> T:
        return await self._database.write(lambda connection: work(connection, *args))

    async def _read(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> T:
        return await self._database.read(lambda connection: work(connection, *args))

    def on_queued(self, sender: str, wake: Callable[[], None]) -> None:
        """Have a sender woken whenever something is queued for it."""
        self._listeners[sender] = wake

    # -- out --------------------------------------------------------------------------------------------------------

    async def claim(self, sender: str, limit: int) -> Sequence[Queued]:
        """The oldest entries whose time has come, in order; never one before an earlier one of its record.

        They stay until they are settled, so one loop at a time may send for a sender.
        """
        if sender not in self.occupied:
            return []
        rows = await self._read(queue.claim, sender, limit, self._now())
        if not rows:
            await self.settle(sender, [], {})  # which looks for what is left
        entries, unreadable = queue.decoded(rows)
        if unreadable:
            await self.settle(sender, [], unreadable)
        return entries

    async def settle(self, sender: str, delivered: Sequence[int], refused: Mapping[int, str]) -> None:
        """Forget delivered entries; put refused ones into quarantine, each with its reason."""
        now, mark, reached = self._now(), self._occupancy.mark(sender), self._reached

        def work(connection: sqlite3.Connection) -> bool:
            queue.set_generation(connection, reached.number)
            return queue.settle(connection, sender, delivered, refused, now)

        if not await self._database.write(work):
            self._occupancy.empty(sender, mark)
        self._generation = reached

    async def postpone(self, until: Mapping[int, datetime]) -> None:
        """Count a failed attempt of each entry, which is not to be tried before the given instant."""
        await self._write(queue.postpone, until)

    async def hurry(self, sender: str) -> None:
        """Let a sender try everything that waits for another attempt, now."""
        await self._write(queue.hurry, sender)

    async def next_due(self, sender: str) -> datetime | None:
        """The time at which the first entry that has failed may be tried again; None if there is none."""
        return await self._read(queue.next_due, sender) if sender in self.occupied else None

    # -- memory -----------------------------------------------------------------------------------------------------

    async def checkpoint(self, task: str) -> Any:  # Any: the JSON that the collector stored
        """The checkpoint of a collector, or None."""
        return await self._read(memory.load, task)

    async def seen(self, task: str, keys: Collection[str]) -> frozenset[str]:
        """The keys among these that a collector asked to remember, and that have not expired."""
        now = self._now()
        return await self._read(memory.seen, task, keys, now)

    async def pending(self, task: str) -> Mapping[str, Any]:  # Any: the JSON that the collector stored
        """The values that a collector keeps between runs, by key."""
        return await self._read(memory.pending, task)

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """The memory of a plugin of records elsewhere; see :meth:`auditord.store.protocol.RecordStore.memory`."""
        del occasion  # one daemon uses the file
        return sqlite_memory(self._database, task, waiting)

    async def record_run(self, report: RunReport) -> None:
        """Keep how a run ended, beside the last few of its instance."""
        await self._write(memory.record_run, report)

    async def last_runs(self) -> Mapping[str, Sequence[LastRun]]:
        """The last runs of every instance that has run, the newest first."""
        return await self._database.read(memory.last_runs)

    # -- quarantine -------------------------------------------------------------------------------------------------

    async def keep_refused_body(self, body: bytes, reason: str, provenance: Provenance, route: str) -> None:
        """Keep a body that was answered 400; when there are too many, the oldest go, counted."""
        digest = hashlib.blake2b(route.encode(errors="replace") + b"\0" + body, digest_size=16).hexdigest()
        thing = SetAside(
            Stage.BODY, "api", digest, body, printable(reason), provenance=provenance, route=printable(route)
        )
        await self._write(quarantine.keep_body, thing, self._now(), self._max_bodies, self._max_body_bytes)

    async def quarantine_list(
        self, task: str | None = None, *, after: int = 0, limit: int = 1_000
    ) -> Sequence[QuarantineEntry]:
        """Entries in the order of their numbers; the last number is the next call's ``after``."""
        return await self._read(quarantine.listed, task, after, limit)

    async def quarantine_summaries(
        self, task: str | None = None, *, after: int = 0, limit: int = 1_000
    ) -> Sequence[QuarantineEntry]:
        """The entries of the quarantine without their raw input, which may be large: ``raw`` is empty."""
        return await self._read(quarantine.summaries, task, after, limit)

    async def quarantine_reasons(self, *, newest: int = 10_000, limit: int = 20) -> Sequence[values.QuarantineReason]:
        """The most frequent reasons of so many of the newest entries."""
        return await self._read(quarantine.reasons, newest, limit)

    async def quarantine_get(self, quarantine_id: int) -> QuarantineEntry | None:
        """One entry."""
        return await self._read(quarantine.get, quarantine_id)

    async def quarantine_held(self, tasks: Collection[str], source_ids: Collection[str]) -> Collection[str]:
        """Those of some jobs (by their ids at the source) or records that are in quarantine for one of the tasks."""
        return await self._read(quarantine.held, tasks, source_ids)

    async def quarantine_discard(self, ids: Sequence[int]) -> int:
        """Forget entries; returns how many there were."""
        return await self._write(quarantine.discard, ids)

    async def quarantine_release(
        self, quarantine_id: int, entries: Sequence[Entry], destinations: Sequence[str], *, transformed: bool
    ) -> None:
        """Queue what a retry made of an entry (perhaps nothing) and forget the entry, in one transaction.

        Args:
            quarantine_id: which one.
            entries: what is queued.
            destinations: the senders that forward it.
            transformed: whether the transforms have acted on it before.

        Raises:
            InvalidRecord: it still breaks a rule; the entry stays.
        """
        now, transform = self._now(), None if transformed else self._transform
        rows = [entry_row(entry, now, transform) for entry in entries]
        await self._queue(destinations, memory.release, quarantine_id, rows, destinations)

    # -- the record store -------------------------------------------------------------------------------------------

    async def generation(self) -> Generation:
        """Return the generation that the file has for certain."""
        return self._generation

    def reach(self, number: int) -> None:
        """Note that the store has a generation; :meth:`settle` or :meth:`keep_generation` writes it to the file."""
        self._reached = replace(self._reached, number=number)

    async def keep_generation(self) -> None:
        """Write the generation that the store has to the file."""
        reached = self._reached
        await self._write(queue.set_generation, reached.number)
        self._generation = reached

    # -- health -----------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Return if something could be kept now."""
        await self._database.write(quarantine.probe)

    async def give_room_back(self) -> None:
        """See :meth:`auditord.database.Database.give_room_back`; after an outage the file would stay large."""
        await self._database.give_room_back()

    async def statistics(self) -> SpoolStatistics:
        """Count what the spool holds."""
        return await self._database.read(memory.statistics)
