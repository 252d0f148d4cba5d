"""A record store in an SQL database: the part that all databases share."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec
from typing_extensions import override

from auditord.database.instants import from_micros
from auditord.errors import SchemaMismatch
from auditord.store.aggregates import NotRolledUp
from auditord.store.amendments import Action, Amended, Amendment, Version
from auditord.store.bulks import Bulk
from auditord.store.changes import correct
from auditord.store.daemons import follows, list_daemons, note_daemon, read_generation
from auditord.store.dialects import StoreDialect
from auditord.store.feed import SENDERS, move_consumer, read_outbox
from auditord.store.lake import LakeRecord, Released
from auditord.store.lake_store import LakeStore, copies_of
from auditord.store.planning import Addition, Change, Correction, IsReleased, Replacement, Stop
from auditord.store.protocol import (
    DaemonState,
    Difference,
    Duplicates,
    KnownDaemon,
    Outbox,
    Provenance,
    RecordStore,
    Verdict,
)
from auditord.store.redacting import redact_leftovers
from auditord.store.releasing import find_released
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.upkeep import Upkeep
from auditord.store.rows import PendingRecord, amounts_of, valid_row
from auditord.store.sources import Sources
from auditord.store.work import Work, as_json, ask, atomic
from auditord_hookspecs import AggregateQuery, Aggregates, InvalidRecord, Record, RecordUpdate

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


class SqlRecordStore(LakeStore, RecordStore):
    """The part of a record store that all databases share.

    Args:
        submit: makes a change in a transaction that it may share with others; its outcome is there after the commit.
        dialect: of the database.
        keeps_rollups: whether this process lets the consumers of the feed read on that are in the database.
    """

    writes = 0

    def __init__(self, submit: Submit, dialect: StoreDialect, *, keeps_rollups: bool) -> None:
        super().__init__()
        self._submit = submit
        self._dialect = dialect
        self._sources = Sources(self._write)
        self.rollups = Upkeep(self._write, self._read, dialect, is_ours=keeps_rollups)

    @abstractmethod
    def _submit_bulk(self, bulk: Bulk) -> Awaitable[Any]:  # Any: its outcomes
        """Make many additions in a transaction."""

    @abstractmethod
    async def sums(self, query: AggregateQuery, *, from_cells: bool) -> Sums:
        """The answer of the database; from the cells of roll-ups and what they lack, or from the records alone.

        Raises:
            NotRolledUp: the cells do not know all of that.
        """

    @override
    async def add(
        self, record: Record, provenance: Provenance, duplicates: Duplicates, text: bytes | None = None
    ) -> Verdict:
        row = valid_row(record, text)
        scores = (row.amounts.scores,)
        source, (score_set,) = self._sources.known(provenance, scores) or await self._sources.numbers(
            provenance, scores
        )
        pending = PendingRecord(record, row, provenance, duplicates, source, score_set)
        verdict: Verdict = await self._submit(Addition(pending))
        self.rollups.noted(1)
        self.writes += 1
        return verdict

    @override
    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        if not records:
            return []
        bulk = await self._bulk(records, provenance, duplicates, atomic=atomic)
        verdicts: Sequence[Verdict] = await self._submit_bulk(bulk)
        self.rollups.noted(len(bulk))
        self.writes += 1
        return verdicts

    @override
    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        source = await self._sources.number(provenance)
        return bool(await self._change(Stop(update.record_id, update.stop_time, provenance, source)))

    @override
    async def replace(self, record: Record, provenance: Provenance, alternate_id: str | None = None) -> Verdict:
        ids = (record.record_id,) if alternate_id is None else (record.record_id, alternate_id)
        renamed = [msgspec.structs.replace(record, record_id=record_id) for record_id in ids]
        wanted, *alternate = (await self._bulk(renamed, provenance, Duplicates.SAME_RUN)).pending()
        verdict: Verdict = await self._change(Replacement(wanted, alternate[0] if alternate else None))
        return verdict

    @override
    async def amend(self, amendments: Sequence[Amendment], provenance: Provenance) -> Sequence[Amended]:
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

    @override
    async def history(self, record_id: str) -> Sequence[Version]:
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

    @override
    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        while True:
            with suppress(IsReleased):
                redacted = await self._redact(record_ids, keys)
                self.rollups.redacted()
                self.writes += 1
                return redacted

    @override
    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
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

    @override
    async def origin(self, record_id: str) -> LakeRecord | None:
        found = copies_of(await self._read(ask("read_records_by_id", ids=as_json([record_id]))))
        found = found or await self._read_released(await self._read(find_released([record_id])))
        return next(iter(found), None)

    @override
    async def differences_of(self, record_id: str) -> Sequence[Difference]:
        return [difference(row) for row in await self._read(ask("list_differences_of", record_id=record_id))]

    @override
    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        while True:
            rows = await self._read(ask("get_documents", ids=as_json(record_ids)))
            gone = [record_id for record_id, _, is_released in rows if is_released]
            released = await self._read(find_released(gone)) if gone else ()
            if len(released) == len(gone):  # else one has come back meanwhile
                break
        found = {record_id: document for record_id, document, is_released in rows if not is_released}
        found |= {each.record.record_id: each.document for each in await self._read_released(released)}
        return {record_id: document.encode() for record_id, document in found.items()}

    @override
    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        return {record_id for (record_id,) in await self._read(ask("find_deleted", ids=as_json(record_ids)))}

    @override
    async def outbox(self, limit: int) -> Outbox:
        return await self._read(read_outbox(limit))

    @override
    async def forget_outbox(self, position: int) -> None:
        await self._write(lambda: atomic(lambda: move_consumer(SENDERS, position)))

    @override
    async def note_daemon(self, daemon: DaemonState, now: datetime) -> None:
        await self._write(lambda: note_daemon(daemon, now))

    @override
    async def daemons(self, now: datetime) -> Sequence[KnownDaemon]:
        return await self._read(list_daemons(now))

    @override
    async def generation(self, spool_id: str) -> int:
        return await self._read(read_generation(spool_id))

    @override
    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        return await self._write(lambda: atomic(lambda: _advance(spool_id, generation, adopt=adopt)))

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
