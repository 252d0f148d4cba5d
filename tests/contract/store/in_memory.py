"""A record store in dictionaries: plans of changes, and the named statements that they need, without a database."""

# ruff: noqa: ARG002 the signatures are the protocols'

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec

from auditord.client.query_string import matches
from auditord.database.instants import to_micros
from auditord.database.memory import HeldTurn, Occasion, PluginMemory
from auditord.store.changes import Move, add_bulk, change_each
from auditord.store.dialects import StoreDialect
from auditord.store.lake import Released
from auditord.store.planning import Change, KeptVersion, Removed
from auditord.store.protocol import Difference, RecordCounts
from auditord.store.rows import Bulk, PendingRecord, RecordRow
from auditord.store.sqlite.dialect import SqliteDialect
from auditord.store.store import RecordStore, Sums, difference
from auditord.store.work import Atomic, Compiled, Computation, ForEach, Records, Rows, Statement, Step, Work
from auditord_hookspecs import AggregateQuery, RecordQuery
from auditord_hookspecs.wire import decode_record

T = TypeVar("T")

Stored: TypeAlias = tuple[RecordRow, int, int | None, int]
"""A row, first and last arrival, origin."""
Differing: TypeAlias = tuple[int, int, str]
"""Arrival, origin, document."""


@dataclass
class MemoryDatabase:
    """Tables, and what statements do to them."""

    records: dict[str, Stored] = field(default_factory=dict[str, Stored])
    origins: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    differences: dict[tuple[str, int], Differing] = field(default_factory=dict[tuple[str, int], Differing])
    versions: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])

    def run(self, work: Work[T]) -> T:
        """Do work."""
        try:
            step = next(work)
            while True:
                try:
                    answer = self._do(step)
                except Exception as error:  # noqa: BLE001 not swallowed: the work decides
                    step = work.throw(error)
                else:
                    step = work.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _do(self, step: Step) -> Any:
        match step:
            case Statement(name, parameters):
                return getattr(self, name)(**parameters)
            case ForEach(name, rows):
                for row in rows:
                    getattr(self, name)(row)
                return None
            case Records(name, pending):
                return sum(getattr(self, name)(each) for each in pending)
            case Compiled() | Computation():
                raise AssertionError("statements that are put together are tested with the databases")
            case Atomic(make):
                before = {name: type(table)(table) for name, table in vars(self).items()}
                try:
                    return self.run(make())
                except BaseException:
                    vars(self).update(before)
                    raise

    # -- statements -------------------------------------------------------------------------------------------------

    def find_origin(self, principal: str, agent: str) -> Rows:
        return [(self.origins.index((principal, agent)),)] if (principal, agent) in self.origins else []

    def insert_origin(self, principal: str, agent: str) -> None:
        self.origins.append((principal, agent))

    def find_score_set(self, scores: str, digest: bytes) -> Rows:
        del scores, digest
        return [(1,)]

    def insert_records(self, pending: PendingRecord) -> int:
        if pending.row.record_id in self.records:
            return 0
        received_at = to_micros(pending.provenance.received_at)
        self.records[pending.row.record_id] = (pending.row, received_at, None, pending.origin)
        return 1

    def overwrite_records(self, pending: PendingRecord) -> int:
        _, received_at, _, _ = self.records[pending.row.record_id]
        now = to_micros(pending.provenance.received_at)
        self.records[pending.row.record_id] = (pending.row, received_at, now, pending.origin)
        return 1

    def move_records(self, move: Move) -> None:
        row, received_at, _, origin = self.records[move.record_id]
        stop = None if move.stop_time is None else to_micros(move.stop_time)
        moved = msgspec.structs.replace(
            row, start_time=to_micros(move.start_time), stop_time=stop, document=move.document
        )
        self.records[move.record_id] = (moved, received_at, to_micros(move.received_at), origin)

    def find_generation(self, spool_id: str) -> Rows:
        return []

    def find_records(self, ids: str, whole: bool) -> Rows:  # noqa: FBT001 as a parameter of the statement
        return [
            (*identity, document if whole or identity[2] is None else None)
            for *identity, document in self.lock_records(ids)
        ]

    def lock_records(self, ids: str) -> Rows:
        found = [self.records[record_id][0] for record_id in msgspec.json.decode(ids) if record_id in self.records]
        return [(row.record_id, row.start_time, row.stop_time, row.content, row.document) for row in found]

    def get_documents(self, ids: str) -> Rows:
        return [(record_id, document, None) for record_id, *_, document in self.lock_records(ids)]

    def find_released(self, ids: str) -> Rows:
        return []

    def delete_records(self, ids: str) -> None:
        for record_id in msgspec.json.decode(ids):
            del self.records[record_id]

    def find_deleted(self, ids: str) -> Rows:
        deleted = {record_id for _, record_id, action, *_ in self.versions if action == "delete"}
        return [(each,) for each in msgspec.json.decode(ids) if each in deleted and each not in self.records]

    def settle_differences(self, ids: str) -> None:
        settled = set(msgspec.json.decode(ids))
        self.differences = {key: value for key, value in self.differences.items() if key[0] not in settled}

    def note_differences(self, pending: PendingRecord) -> int:
        key, seen = (pending.row.record_id, pending.row.content), to_micros(pending.provenance.received_at)
        self.differences.pop(key, None)
        self.differences[key] = (seen, pending.origin, pending.row.document)
        return 1

    def keep_versions(self, kept: KeptVersion) -> None:
        row, received_at, updated_at, origin = self.records[kept.record_id]
        changed = (kept.action, kept.reason, to_micros(kept.changed_at), kept.changed_by)
        self.versions.append(
            (len(self.versions), kept.record_id, *changed, row.document, received_at, updated_at, origin)
        )

    def list_versions(self, record_id: str) -> Rows:
        return [
            (number, action, reason, at, self.principal_of(by), document, received, updated, self.principal_of(origin))
            for number, of, action, reason, at, by, document, received, updated, origin in self.versions
            if of == record_id
        ]

    def note_removals(self, removed: Removed) -> None:
        """Nothing: the feed is tested with the databases."""

    def continue_positions(self) -> None:
        """Nothing, likewise."""

    def note_forwards(self, removed: Removed) -> None:
        """Nothing, likewise."""

    def _names(self, origin: int) -> tuple[str | None, str | None]:
        principal, agent = self.origins[origin]
        return principal or None, agent or None

    def principal_of(self, origin: int) -> str | None:
        return self._names(origin)[0]


