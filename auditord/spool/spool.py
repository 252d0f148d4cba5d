"""The daemon's own SQLite file: send-queue, checkpoints and quarantine, which commit together."""

import dataclasses
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from auditord.database import Database
from auditord.database.instants import EPOCH, MICROSECOND, from_micros, to_micros
from auditord.database.memory import Occasion, PluginMemory, sqlite_memory
from auditord.spool import tables
from auditord.spool.encoding import (
    Enqueued,
    Generation,
    LastRun,
    Operation,
    QuarantineEntry,
    QuarantineReason,
    Queued,
    SetAside,
    SpoolStatistics,
    Stage,
    decode_entry,
    encode_limits,
    entry_row,
    prepare,
    printable,
)
from auditord_hookspecs import (
    Batch,
    Entry,
    InvalidRecord,
    Provenance,
    Role,
    RunReport,
)

if TYPE_CHECKING:  # brings the kinds and their models
    from auditord_hookspecs import Transform

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FILE: Final = "spool.db"
MIGRATIONS: Final = "auditord.spool"
MAX_BODIES: Final = 10_000
"""The most refused bodies to keep."""

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of refused bodies to keep."""

# Without untried entries, which are due at once, and without entries that wait behind an earlier one.
_NEXT_DUE: Final = """
    SELECT min(due_at) FROM queue AS entry
    WHERE sender = ?1 AND attempts > 0 AND NOT EXISTS (
        SELECT 1 FROM queue AS earlier
        WHERE earlier.sender = ?1 AND earlier.record_id IN (entry.record_id, entry.alternate_id)
            AND earlier.entry_id < entry.entry_id
    )
"""

# One parameter for all keys, because SQLite limits their number.
_SEEN: Final = """
    SELECT key FROM seen WHERE task = ? AND expires_at > ? AND key IN (SELECT value FROM json_each(?))
"""

_LOAD: Final = "SELECT value FROM checkpoint WHERE task = ?"

_USE_PREFIX: Final = """
    INSERT INTO prefix VALUES (?, ?, NULL)
    ON CONFLICT (task) DO UPDATE SET prefix = excluded.prefix, since = ? WHERE prefix.prefix <> excluded.prefix
"""

_QUARANTINE_GET: Final = """
    SELECT quarantine_id, stage, task, source_id, raw, reason, quarantined_at, occurrences, operation, alternate_id,
           received_at, principal, agent, route, limits
    FROM quarantine WHERE quarantine_id = ?
"""

_SUMMARIES: Final = """
    SELECT quarantine_id, stage, task, source_id, x'' AS raw, reason, quarantined_at, occurrences, operation,
           alternate_id, received_at, principal, agent, route, limits
    FROM quarantine WHERE (?1 IS NULL OR task = ?1) AND quarantine_id > ?2 ORDER BY quarantine_id LIMIT ?3
"""

_REASONS: Final = """
    SELECT stage, task, reason, count(*) AS entries
    FROM (SELECT stage, task, reason FROM quarantine ORDER BY quarantine_id DESC LIMIT ?1)
    GROUP BY stage, task, reason ORDER BY entries DESC, stage, task, reason LIMIT ?2
"""

_HELD: Final = """
    SELECT DISTINCT source_id FROM quarantine
    WHERE stage IN ('job', 'record', 'entry') AND task IN (SELECT value FROM json_each(?1))
        AND source_id IN (SELECT value FROM json_each(?2))
