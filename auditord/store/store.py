"""A record store in an SQL database: the part that all databases share."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec
from typing_extensions import override

from auditord.database.instants import from_micros
from auditord.database.memory import HeldTurn, Occasion, PluginMemory
from auditord.duplicates import Duplicates
from auditord.errors import SchemaMismatch
from auditord.store.aggregates import NotRolledUp, Overflow
from auditord.store.amendments import Action, Amended, Amendment, Version
from auditord.store.changes import correct, redact_leftovers
from auditord.store.daemons import follows, list_daemons, note_daemon, read_generation
from auditord.store.dialects import StoreDialect
from auditord.store.feed import SENDERS, move_consumer, read_outbox
from auditord.store.lake import LakeRecord, Released
from auditord.store.lake_store import LakeStore, copies_of
from auditord.store.planning import Change, Correction, IsReleased, Replacement, Stop
from auditord.store.protocol import DaemonState, Difference, KnownDaemon, Outbox, RecordCounts, Verdict
from auditord.store.releasing import find_released
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.upkeep import Upkeep
from auditord.store.rows import Bulk, PendingRecord, amounts_of, valid_row
from auditord.store.sources import Sources
from auditord.store.work import Work, as_json, ask, atomic
from auditord_hookspecs import AggregateQuery, Aggregates, InvalidRecord, Provenance, Record, RecordUpdate

Submit: TypeAlias = Callable[[Change], Awaitable[Any]]  # Any: the change's outcome

Recognise: TypeAlias = Callable[[], Awaitable[Work[None]]]
"""Makes work that raises StoreMismatch if a store is not the expected one."""


class Sums(NamedTuple):
    """Sums over the records of the database.

    Args:
        answer: of the database.
        released: the records that are released at the same moment.
        scope: what roll-ups have answered, also of released records.
    """

    answer: Aggregates
    released: Released
    scope: Scope | None


class RecordStore(LakeStore):
    """Records, durable. Every method raises :class:`auditord.errors.StoreUnavailable` when the database does.

    Args:
        submit: makes a change in a transaction that it may share with others; its outcome is there after the commit.
        dialect: of the database.
        keeps_rollups: whether this process lets the consumers of the feed read on that are in the database.
    """

    writes = 0
    """Number of times that this process has changed records; grows after each commit."""

    def __init__(self, submit: Submit, dialect: StoreDialect, *, keeps_rollups: bool) -> None:
        self._submit = submit
        self._dialect = dialect
        self._sources = Sources(self._write)
        self.rollups = Upkeep(self._write, self._read, dialect, is_ours=keeps_rollups)

    @abstractmethod
    def _submit_bulk(self, bulk: Bulk) -> Awaitable[Any]:  # Any: its outcomes
        """Make many additions in a transaction."""

    async def sums(self, query: AggregateQuery, *, from_cells: bool) -> Sums:
        """The answer of the database; from the cells of roll-ups and what they lack, or from the records alone.

        Raises:
            NotRolledUp: the cells do not know all of that.
        """
        dialect = replace(self._dialect, windowed=query.window is not None)
        with suppress(Overflow):
            return await self._summed(query, dialect, from_cells=from_cells)
        return await self._summed(query, replace(dialect, is_exact=True), from_cells=from_cells)

    @abstractmethod
    async def _summed(self, query: AggregateQuery, dialect: StoreDialect, *, from_cells: bool) -> Sums:
        """The same in the words of a dialect.

        Raises:
            Overflow: a sum did not fit.
            NotRolledUp: the cells do not know all of that.
        """

    async def add(
        self, record: Record, provenance: Provenance, duplicates: Duplicates, text: bytes | None = None
    ) -> Verdict:
        """Add one record; concurrent calls share a transaction, each gets its own verdict after the commit.

        Args:
            record: what happened.
            provenance: kept beside it.
            duplicates: what a known id means.
            text: the record's wire text, where that is known.

        Raises:
            InvalidRecord: the database refuses this record for good; others in the transaction are not harmed.
        """
        row = valid_row(record, text)
        scores = (row.amounts.scores,)
        source, (score_set,) = self._sources.known(provenance, scores) or await self._sources.numbers(
            provenance, scores
        )
        pending = PendingRecord(record, row, provenance, duplicates, source, score_set)
        verdict: Verdict = await self._submit(pending)
        self.rollups.noted(1)
        self.writes += 1
        return verdict

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        """Add many in one transaction, one verdict each; if ``atomic``, a single EXISTS undoes all of them."""
        if not records:
            return []
        bulk = await self._bulk(records, provenance, duplicates, atomic=atomic)
        verdicts: Sequence[Verdict] = await self._submit_bulk(bulk)
        self.rollups.noted(len(bulk))
        self.writes += 1
        return verdicts

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        """Set the stop time of a record, open or not; False if there is none with this id."""
        source = await self._sources.number(provenance)
        return bool(await self._change(Stop(update.record_id, update.stop_time, provenance, source)))

    async def replace(self, record: Record, provenance: Provenance, alternate_id: str | None = None) -> Verdict:
        """Insert or overwrite a record on purpose; the verdict tells if it was there; the old version is kept.

        With an alternate id, a record of another start is another run and stays: the new one gets the alternate id.
        """
        ids = (record.record_id,) if alternate_id is None else (record.record_id, alternate_id)
        renamed = [msgspec.structs.replace(record, record_id=record_id) for record_id in ids]
        wanted, *alternate = (await self._bulk(renamed, provenance, Duplicates.SAME_RUN)).pending()
        verdict: Verdict = await self._change(Replacement(wanted, alternate[0] if alternate else None))
        return verdict

    async def amend(self, amendments: Sequence[Amendment], provenance: Provenance) -> Sequence[Amended]:
        """Change records on purpose in one transaction, one outcome each, and keep what they were before.

        Senders forward it as if a client had done it; but no deletion, since no protocol has a request for it.

        Raises:
            InvalidRecord: two amendments are about one record, or the database refuses a record; then nothing is done.
        """
        if len({each.record_id for each in amendments}) < len(amendments):
            raise InvalidRecord("one record cannot be changed twice at a time")
        wanted = [each.record for each in amendments if each.record is not None]
        pending = iter((await self._bulk(wanted, provenance, Duplicates.SAME_RUN)).pending())
        source = await self._sources.number(provenance)
        await self.recall([each.record_id for each in amendments])
        corrections = [
            Correction(each, None if each.record is None else next(pending), provenance, source) for each in amendments
        ]
        outcomes = await self._write(lambda: correct(corrections), is_long=True)
        self.rollups.noted(len(corrections))
        self.writes += 1
        return [outcome for outcome in outcomes if isinstance(outcome, Amended)]

    async def history(self, record_id: str) -> Sequence[Version]:
        """The versions of a record before each change on purpose, the oldest first; also of one that was deleted."""
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
        """Take meta keys out of records for good, in one transaction; returns how many had any of them.

        The old values are kept neither in the history of these records nor among the differences, and
        nothing is forwarded by senders. Times, amounts and ``updated_at`` stay, and so do all sums but those by one of
        the keys. Released records come back; the next run of the lake rewrites the files that had them.
        """
        while True:
            with suppress(IsReleased):
                redacted = await self._redact(record_ids, keys)
                self.rollups.redacted()
                self.writes += 1
                return redacted

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """Redact former versions, also of deleted records, and differences, which are forgotten.

        Returns how many there were of records that ended before the instant.
        """
        return await self._write(lambda: atomic(lambda: redact_leftovers(before, keys)), is_long=True)

    @override
    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Roll-ups answer as much of it as they know; they give the same numbers."""
        with suppress(NotRolledUp):
            return await self._with_released(query, *await self.sums(query, from_cells=True))
        return await self._with_released(query, *await self.sums(query, from_cells=False))

    @override
    async def get(self, record_id: str) -> bytes | None:
        return (await self.documents([record_id])).get(record_id)

    async def origin(self, record_id: str) -> LakeRecord | None:
        """One record, released or not, with its provenance."""
        found = copies_of(await self._read(ask("read_records_by_id", ids=as_json([record_id]))))
        found = found or await self._read_released(await self._read(find_released([record_id])))
        return next(iter(found), None)

    async def differences_of(self, record_id: str) -> Sequence[Difference]:
        """The differences of one record, the newest first."""
        return [difference(row) for row in await self._read(ask("list_differences_of", record_id=record_id))]

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        """The wire texts of those of the records that are there, by id; meant for some thousands at a time."""
        while True:
            rows = await self._read(ask("get_documents", ids=as_json(record_ids)))
            gone = [record_id for record_id, _, is_released in rows if is_released]
            released = await self._read(find_released(gone)) if gone else ()
            if len(released) == len(gone):  # else one has come back meanwhile
                break
        found = {record_id: document for record_id, document, is_released in rows if not is_released}
        found |= {each.record.record_id: each.document for each in await self._read_released(released)}
        return {record_id: document.encode() for record_id, document in found.items()}

    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        """Those of the ids whose records were deleted on purpose, and that are not there again."""
        return {record_id for (record_id,) in await self._read(ask("find_deleted", ids=as_json(record_ids)))}

    async def outbox(self, limit: int) -> Outbox:
        """The oldest changes that senders must forward; none unless the store was once opened with an outbox.

        From then on, what :func:`is_forwarded` names is forwarded: an ``Insert`` of the record now stored when
        one was added, closed (by a full record or a stop time) or moved to an earlier start; a ``Close`` when a stop
        time was overwritten; a ``Replace`` when a record was replaced. Changes without an effect are left out.

        Args:
            limit: the number of records of the feed to look at, roughly.
        """
        return await self._read(read_outbox(limit))

    async def forget_outbox(self, position: int) -> None:
        """Note that all changes up to a position have been forwarded."""
        await self._write(lambda: atomic(lambda: move_consumer(SENDERS, position)))

    async def note_daemon(self, daemon: DaemonState, now: datetime) -> None:
        """Keep the state of a daemon; a database on a server takes its own clock for the present instant."""
        await self._write(lambda: note_daemon(daemon, now))

    async def daemons(self, now: datetime) -> Sequence[KnownDaemon]:
        """The daemons that have used this database within a month."""
        return await self._read(list_daemons(now))

    async def generation(self, spool_id: str) -> int:
        """The generation that the store has reached with a spool; 0 if it knows none of it."""
        return await self._read(read_generation(spool_id))

    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        """Note how far a spool has come with this store, and return how far it had come before (0: not known).

        Args:
            spool_id: which spool.
            generation: the next one; it is noted only if the one before is this one or its predecessor.
            adopt: note it without that condition.
        """
        return await self._write(lambda: atomic(lambda: _advance(spool_id, generation, adopt=adopt)))

    @abstractmethod
    async def counts(self) -> RecordCounts:
        """The maintained counts; never a scan."""

    @abstractmethod
    def differences(self) -> AbstractAsyncContextManager[AsyncIterator[Difference]]:
        """All differences, the newest first."""

    @abstractmethod
    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """The memory of a plugin, with its turn: no other user of this store has it at the same time.

        If the turn is lost (with a connection, or to another process), the caller is cancelled and StoreUnavailable or
        TurnLost raised.

        Args:
            task: the plugin.
            waiting: called once if another process has the turn, before it is waited for; None takes no turn, to look
                only.
            occasion: of a run, if it is one.

        Raises:
            RanElsewhere: another daemon has run the plugin for the same tick, or so recently that this one is left out.
        """

    @abstractmethod
    async def turns(self) -> Sequence[HeldTurn]:
        """The turns that are taken, on any host; an SQLite file is of one host and has none."""

    @abstractmethod
    async def check(self) -> None:
        """Return if a record could be written now."""

    @abstractmethod
    async def close(self) -> None:
        """Finish open work and release everything."""

    async def _change(self, change: Stop | Replacement) -> Any:  # Any: the change's outcome
        while True:
            try:
                outcome = await self._submit(change)
            except IsReleased as found:
                await self.recall([found.record_id])
            else:
                self.rollups.noted(1)
                self.writes += 1
                return outcome

    async def _bulk(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool = False
    ) -> Bulk:
        scores = [amounts_of(each.components).scores for each in records]
        source, score_sets = self._sources.known(provenance, scores) or await self._sources.numbers(provenance, scores)
        return Bulk(records, score_sets, provenance, duplicates, source=source, atomic=atomic)


def difference(row: Sequence[Any]) -> Difference:  # Any: columns of all types
    """A row of ``list_differences``."""
    record_id, seen_at, principal, stored, offered = row
    stored = None if stored is None else stored.encode()
    return Difference(record_id, from_micros(seen_at), principal, stored, offered.encode())


def refuse_unfinished_copy(where: object) -> Work[None]:
    """Return unless only a part of another store's records is there.

    Raises:
        SchemaMismatch: a copy was interrupted.
    """
    for (source,) in (yield from ask("unfinished_copy")):
        raise SchemaMismatch(f"{where} holds only a part of {source}: go on with `auditord database copy --resume`.")


def _advance(spool_id: str, generation: int, *, adopt: bool) -> Work[int]:
    before = yield from read_generation(spool_id)
    if adopt or follows(before, generation):
        yield from ask("set_generation", spool_id=spool_id, generation=generation)
    return before
