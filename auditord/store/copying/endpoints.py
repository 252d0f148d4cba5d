"""The two ends of a copy: the part that all databases share."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, ClassVar, Final, LiteralString, Protocol, TypeAlias, TypeVar

import msgspec

from auditord.duplicates import Duplicates
from auditord.store.counting import ALL_RECORDS, PREFIX, read_counts
from auditord.store.dialects import StoreDialect
from auditord.store.feed import SENDERS, Removed, add_consumer, list_consumers, note_removals, read_outbox
from auditord.store.lake import LakePart
from auditord.store.planning import Operation
from auditord.store.protocol import Provenance, RecordCounts
from auditord.store.rollups.upkeep import start_over_beside_released
from auditord.store.rows import PendingRecord, amounts_of, make_pending
from auditord.store.sources import Sources
from auditord.store.work import Work, as_json, for_each
from auditord_hookspecs import AuditordError, Close, Entry, Insert, Replace
from auditord_hookspecs.wire import decode_record

T = TypeVar("T")

AT_ONCE: Final = 500
"""Rows that are read or written at a time."""

ALL: Final = 1 << 40
"""More records than any store has."""

Forwarded: TypeAlias = tuple[Operation, Provenance]
"""The operation that senders forward of a record, and who changed it."""

Row: TypeAlias = Sequence[Any]  # Any: columns of all types
"""A row, with the same columns in both databases."""


class Table(msgspec.Struct, frozen=True):
    """A table that is copied as a whole.

    Args:
        name: of the table.
        times: the places of instants in a row.
        numbered: the columns that number its rows, in SQLite and in PostgreSQL.
    """

    name: LiteralString
    times: Collection[int] = ()
    numbered: str | None = None


TABLES: Final[Sequence[Table]] = (
    Table("differences", (3,), "arrival"),
    Table("versions", (4, 7, 8), "number"),
    Table("plugin_state", (2,)),
    Table("spools"),
    Table("released", (1, 2)),
    Table("recalled", (2,)),
    Table("lake", (8, 9)),
)

FIRST_RELEASE: Final = {"differences", "versions", "plugin_state"}
"""The tables that a store of version 0.1.0 has."""


class CopyRefused(AuditordError):
    """A copy that would mix records, or did not come out equal.

    Remedy:
        do what the text says: choose an empty target, or add --resume; both stores are unchanged, or hold only
        copies.
    """


class CopiedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with everything that a store knows of it."""

    record_id: str
    document: str
    content: int
    received_at: datetime
    updated_at: datetime | None
    principal: str | None
    agent: str | None


async def numbered(sources: Sources, records: Sequence[CopiedRecord]) -> Sequence[PendingRecord]:
    """Records as rows, their columns worked out from the wire text, which itself stays the same, byte for byte."""
    return [await _numbered(sources, kept) for kept in records]


async def _numbered(sources: Sources, kept: CopiedRecord) -> PendingRecord:
    record, provenance = decode_record(kept.document.encode()), Provenance(kept.received_at, kept.principal, kept.agent)
    source, (score_set,) = await sources.numbers(provenance, [amounts_of(record.components).scores])
    pending = make_pending(record, provenance, Duplicates.SAME_RUN, source=source, score_set=score_set)
    return msgspec.structs.replace(pending, row=msgspec.structs.replace(pending.row, document=kept.document))


class Touched(msgspec.Struct, frozen=True, gc=False):
    """A record that gets a new position in the feed."""

    record_id: str


def _id_of(entry: Entry) -> str:
    return entry.record_id if isinstance(entry, Close) else entry.record.record_id


def _operation_of(entry: Entry) -> Operation:
    match entry:
        case Insert():
            return "insert"
        case Close():
            return "close"
        case Replace():
            return "replace"


def _provenance_of(entry: Entry) -> Provenance:
    if entry.provenance is None:
        raise AssertionError("the feed says who made each change")
    return entry.provenance


