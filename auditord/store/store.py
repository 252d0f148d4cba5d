"""A record store in an SQL database: the code that all databases share."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import asdict
from typing_extensions import override

from auditord.database.instants import from_micros
from auditord.database.memory import HeldTurn, Occasion, PluginMemory
from auditord.duplicates import Duplicates
from auditord.errors import SchemaMismatch
from auditord.store.aggregates import NotRolledUp, Overflow
from auditord.store.amendments import Action, Amended, Amendment, Version
from auditord.store.changes import correct, redact_leftovers
from auditord.store.dialects import StoreDialect
from auditord.store.feed import SENDERS, move_consumers, read_outbox
from auditord.store.lake import LakeRecord, Released
from auditord.store.lake_store import LakeStore, copies_of
from auditord.store.origins import Origins
from auditord.store.planning import Change, Correction, IsReleased, Replacement, Stop
from auditord.store.protocol import DaemonState, Difference, KnownDaemon, Outbox, RecordCounts, Verdict
from auditord.store.releasing import find_released
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.upkeep import Upkeep
from auditord.store.rows import Bulk, PendingRecord, amounts_of, valid_row
from auditord.store.work import Work, as_json, ask, atomic
from auditord_hookspecs import AggregateQuery, Aggregates, InvalidRecord, Provenance, Record, RecordUpdate
from auditord_hookspecs.entries import Encoded

Submit: TypeAlias = Callable[[Change], Awaitable[Any]]  # Any: the change's outcome

Recognise: TypeAlias = Callable[[], Awaitable[Work[None]]]
"""Returns work that raises StoreMismatch if a store is not the expected one."""


class Sums(NamedTuple):
    """Sums over the records of the database.

    Args:
        answer: the sums.
        released: the records that were released at the same moment.
        scope: the part that roll-ups have answered, including released records; None if they were not used.
    """

    answer: Aggregates
    released: Released
    scope: Scope | None


class RecordStore(LakeStore):
    """Durable records. Methods raise :class:`auditord.errors.StoreUnavailable` if the database is unavailable.

    Args:
        submit: makes a change in a transaction that it may share with others, and returns its outcome after the commit.
        dialect: the SQL of the database.
        keeps_rollups: whether this process maintains the counts and roll-ups of the database.
    """

    writes = 0
    """Number of times that this process has changed records, increased after each commit."""

    def __init__(self, submit: Submit, dialect: StoreDialect, *, keeps_rollups: bool) -> None:
        self._submit = submit
        self._dialect = dialect
        self._origins = Origins(self._write)
        self.rollups = Upkeep(self._write, self._read, dialect, is_ours=keeps_rollups)

    @abstractmethod
    def _submit_bulk(self, bulk: Bulk) -> Awaitable[Any]:  # Any: its outcomes
        """Add the records of a bulk in one transaction."""

    async def sums(self, query: AggregateQuery, *, from_cells: bool) -> Sums:
        """Return the sums over the database's records. If ``from_cells``, only read records that roll-ups lack.

        Raises:
            NotRolledUp: the cells cannot answer the query.
        """
        dialect = replace(self._dialect, windowed=query.window is not None)
        with suppress(Overflow):
            return await self._sum_up(query, dialect, from_cells=from_cells)
        return await self._sum_up(query, replace(dialect, is_exact=True), from_cells=from_cells)

    @abstractmethod
    async def _sum_up(self, query: AggregateQuery, dialect: StoreDialect, *, from_cells: bool) -> Sums:
        """Return the sums, using a dialect's SQL.

        Raises:
            Overflow: a sum did not fit 64 bits.
            NotRolledUp: the cells cannot answer the query.
        """

    async def add(
        self, record: Record, provenance: Provenance, duplicates: Duplicates, encoded: Encoded | None = None
    ) -> Verdict:
        """Add one record. Concurrent calls share a transaction, and each gets its own verdict after the commit.

        Args:
            record: the record.
            provenance: stored with the record.
            duplicates: what to do if the id is already stored.
            encoded: a record with its wire text, which is stored if it is this record. Any other text is ignored.

        Raises:
            InvalidRecord: the database permanently refuses this record. Others in the transaction are not affected.
        """
        row = valid_row(record, encoded.text if encoded is not None and encoded.record is record else None)
        scores = (row.amounts.scores,)
        origin, (score_set,) = self._origins.find_cached(provenance, scores) or await self._origins.numbers(
            provenance, scores
        )
        pending = PendingRecord(record, row, provenance, duplicates, origin, score_set)
        verdict: Verdict = await self._submit(pending)
        self.rollups.note(1)
        self.writes += 1
        return verdict

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        """Add many records in one transaction, and return a verdict for each.

        If ``atomic``, nothing is added if any verdict is EXISTS.
        """
        if not records:
            return []
        bulk = await self._bulk(records, provenance, duplicates, atomic=atomic)
        verdicts: Sequence[Verdict] = await self._submit_bulk(bulk)
        self.rollups.note(len(bulk))
        self.writes += 1
        return verdicts

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        """Set the stop time of a record, open or not. Return False if no record has this id."""
        origin = await self._origins.number(provenance)
        return bool(await self._change(Stop(update.record_id, update.stop_time, provenance, origin)))

    async def replace(self, record: Record, provenance: Provenance, alternate_id: str | None = None) -> Verdict:
        """Insert or deliberately overwrite a record, keeping the old version.

        Return ADDED if the id was new, SAME if the stored record was equal, else DIFFERENT. If an alternate id is given
        and the stored record has another start time, it is of another run: it stays, and the new record gets the
        alternate id.
        """
        ids = (record.record_id,) if alternate_id is None else (record.record_id, alternate_id)
        renamed = [msgspec.structs.replace(record, record_id=record_id) for record_id in ids]
        wanted, *alternate = (await self._bulk(renamed, provenance, Duplicates.SAME_RUN)).pending()
        verdict: Verdict = await self._change(Replacement(wanted, alternate[0] if alternate else None))
        return verdict

    async def amend(self, amendments: Sequence[Amendment], provenance: Provenance) -> Sequence[Amended]:
        """Amend records in one transaction, keep their former versions, and return one outcome each.

        Senders forward amendments like changes by clients, except deletions, since no protocol has a request for them.

        Raises:
            InvalidRecord: two amendments are about one record, or the database refuses a record. Nothing is changed.
        """
        if len({each.record_id for each in amendments}) < len(amendments):
            raise InvalidRecord("one record cannot be changed twice at once")
        wanted = [each.record for each in amendments if each.record is not None]
        pending = iter((await self._bulk(wanted, provenance, Duplicates.SAME_RUN)).pending())
        origin = await self._origins.number(provenance)
        corrections = [
            Correction(each, None if each.record is None else next(pending), provenance, origin) for each in amendments
        ]
        while True:
            await self.recall([each.record_id for each in amendments])
            with suppress(IsReleased):  # a run of the lake has released a record since then
                outcomes = await self._write(correct(corrections), is_long=True)
                self.rollups.note(len(corrections))
                self.writes += 1
                return [outcome for outcome in outcomes if isinstance(outcome, Amended)]

    async def history(self, record_id: str) -> Sequence[Version]:
        """Return the versions of a record (possibly deleted) before each deliberate change, oldest first."""
        return [
            Version(
                number,
                Action(action),
                reason,
                from_micros(changed_at),
                changed_by,
                document.encode(),
                from_micros(received_at),
                None if updated_at is None else from_micros(updated_at),
                principal,
            )
            for number, action, reason, changed_at, changed_by, document, received_at, updated_at, principal in (
                await self._read(ask("list_versions", record_id=record_id))
            )
        ]

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Permanently remove meta keys from records in one transaction, and return how many records had any of them.

        The old values are also removed from the history and the differences of these records. Senders forward
        nothing. Times, amounts and ``updated_at`` stay, and so do all sums except those by one of the keys.
        Released records are recalled, and the next lake run rewrites the files that had them.
        """
        while True:
            with suppress(IsReleased):
                redacted = await self._redact(record_ids, keys)
                self.rollups.wake()  # so that no cell or removal keeps the removed values
                self.writes += 1
                return redacted

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """Redact former versions, also of deleted records, and forget differences that have any of the keys.

        Only versions and differences of records that ended before the instant are affected. Return their number.
        """
        return await self._write(atomic(lambda: redact_leftovers(before, keys)), is_long=True)

    @override
    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums, read from roll-ups as far as possible; records would give the same numbers."""
        return await self._with_released(query, *await self.sums_here(query))

    async def sums_here(self, query: AggregateQuery) -> Sums:
        """Return the sums without reading the lake: released records are included only as far as roll-ups have them."""
        with suppress(NotRolledUp):
            return await self.sums(query, from_cells=True)
        return await self.sums(query, from_cells=False)

    @override
    async def get(self, record_id: str) -> bytes | None:
        return (await self.documents([record_id])).get(record_id)

    async def find_with_provenance(self, record_id: str) -> LakeRecord | None:
        """Return one record, released or not, with its provenance, or None."""
        found = copies_of(await self._read(ask("read_records_by_id", ids=as_json([record_id]))))
        found = found or await self._read_released(await self._read(find_released([record_id])))
        return next(iter(found), None)

    async def differences_of(self, record_id: str) -> Sequence[Difference]:
        """Return the differences of one record, newest first."""
        return [difference(row) for row in await self._read(ask("list_differences_of", record_id=record_id))]

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return the wire texts of those records that exist, by id. Meant for some thousands at a time."""
        while True:
            rows = await self._read(ask("get_documents", ids=as_json(record_ids)))
            released_ids = [record_id for record_id, _, is_released in rows if is_released]
            released = await self._read(find_released(released_ids)) if released_ids else ()
            if len(released) == len(released_ids):  # else a record was recalled meanwhile: read again
                break
        found = {record_id: document for record_id, document, is_released in rows if not is_released}
        found |= {each.record.record_id: each.document for each in await self._read_released(released)}
        return {record_id: document.encode() for record_id, document in found.items()}

    async def starts(self, record_ids: Sequence[str], spool_id: str = "") -> tuple[Mapping[str, datetime], int]:
        """Return the start times of those records that exist, by id, and :meth:`generation`, in one read.

        Does not read the lake.
        """
        return await self._read(_find_starts(record_ids, spool_id))

    async def find_deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        """Return the ids whose records were deliberately deleted and have not been added again."""
        return {record_id for (record_id,) in await self._read(ask("find_deleted", ids=as_json(record_ids)))}

    async def outbox(self, limit: int) -> Outbox:
        """Return the oldest changes that senders must forward, or none if the store was never opened with an outbox.

        From then on, the changes for which :func:`is_forwarded` is true are forwarded: an ``Insert`` of the stored
        record if it was added, closed (by a full record or a stop time) or moved to an earlier start; a ``Close`` if a
        stop time was overwritten; a ``Replace`` if a record was replaced. Changes without an effect are left out.

        Args:
            limit: the approximate number of feed records to look at.
        """

        def read() -> Work[Outbox]:
            yield from ask("see_one_moment")  # else a record that changes between two statements would be in no slice
            return (yield from read_outbox(limit))

        return await self._read(atomic(read))

    async def forget_outbox(self, position: int) -> None:
        """Record that all changes up to a position have been forwarded."""
        await self._write(atomic(lambda: move_consumers([SENDERS], position)))

    async def end_outbox(self) -> None:
        """Keep no changes for senders any more, and discard those that wait."""
        await self._write(atomic(lambda: ask("forget_consumer", name=SENDERS)))

    async def note_daemon(self, daemon: DaemonState, now: datetime) -> None:
        """Save the state of a daemon. A database server uses its own clock instead of ``now``."""
        await self._write(note_daemon(daemon, now))

    async def daemons(self, now: datetime) -> Sequence[KnownDaemon]:
        """Return the daemons that have used this database within a month."""
        return await self._read(list_daemons(now))

    async def generation(self, spool_id: str) -> int:
        """Return the generation that the store has reached with a spool, or 0 if the spool is unknown."""
        return await self._read(read_generation(spool_id))

    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        """Save the generation of a spool, and return the one saved before (0 for an unknown spool).

        Args:
            spool_id: the spool.
            generation: saved only if the one saved before is the same or its predecessor.
            adopt: whether to save it unconditionally.
        """
        return await self._write(_advance(spool_id, generation, adopt=adopt))

    @abstractmethod
    async def counts(self) -> RecordCounts:
        """Return the maintained counts, without scanning the records."""

    @abstractmethod
    def differences(self) -> AbstractAsyncContextManager[AsyncIterator[Difference]]:
        """Open an iterator over all differences, newest first."""

    @abstractmethod
    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """Open the memory of a plugin and hold its turn, which only one user of this store can have at a time.

        If the turn is lost (with a connection, or to another process), the caller is cancelled and StoreUnavailable or
        TurnLost is raised.

        Args:
            task: the plugin.
            waiting: called once before waiting for another process that has the turn. If None, the memory is opened
                for reading, without a turn.
            occasion: why the run starts; None outside a run.

        Raises:
            RanElsewhere: another daemon has run the plugin for the same tick, or so recently that this run is skipped.
        """

    @abstractmethod
    async def turns(self) -> Sequence[HeldTurn]:
        """Return the turns that are held on any host. In SQLite, which only one host uses, there are none."""

    @abstractmethod
    async def check(self) -> None:
        """Raise StoreUnavailable unless a record could be written now."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for in-flight writes, then close everything."""

    async def _change(self, change: Stop | Replacement) -> Any:  # Any: the change's outcome
        while True:
            try:
                outcome = await self._submit(change)
            except IsReleased as found:
                await self.recall([found.record_id])
            else:
                self.rollups.note(1)
                self.writes += 1
                return outcome

    async def _bulk(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool = False
    ) -> Bulk:
        amounts = [amounts_of(each.components) for each in records]
        scores = [each.scores for each in amounts]
        origin, score_sets = self._origins.find_cached(provenance, scores) or await self._origins.numbers(
            provenance, scores
        )
        return Bulk(records, amounts, score_sets, provenance, duplicates, origin=origin, atomic=atomic)