class MemoryRecordStore(RecordStore):
    """A record store as far as plans go: it adds, closes, replaces and corrects."""

    def __init__(self, database: MemoryDatabase, counted_keys: Sequence[str]) -> None:
        super().__init__(self._change, SqliteDialect(), keeps_rollups=False)
        self._database = database
        self._counted_keys = counted_keys

    async def _submit_bulk(self, bulk: Bulk) -> Any:
        return self._database.run(add_bulk(bulk))

    async def _change(self, change: Change) -> Any:
        (outcome,) = self._database.run(change_each([change]))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        return self._database.run(work)

    async def _read(self, work: Work[T]) -> T:
        return self._database.run(work)

    @asynccontextmanager
    async def _stream(
        self, query: RecordQuery
    ) -> AsyncGenerator[tuple[AsyncIterator[Sequence[bytes]], Released], None]:
        rows = sorted((row for row, *_ in self._database.records.values()), key=_place)
        documents = [row.document.encode() for row in rows]
        page = [document for document in documents if matches(decode_record(document), query.where)]

        async def pages() -> AsyncIterator[Sequence[bytes]]:
            yield page

        yield pages(), Released()

    async def _sum_up(self, query: AggregateQuery, dialect: StoreDialect, *, from_cells: bool) -> Sums:
        raise AssertionError("sums are tested with the databases")

    async def counts(self) -> RecordCounts:
        rows = [decode_record(row.document.encode()) for row, *_ in self._database.records.values()]
        values: Mapping[str, Counter[str]] = {
            key: Counter(value for record in rows for value in set((record.meta or {}).get(key, ())))
            for key in self._counted_keys
        }
        per_value = {key: dict(counter) for key, counter in values.items()}
        return RecordCounts(len(rows), per_value, len(self._database.differences))

    @asynccontextmanager
    async def differences(self) -> AsyncGenerator[AsyncIterator[Difference], None]:
        found = [
            difference(
                (
                    record_id,
                    seen_at,
                    self._database.principal_of(origin),
                    self._database.records[record_id][0].document,
                    offered,
                )
            )
            for (record_id, _), (seen_at, origin, offered) in reversed(self._database.differences.items())
        ]

        async def each() -> AsyncIterator[Difference]:
            for one in found:
                yield one

        yield each()

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        raise AssertionError("what plugins remember is tested with the databases")

    async def turns(self) -> Sequence[HeldTurn]:
        return ()

    async def check(self) -> None:
        return None

    async def close(self) -> None:
        return None


def _place(row: RecordRow) -> tuple[bool, int, str]:
    return row.stop_time is None, row.stop_time or 0, row.record_id
