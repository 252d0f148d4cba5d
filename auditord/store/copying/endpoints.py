"""The base class of the source and the target of ``auditord database copy``."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from itertools import count, repeat
from typing import Any, ClassVar, Final, LiteralString, Protocol, TypeAlias, TypeVar

import msgspec

from auditord.database.instants import EPOCH, from_micros
from auditord.store.counting import ALL_RECORDS, PREFIX, read_counts
from auditord.store.dialects import StoreDialect
from auditord.store.feed import SENDERS, list_consumers, note_removals, read_outbox
from auditord.store.lake import LakePart
from auditord.store.origins import Origins
from auditord.store.planning import Operation, Removed
from auditord.store.protocol import RecordCounts
from auditord.store.rollups.upkeep import start_over_beside_released
from auditord.store.rows import PendingRecord
from auditord.store.work import Work, as_json, for_each
from auditord_hookspecs import AuditordError, Close, Entry, Insert, Provenance, Replace
from auditord_hookspecs.wire import decode_record

T = TypeVar("T")

PAGE_SIZE: Final = 500
"""Maximum number of rows that are read or written at a time."""

Unforwarded: TypeAlias = tuple[Operation, Provenance]
"""A change to a record that senders have yet to forward: the operation, and who made the change."""

Row: TypeAlias = Sequence[Any]  # Any: columns of all types


class Table(msgspec.Struct, frozen=True):
    """A table that is copied as a whole.

    Args:
        name: the name of the table.
        columns: the names of the columns that are copied.
        numbered: the column whose values the database assigns by counting up, or None.
    """

    name: LiteralString
    columns: Sequence[LiteralString]
    numbered: LiteralString | None = None


TABLES: Final[Sequence[Table]] = (
    Table("differences", ("arrival", "record_id", "content", "seen_at", "origin_id", "offered"), "arrival"),
    Table(
        "versions",
        (
            *("number", "record_id", "action", "reason", "changed_at", "changed_by"),
            *("received_at", "updated_at", "origin_id", "document"),
        ),
        "number",
    ),
    Table("plugin_state", ("task", "value", "saved_at")),
    Table("spools", ("spool_id", "generation")),
    Table("released", ("record_id", "start_time", "stop_time", "content", "release", "position")),
    Table("recalled", ("record_id", "release", "stop_time")),
    Table(
        "lake",
        (
            *("store_id", "lake_id", "given", "released_in", "location", "snapshot_id", "sequence", "release"),
            *("records", "beside_rollups", "first_stop", "last_stop"),
        ),
    ),
)

_COUNTS: Final = Table("record_counts", ("meta_key", "meta_value", "records"))

_TIMES: Final[Collection[LiteralString]] = {
    *("seen_at", "changed_at", "received_at", "updated_at", "saved_at"),
    *("start_time", "stop_time", "first_stop", "last_stop"),
}
_ORIGIN_COLUMNS: Final[AbstractSet[LiteralString]] = {"origin_id", "changed_by"}
"""Columns with the number of an origin."""

_OPERATIONS: Final[Mapping[type[Entry], Operation]] = {Insert: "insert", Close: "close", Replace: "replace"}


class CopyRefused(AuditordError):
    """A copy that would mix the records of two stores, or whose result is not equal to the source.

    Remedy:
        choose an empty target, or add --resume, as the message says. If the target is not equal to the source, or the
        numbers of records differ, find the program that writes to the target, then copy again into an empty one. The
        source is unchanged; the target is unchanged or an unfinished copy, which the daemon does not open.
    """


class CopiedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with everything that a store knows about it.

    Args:
        record_id: the id of the record.
        document: the record as JSON.
        content: the hash of the content.
        received_at: the instant at which it was received.
        updated_at: the instant of its last change; None if it was never changed.
        principal, agent: the origin, as in :class:`auditord_hookspecs.Provenance`.
    """

    record_id: str
    document: str
    content: int
    received_at: datetime
    updated_at: datetime | None
    principal: str | None
    agent: str | None


class Touched(msgspec.Struct, frozen=True, gc=False):
    """A record that gets a new position in the feed."""

    record_id: str


class Progress(Protocol):
    """Observes the progress of a copy."""

    def note_progress(self, phase: str, done: int, total: int) -> None:
        """Receive the number of records that have been copied or compared in a phase, and the total."""
        ...