"""


class Occupancy:
    """The senders whose queues may have entries. A queue that has entries is never missing here.

    A writer calls :meth:`queueing` before it queues something. A queue counts as empty again when a write transaction
    has seen it empty and no writer has called :meth:`queueing` since that write was requested. (Writes run in the order
    of their requests.)
    """

    def __init__(self, senders: Iterable[str] = ()) -> None:
        self._occupied = set(senders)
        self.senders: Final[AbstractSet[str]] = self._occupied
        """A live view of these senders."""
        self._queueings = Counter[str]()

    def queueing(self, senders: Iterable[str]) -> None:
        """Note that entries are about to be queued."""
        for sender in senders:
            self._occupied.add(sender)
            self._queueings[sender] += 1

    def mark(self, sender: str) -> int:
        """Return a mark for :meth:`empty`. Call this before the write that looks for remaining entries."""
        return self._queueings[sender]

    def empty(self, sender: str, mark: int) -> None:
        """Note that the write requested after the mark has seen the queue empty."""
        if self._queueings[sender] == mark:
            self._occupied.discard(sender)


class Spool:
    """The durable state between sources and destinations.

    Every method raises :class:`auditord.errors.StoreUnavailable` if the file cannot be used (such as on a full disk),
    and then has had no effect. Use :meth:`opened` or :meth:`opened_read_only`.

    Args:
        transform: changes every record before it is stored.
        occupied: the senders whose queues have entries.
        generation: the generation in the file, to which no other process writes.
    """

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        generation: Generation,
        *,
        transform: "Transform | None" = None,
        occupied: Iterable[str] = (),
    ) -> None:
        self._database = database
        self._now = now
        self._transform = transform
        self._listeners: dict[str, Callable[[], None]] = {}
        self._prefixes: dict[str, str] = {}  # in the file
        self._occupancy = Occupancy(occupied)
        self.occupied: Final = self._occupancy.senders
        """A live view of the senders whose queues may have entries; needs no query."""
        self.generation = self.reached = generation
        """The generation in the file, and that of the store, which :meth:`settle` and :meth:`keep_generation` write."""

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, state_dir: Path, now: Callable[[], datetime], *, transform: "Transform | None" = None
    ) -> AsyncGenerator["Spool", None]:
        """Yield the spool of a state folder that the caller owns (:func:`auditord.spool.own`)."""
        database = Database.open(state_dir / FILE, MIGRATIONS)
        try:
            occupied, generation = await database.read(tables.senders), await database.read(tables.generation)
            yield cls(database, now, generation, transform=transform, occupied=occupied)
        finally:
            await database.close()

    @classmethod
    @asynccontextmanager
    async def opened_read_only(cls, state_dir: Path, now: Callable[[], datetime]) -> AsyncGenerator["Spool", None]:
        """Yield the spool of a state folder that a daemon may own. Only methods that read can be used."""
        database = Database.open_read_only(state_dir / FILE, MIGRATIONS)
        try:
            yield cls(database, now, await database.read(tables.generation))
        finally:
            await database.close()

    @classmethod
    @asynccontextmanager
    async def opened_beside(cls, state_dir: Path, now: Callable[[], datetime]) -> AsyncGenerator["Spool", None]:
        """Yield the spool beside a daemon that may own it, for the memory of plugins. An existing file is not migrated.

        Raises:
            SchemaMismatch: the file has another version.
        """
        with suppress(OSError):  # opening the file reports the fault better
            await anyio.Path(state_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
        if (state_dir / FILE).exists():
            await Database.open_read_only(state_dir / FILE, MIGRATIONS).close()
        async with cls.opened(state_dir, now) as spool:
            yield spool

    @property
    def state_dir(self) -> Path:
        """The folder of the file."""
        return self._database.path.parent

    # -- in ---------------------------------------------------------------------------------------------------------

    async def enqueue(
        self, task: str, batch: Batch, destinations: Sequence[str], operation: Operation = "insert"
    ) -> Enqueued:
        """Store a batch of the collector ``task`` in one transaction.

        Valid records are queued for every destination, and invalid ones are quarantined. Quarantined jobs, checkpoint
        and memory are stored as well. With the operation ``replace``, the records replace stored records of the same
        runs.

        Raises:
            TypeError: the batch has wrong types, or values that are not JSON; nothing is stored.
        """
        now = self._now()
        prepared = await anyio.to_thread.run_sync(prepare, task, batch, now, operation, self._transform)
        occupied = destinations if prepared.rows else ()  # most batches of a quiet source have only a checkpoint
        queued = await self._queue(occupied, tables.keep, task, prepared, destinations, now)
        return Enqueued(queued, len(prepared.set_aside), prepared.oversized)

    async def accept(self, entries: Sequence[Entry], provenance: Provenance, destinations: Sequence[str]) -> None:
        """Queue a client's entries, which are already transformed.

        Raises:
            InvalidRecord: an entry breaks a rule; none is queued.
        """
        named, now = [dataclasses.replace(entry, provenance=provenance) for entry in entries], self._now()
        rows = await anyio.to_thread.run_sync(lambda: [entry_row(entry, now) for entry in named])
        await self._queue(destinations, tables.put, rows, destinations)

    async def take_over(self, entries: Sequence[tuple[int, Entry]], destinations: Sequence[str]) -> None:
        """Queue numbered entries of the record store's outbox in order, except those taken over before.

        Call :meth:`forget_taken` when they have left the outbox.
        """
        now = self._now()
        rows = [(number, entry_row(entry, now)) for number, entry in entries]
        await self._queue(destinations, tables.take_over, rows, destinations)

    async def forget_taken(self, numbers: Collection[int]) -> None:
        """Forget the numbers of entries that have left the outbox."""
        await self._execute("DELETE FROM taken_over WHERE number = ?", [(number,) for number in numbers])

    async def waiting(self, record_ids: Collection[str], senders: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        """Return the queued entries of records by id, in order. Later entries must wait behind them."""
        rows = await self._database.read(tables.waiting, record_ids, senders)
        found: dict[str, list[Entry]] = {}
        for row in rows:
            with suppress(InvalidRecord):  # quarantined when it is claimed
                found.setdefault(row.record_id, []).append(decode_entry(row))
        return found

    async def _queue(
        self, occupied: Sequence[str], work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts
    ) -> T:
        """Do work that queues entries for the senders ``occupied``, then wake these."""
        self._occupancy.queueing(occupied)
        done = await self._database.write(work, *args)
        for sender in occupied:
            if sender in self._listeners:
                self._listeners[sender]()
        return done

    async def _execute(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        await self._database.write(sqlite3.Connection.executemany, statement, rows)

    def on_queued(self, sender: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever something is queued for a sender."""
        self._listeners[sender] = wake

    # -- out --------------------------------------------------------------------------------------------------------

    async def claim(self, sender: str, limit: int) -> Sequence[Queued]:
        """Return the oldest due entries in order. No entry overtakes an earlier one of the same record.

        Entries stay in the queue until they are settled, so a sender must have only one loop.
        """
        if sender not in self.occupied:
            return []
        entries, unreadable = await self._database.read(tables.claim, sender, limit, self._now())
        if unreadable or not entries:
            await self.settle(sender, [], unreadable)  # looks for remaining entries, too
        return entries

    async def settle(self, sender: str, delivered: Sequence[int], refused: Mapping[int, str]) -> None:
        """Delete delivered entries, and quarantine refused ones with their reasons."""
        now, mark, reached = self._now(), self._occupancy.mark(sender), self.reached
        outcomes: dict[int, str | None] = dict.fromkeys(delivered) | dict(refused)
        if not await self._database.write(tables.settle, sender, outcomes, now, reached.number):
            self._occupancy.empty(sender, mark)
        self.generation = reached

    async def postpone(self, until: Mapping[int, datetime]) -> None:
        """Count a failed attempt of each entry and set the earliest time of the next one."""
        rows = [(to_micros(due), entry_id) for entry_id, due in until.items()]
        await self._execute("UPDATE queue SET attempts = attempts + 1, due_at = ? WHERE entry_id = ?", rows)

    async def hurry(self, sender: str) -> None:
        """Make every entry of a sender due now."""
        await self._execute("UPDATE queue SET due_at = 0 WHERE sender = ? AND attempts > 0", [(sender,)])

    async def next_due(self, sender: str) -> datetime | None:
        """Return when the first failed entry is due again, or None if no entry has failed."""
        if sender not in self.occupied:
            return None
        ((due,),) = await self._database.rows(tuple, _NEXT_DUE, sender)
        return None if due is None else from_micros(due)

    # -- memory -----------------------------------------------------------------------------------------------------

    async def checkpoint(self, task: str) -> Any:  # Any: the JSON that the collector stored
        """Return the checkpoint of a collector, or None without one."""
        found = await self._database.rows(itemgetter(0), _LOAD, task)
        return json.loads(found[0]) if found else None

    async def use_prefix(self, task: str, prefix: str) -> None:
        """Note that a collector now gives its records ids with this prefix."""
        if self._prefixes.get(task) != prefix:
            await self._execute(_USE_PREFIX, [(task, prefix, to_micros(self._now()))])
            self._prefixes[task] = prefix

    async def prefix_used_since(self, task: str, prefix: str) -> datetime | None:
        """Return when a collector's ids began to have this prefix: now, if not yet; None if they never had another."""
        for known, since in await self._database.rows(tuple, "SELECT prefix, since FROM prefix WHERE task = ?", task):
            if known != prefix:
                return self._now()
            return None if since is None else from_micros(since)
        return None

    async def find_seen(self, task: str, keys: Collection[str]) -> frozenset[str]:
        """Return the keys that a collector has asked to remember and that have not expired."""
        wanted = (task, (self._now() - EPOCH) // MICROSECOND, json.dumps(list(keys)))
        return frozenset(await self._database.rows(itemgetter(0), _SEEN, *wanted))

    async def pending(self, task: str) -> Mapping[str, Any]:  # Any: the JSON that the collector stored
        """Return the values that a collector keeps between runs, by key."""
        query = "SELECT key, value FROM pending WHERE task = ?"
        return dict(await self._database.rows(lambda row: (row[0], json.loads(row[1])), query, task))

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """Return the memory of a plugin whose records are stored elsewhere, like :meth:`RecordStore.memory`."""
        del occasion  # only one daemon uses the file
        return sqlite_memory(self._database, task, waiting)

    async def record_run(self, report: RunReport) -> None:
        """Store the report of a run."""
        await self._database.write(tables.record_run, report)

    async def note_enabled(self, kinds: Mapping[str, str]) -> Mapping[str, datetime]:
        """Note which plugins are enabled, by name and kind; return since when each has been without interruption."""
        return await self._database.write(tables.note_enabled, kinds, self._now())

    async def list_enabled(self) -> Mapping[str, datetime]:
        """Return since when each enabled plugin has been enabled without interruption."""
        return await self._database.read(tables.list_enabled)

    async def last_runs(self) -> Mapping[str, Sequence[LastRun]]:
        """Return the last runs of every instance that has run, the newest first."""
        return await self._database.read(tables.last_runs)

    # -- quarantine -------------------------------------------------------------------------------------------------

    async def keep_refused_body(
        self, body: bytes, reason: str, provenance: Provenance, route: str, roles: tuple[Role, ...] | None = None
    ) -> None:
        """Store a body that was answered with 400. Beyond the limits, the oldest bodies are deleted and counted.

        A retry stores only records that one of the sender's roles allows. None allows everything.
        """
        digest = hashlib.blake2b(route.encode(errors="replace") + b"\0", digest_size=16)
        await anyio.to_thread.run_sync(digest.update, body)  # some hundred milliseconds for the largest
        what = (Stage.BODY, "api", digest.hexdigest(), body, printable(reason))
        item = SetAside(*what, provenance=provenance, route=printable(route), limits=encode_limits(roles))
        await self._database.write(tables.keep_body, item, self._now(), MAX_BODIES, MAX_BODY_BYTES)

    async def quarantine_summaries(
        self, task: str | None = None, *, after: int = 0, limit: int = 1_000
    ) -> Sequence[QuarantineEntry]:
        """Return a page of entries in the order of their numbers, with an empty ``raw``, since raw input may be large.

        The last number is ``after`` for the next page.
        """
        return await self._database.rows(tables.quarantine_entry, _SUMMARIES, task, after, limit)

    async def quarantine_reasons(self, *, newest: int = 10_000, limit: int = 20) -> Sequence[QuarantineReason]:
        """Return the most frequent reasons of the newest entries."""
        return await self._database.rows(lambda row: QuarantineReason(Stage(row[0]), *row[1:]), _REASONS, newest, limit)

    async def quarantine_get(self, quarantine_id: int) -> QuarantineEntry | None:
        """Return an entry, or None if it does not exist."""
        return next(iter(await self._database.rows(tables.quarantine_entry, _QUARANTINE_GET, quarantine_id)), None)

    async def quarantine_held(self, tasks: Collection[str], source_ids: Collection[str]) -> Collection[str]:
        """Return the ids of jobs (at their source) or records that are in quarantine for one of the tasks."""
        return frozenset(
            await self._database.rows(itemgetter(0), _HELD, json.dumps(list(tasks)), json.dumps(list(source_ids)))
        )

    async def quarantine_take_over(self, entry: QuarantineEntry, task: str) -> QuarantineEntry:
        """Move a job to the quarantine of another collector, unless that has it already; return the entry."""
        statement = "UPDATE OR IGNORE quarantine SET task = ? WHERE quarantine_id = ? AND stage = 'job'"
        await self._execute(statement, [(task, entry.quarantine_id)])
        return await self.quarantine_get(entry.quarantine_id) or entry

    async def quarantine_discard(self, ids: Sequence[int]) -> int:
        """Delete entries and return the number deleted."""
        return await self._database.write(tables.discard, ids)

    async def quarantine_release(
        self, quarantine_id: int, entries: Sequence[Entry], destinations: Sequence[str], *, transformed: bool
    ) -> None:
        """Queue the entries that a retry made (possibly none) and delete the quarantine entry, in one transaction.

        If ``transformed``, the configured transform is not applied to the entries again.

        Raises:
            InvalidRecord: a record is still invalid; the quarantine entry stays.
        """
        now, transform = self._now(), None if transformed else self._transform
        rows = [entry_row(entry, now, transform) for entry in entries]
        await self._queue(destinations, tables.release, quarantine_id, rows, destinations)

    # -- the record store -------------------------------------------------------------------------------------------

    async def keep_generation(self) -> None:
        """Write the store's generation to the file."""
        reached = self.reached
        await self._database.write(tables.set_generation, reached.number)
        self.generation = reached

    # -- health -----------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise unless the file can be written."""
        await self._execute(tables.COUNT, [("probes", 1)])  # without effect; it fails on a full or read-only disk

    async def give_room_back(self) -> None:
        """Shrink the file, which would stay large after an outage (:meth:`Database.give_room_back`)."""
        await self._database.give_room_back()

    async def statistics(self) -> SpoolStatistics:
        """Count the spool's contents."""
        return await self._database.read(tables.statistics)