def difference(row: Sequence[Any]) -> Difference:  # Any: columns of all types
    """Make a difference from a row of ``list_differences``."""
    record_id, seen_at, principal, stored, offered = row
    stored = None if stored is None else stored.encode()
    return Difference(record_id, from_micros(seen_at), principal, stored, offered.encode())


def refuse_unfinished_copy(where: object) -> Work[None]:
    """Raise SchemaMismatch if the store is the target of an interrupted copy, so that records may be missing."""
    for (source,) in (yield from ask("unfinished_copy")):
        raise SchemaMismatch(
            f"{where} holds an unfinished copy of {source}: finish it with `auditord database copy --resume`."
        )


def note_daemon(daemon: DaemonState, now: datetime) -> Work[None]:
    """Save the state of a daemon, and forget daemons that ended long ago."""
    yield from ask("note_daemon", **asdict(daemon), now=now)
    yield from ask("forget_daemons", now=now)


def list_daemons(now: datetime) -> Work[list[KnownDaemon]]:
    """Return the saved states of daemons, by host."""
    rows = yield from ask("list_daemons", now=now)
    found: list[KnownDaemon] = []
    for spool_id, host, process, version, state_dir, started_at, queued, oldest, quarantined, ended, age in rows:
        received_at = None if oldest is None else from_micros(oldest)
        began = from_micros(started_at)
        state = DaemonState(
            spool_id, host, process, version, state_dir, began, queued, received_at, quarantined, bool(ended)
        )
        found.append(KnownDaemon(state, timedelta(microseconds=age)))
    return found


def read_generation(spool_id: str) -> Work[int]:
    """Return the generation that the store has reached with a spool, or 0 if the spool is unknown."""
    rows = yield from ask("find_generation", spool_id=spool_id)
    return int(rows[0][0]) if rows else 0


def _find_starts(record_ids: Sequence[str], spool_id: str) -> Work[tuple[Mapping[str, datetime], int]]:
    number = yield from read_generation(spool_id)
    rows = yield from ask("find_records", ids=as_json(record_ids), whole=False)
    return {record_id: from_micros(start) for record_id, start, *_ in rows}, number


def _advance(spool_id: str, generation: int, *, adopt: bool) -> Work[int]:
    before = yield from read_generation(spool_id)
    # They are equal if the daemon ended between this commit and the spool's.
    if adopt or before in {generation - 1, generation}:
        yield from ask("set_generation", spool_id=spool_id, generation=generation)
    return before