class End(ABC):
    """A store at one end of a copy: the source, read as of the moment when it was opened, or the target.

    Args:
        where: the store's address, for messages.
        queries: the statements by name, in the SQL of the database.
    """

    words: ClassVar[Mapping[str, LiteralString]]
    """The database's SQL for each name in braces in shared statements; see :mod:`auditord.store.statements`."""
    dialect: ClassVar[StoreDialect]

    def __init__(self, where: str, queries: Mapping[str, LiteralString]) -> None:
        self.where = where
        self._schema: LiteralString = self.words["schema"]
        self._queries = queries
        self._origins = Origins(self.run)

    @abstractmethod
    async def _rows(self, query: LiteralString, parameters: Mapping[str, object]) -> Sequence[Row]:
        """Execute a statement and return its rows, if it has any."""

    @abstractmethod
    def _stream(self, query: LiteralString) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of a query in batches."""

    @abstractmethod
    async def _write_rows(self, query: LiteralString, rows: Sequence[Row]) -> None:
        """Execute a statement once for each row, with the row's values for its ``%s``."""

    @abstractmethod
    async def _write_records(self, added: Sequence[PendingRecord], updated: Sequence[datetime | None]) -> None:
        """Add records. ``updated`` has the instant of the last change of each, or None."""

    @abstractmethod
    async def run(self, work: Work[T]) -> T:
        """Do work on the store."""

    @abstractmethod
    def _transaction(self) -> AbstractAsyncContextManager[object]:
        """Open a transaction: everything that is written within it is committed or rolled back together."""

    async def count(self) -> int:
        return int(str(await self._value("count_records")))

    async def row_counts(self) -> Mapping[str, int]:
        """Return the number of rows of each table in :data:`TABLES`, by name."""
        count = f"SELECT count(*) FROM {self._schema}"  # noqa: S608 a literal
        return {table.name: int((await self._rows(count + table.name, {}))[0][0]) for table in TABLES}

    async def lake(self) -> LakePart | None:
        """Return the part of the records that this store has released to the lake; None if there are none."""
        columns = "location, snapshot_id, release, records"
        rows = await self._rows(f"SELECT {columns} FROM {self._schema}lake WHERE records > 0", {})  # noqa: S608 literals
        for place, snapshot, release, records in rows:
            return LakePart(str(place), int(str(snapshot)), int(str(release)), int(str(records)))
        return None

    async def page(self, after: str) -> Sequence[CopiedRecord]:
        """Return the next page of records after an id, in the order of ids; empty after the last record."""
        return [
            CopiedRecord(record_id, document, content, from_micros(received_at), _moment(updated_at), principal, agent)
            for record_id, document, content, received_at, updated_at, principal, agent in (
                await self._query("read_records", after=after, limit=PAGE_SIZE)
            )
        ]

    async def rows(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of a table in batches.

        The number of an origin is replaced by a Provenance with its principal and agent, and EPOCH as a placeholder.
        """
        origins = {number: Provenance(EPOCH, *names) for number, *names in await self._query("read_origins")}
        decoders: Mapping[str, Callable[[Any], object]] = {  # Any: see Row
            **dict.fromkeys(_TIMES, _moment),
            **dict.fromkeys(_ORIGIN_COLUMNS, origins.__getitem__),
        }
        texts: dict[str, LiteralString] = {
            **{each: self.words["micros"].format(each) for each in _TIMES},
            "arrival": self.words["arrival"],
            "value": "CAST(value AS text)",
        }
        columns: LiteralString = ", ".join([texts.get(each, each) for each in table.columns])
        order: LiteralString = " ORDER BY 1" if table.numbered else ""
        async for rows in self._stream(f"SELECT {columns} FROM {self._schema}{table.name}{order}"):  # noqa: S608 literals
            yield [
                [
                    decoders[name](value) if name in decoders else value
                    for name, value in zip(table.columns, row, strict=True)
                ]
                for row in rows
            ]

    async def counts(self) -> RecordCounts | None:
        """Return the counts of records; None if none is released, so that the target can count its records itself."""
        return None if await self.lake() is None else await self.run(read_counts(None, self.dialect))

    async def list_unforwarded(self) -> Mapping[str, Unforwarded] | None:
        """Return the changes that senders have yet to forward, by record id; None if no sender follows the feed."""
        if SENDERS not in {each.name for each in await self.run(list_consumers())}:
            return None
        changes: dict[str, Unforwarded] = {}
        for waiting in (await self.run(read_outbox(None))).entries:
            entry = waiting.entry
            if entry.provenance is None:
                raise AssertionError("an entry of the feed has no provenance")
            record_id = entry.record_id if isinstance(entry, Close) else entry.record.record_id
            changes[record_id] = _OPERATIONS[type(entry)], entry.provenance
        return changes

    async def last_number(self, table: Table) -> object:
        """Return the highest number that a numbered table has ever given to a row."""
        return await self._value("last_number", table=table.name, column=table.numbered)

    async def refuse_unfinished(self) -> None:
        """Raise if this store is itself an unfinished copy.

        Raises:
            CopyRefused: it holds only a part of another store.
        """
        if (unfinished := await self.find_unfinished()) is not None:
            raise CopyRefused(f"{self.where} holds an unfinished copy of {unfinished}")

    async def find_unfinished(self) -> str | None:
        """Return the source of the unfinished copy that this store holds, or None."""
        rows = await self._query("unfinished_copy")
        return str(rows[0][0]) if rows else None

    async def is_empty(self) -> bool:
        """Return whether the store has no records, versions, plugin states or released records."""
        return bool(await self._value("is_empty"))

    async def begin(self, source: str) -> None:
        """Mark the store as an unfinished copy of a source. Programs refuse to use it until :meth:`finish`."""
        await self._query("begin_copy", source=source)

    async def write(self, added: Sequence[CopiedRecord], removed: Sequence[str]) -> None:
        """Delete the records with the ids ``removed``, then add others, in one transaction."""
        async with self._transaction():
            await self._query("delete_records", ids=as_json(removed))
            pending = [
                await self._origins.pending(
                    decode_record(copied.document.encode()),
                    copied.document,
                    Provenance(copied.received_at, copied.principal, copied.agent),
                )
                for copied in added
            ]
            await self._write_records(pending, [copied.updated_at for copied in added])

    async def refill(self, source: "End") -> None:
        """Replace everything except the records by the content of the source, in one transaction.

        Cells of roll-ups are not copied: the daemon fills them from the records.
        """
        counts, unforwarded = await source.counts(), await source.list_unforwarded()
        async with self._transaction():
            for table in TABLES:
                await self._rows(f"DELETE FROM {self._schema}{table.name}", {})  # noqa: S608 literals
            position = await self._last_position()
            # No consumer has read anything here yet. In PostgreSQL, records of one transaction share their position.
            positions = count(position + 1) if self.dialect.has_numbers else repeat(1)
            for table in TABLES:
                await self._copy(table, source, positions)
            if self.dialect.has_numbers:  # positions of released records must not be assigned again
                await self._query("set_last_number", table="records", number=await self._last_position())
            await self._query("forget_consumers")
            await self.run(start_over_beside_released())
            await self._query("forget_record_counts")
            if counts is None:
                await self._query("add_consumer", name=PREFIX + ALL_RECORDS, position=0)
            else:  # the source's counts include released records
                position = await self._last_position()
                for key, values in {ALL_RECORDS: {"": counts.total}, **counts.per_value}.items():
                    await self._query("add_consumer", name=PREFIX + key, position=position)
                    await self._insert(_COUNTS, [(key, *each) for each in values.items()])
            if unforwarded is not None:
                # Senders begin at the end of the feed, so the changes that they have yet to forward are appended.
                await self._query("add_consumer", name=SENDERS, position=await self._last_position())
                removals = list[Removed]()
                for record_id, (operation, provenance) in sorted(unforwarded.items()):
                    number = await self._origins.number(provenance)
                    removals.append(Removed(record_id, operation, provenance.received_at, number))
                await self.run(note_removals(removals))
                await self.run(for_each("touch_records", [Touched(each.record_id) for each in removals]))

    async def _last_position(self) -> int:
        return int(str(await self._value("last_position")))

    async def _copy(self, table: Table, source: "End", positions: Iterator[int]) -> None:
        """Copy the rows of a table.

        All records get new positions here. So ``lake_id`` is reset, and the lake gets all records again. Batches get
        higher numbers than the source has given, so that the source recognises them if it is used again.
        """
        async for rows in source.rows(table):
            copied: list[Row] = []
            for row in rows:
                values = dict(zip(table.columns, row, strict=True))
                for column in _ORIGIN_COLUMNS & values.keys():
                    values[column] = await self._origins.number(values[column])
                if "position" in values:
                    values["position"] = next(positions)
                if "lake_id" in values:
                    values["lake_id"] = ""
                copied.append(list(values.values()))
            await self._insert(table, copied)
        if table.numbered is not None:
            number = await source.last_number(table)
            await self._query("set_last_number", table=table.name, column=table.numbered, number=number)

    async def _insert(self, table: Table, rows: Sequence[Row]) -> None:
        names: LiteralString = ", ".join(
            [self.words["arrival"] if each == "arrival" else each for each in table.columns]
        )
        values: LiteralString = ", ".join(
            [f"CAST(%s AS {self.words['json']})" if each == "value" else "%s" for each in table.columns]
        )
        await self._write_rows(f"INSERT INTO {self._schema}{table.name} ({names}) VALUES ({values})", rows)  # noqa: S608 literals

    async def finish(self) -> None:
        """Mark the copy as complete, so that programs can use the store."""
        await self._query("finish_copy")

    async def _query(self, query: str, **parameters: object) -> Sequence[Row]:
        return await self._rows(self._queries[query], parameters)

    async def _value(self, query: str, **parameters: object) -> object:
        ((value,),) = await self._query(query, **parameters)
        return value


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