class Progress(Protocol):
    """An observer of a copy."""

    def progressed(self, phase: str, done: int, total: int) -> None:
        """Called with the number of records copied or compared."""
        ...


class End(ABC):
    """A store as an end of a copy: one to be read, as of the moment when it was opened, or one to be filled."""

    schema: ClassVar[LiteralString]
    """The schema of its tables, with a full stop."""
    dialect: ClassVar[StoreDialect]

    def __init__(self, where: str, queries: Mapping[str, LiteralString], *, is_first_release: bool = False) -> None:
        self.where = where
        self._queries = queries
        self._is_first_release = is_first_release
        """True of a source that version 0.1.0 has made."""

    @abstractmethod
    async def _rows(self, query: LiteralString, parameters: Mapping[str, object]) -> Sequence[Row]:
        """The rows of a statement, if it has any."""

    @abstractmethod
    def _stream(self, query: LiteralString, times: Collection[int]) -> AsyncIterator[Sequence[Row]]:
        """The rows of a query, in parts."""

    @abstractmethod
    async def _write_rows(self, query: LiteralString, rows: Sequence[Row]) -> None:
        """Run a statement for each row."""

    @abstractmethod
    async def _write_records(self, added: Sequence[CopiedRecord]) -> None:
        """Add records."""

    @abstractmethod
    async def run(self, work: Work[T]) -> T:
        """Do work on the store."""

    @abstractmethod
    def _transaction(self) -> AbstractAsyncContextManager[object]:
        """Inside, all or nothing is written."""

    async def count(self) -> int:
        """The number of records."""
        return int(str(await self._one("count_records")))

    async def row_counts(self) -> Mapping[str, int]:
        """The number of rows of each table beside the records."""
        count = f"SELECT count(*) FROM {self.schema}"  # noqa: S608 a literal
        return {table.name: int((await self._rows(count + table.name, {}))[0][0]) for table in TABLES}

    async def lake(self) -> LakePart | None:
        """The records that this store has released to the lake; None if there are none."""
        columns = "location, snapshot_id, release, records"
        rows = await self._rows(f"SELECT {columns} FROM {self.schema}lake WHERE records > 0", {})  # noqa: S608 literals
        for place, snapshot, release, records in rows:
            return LakePart(str(place), int(str(snapshot)), int(str(release)), int(str(records)))
        return None

    async def page(self, after: str) -> Sequence[CopiedRecord]:
        """The records behind an id, in the order of ids; none at the end."""
        return [CopiedRecord(*row) for row in await self._ask("read_records", after=after, limit=AT_ONCE)]

    @property
    def tables(self) -> Sequence[Table]:
        """The tables beside the records that are copied from here."""
        return [each for each in TABLES if not self._is_first_release or each.name in FIRST_RELEASE]

    def rows(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """The rows of a small table, in parts."""
        return self._stream(self._queries[f"read_{table.name}"], table.times)

    async def counts(self) -> RecordCounts | None:
        """The counts of records; None where only the copy can count them."""
        return None if self._is_first_release else await self.run(read_counts(None, self.dialect))

    async def forwards(self) -> Mapping[str, Forwarded] | None:
        """Changes that senders have yet to forward, by record id; None if none follow the feed."""
        if self._is_first_release:
            return await self._forwards_of_first_release()
        if SENDERS not in {each.name for each in await self.run(list_consumers())}:
            return None
        outbox = await self.run(read_outbox(ALL))
        return {_id_of(each.entry): (_operation_of(each.entry), _provenance_of(each.entry)) for each in outbox.entries}

    async def _forwards_of_first_release(self) -> Mapping[str, Forwarded]:
        found: dict[str, Forwarded] = {}
        async for rows in self._stream(self._queries["read_outbox_of_first_release"], (3,)):
            for _, operation, document, received_at, principal, agent in rows:
                record_id = decode_record(document.encode()).record_id
                said: Operation = operation
                if record_id in found and found[record_id][0] != said:
                    said = "insert" if found[record_id][0] == "insert" else "replace"
                found[record_id] = (said, Provenance(received_at, principal, agent))
        return found

    async def last_number(self, table: Table) -> object:
        """The highest number that a numbered table has ever given."""
        return await self._one("last_number", table=table.name, column=table.numbered)

    async def refuse_unfinished(self) -> None:
        """Return unless it is itself an unfinished copy.

        Raises:
            CopyRefused: it is.
        """
        if (unfinished := await self.unfinished()) is not None:
            raise CopyRefused(f"{self.where} holds a part of {unfinished} from an interrupted copy")

    async def unfinished(self) -> str | None:
        """The store that is being copied here."""
        rows = await self._ask("unfinished")
        return str(rows[0][0]) if rows else None

    async def is_empty(self) -> bool:
        """Return whether nothing has been kept here."""
        return bool(await self._one("is_empty"))

    async def begin(self, source: str) -> None:
        """Keep all programs from using the store until :meth:`finish`."""
        await self._ask("begin_copy", source=source)

    async def write(self, added: Sequence[CopiedRecord], removed: Sequence[str]) -> None:
        """Remove records, then add others, in one transaction."""
        async with self._transaction():
            await self._ask("remove_records", ids=as_json(removed))
            await self._write_records(added)

    async def refill(self, source: "End") -> None:
        """Make everything beside the records equal to the source, in one transaction.

        Cells of roll-ups are not copied: the daemon fills them from the records.
        """
        counts, forwards = await source.counts(), await source.forwards()
        async with self._transaction():
            await self._write_all(Table("sources"), source)
            for table in source.tables:
                await self._rows(f"DELETE FROM {self.schema}{table.name}", {})  # noqa: S608 literals
                await self._write_all(table, source)
            for table in source.tables:
                if table.numbered is not None:
                    number = await source.last_number(table)
                    await self._ask("forget_last_number", table=table.name, column=table.numbered)
                    await self._ask("set_last_number", table=table.name, column=table.numbered, number=number)
            for continued in ("continue_positions", "continue_behind_released", "forget_consumers"):
                await self._ask(continued)
            await self.run(start_over_beside_released())
            await self._write_counts(counts)
            if forwards is not None:
                await self._forward(forwards)

    async def _write_counts(self, counts: RecordCounts | None) -> None:
        """Go on with the counts of the source, which are of released records as well."""
        await self._ask("forget_record_counts")
        if counts is None:
            await self.run(add_consumer(PREFIX + ALL_RECORDS, 0))
            return
        position = int(str(await self._one("last_position")))
        for key, values in {ALL_RECORDS: {"": counts.total}, **counts.per_value}.items():
            await self.run(add_consumer(PREFIX + key, position))
            await self._write_rows(self._queries["write_record_counts"], [(key, *each) for each in values.items()])

    async def _forward(self, forwards: Mapping[str, Forwarded]) -> None:
        """Let senders follow the feed from here on, and change records that they have yet to forward."""
        await self.run(add_consumer(SENDERS, int(str(await self._one("last_position")))))
        sources, removals = Sources(self._look_up), list[Removed]()
        for record_id, (operation, provenance) in sorted(forwards.items()):
            number = await sources.number(provenance)
            removals.append(Removed(record_id, operation, provenance.received_at, number))
        await self.run(note_removals(removals))
        await self.run(for_each("touch_records", [Touched(each.record_id) for each in removals]))

    async def _look_up(self, make: Callable[[], Work[T]]) -> T:
        return await self.run(make())

    async def finish(self) -> None:
        """End the copy: it is complete."""
        await self._ask("finish_copy")

    async def _write_all(self, table: Table, source: "End") -> None:
        async for rows in source.rows(table):
            await self._write_rows(self._queries[f"write_{table.name}"], rows)

    async def _ask(self, query: str, **parameters: object) -> Sequence[Row]:
        return await self._rows(self._queries[query], parameters)

    async def _one(self, query: str, **parameters: object) -> object:
        ((value,),) = await self._ask(query, **parameters)
        return value
