"""The ends of a copy, as far as they are the same in every database."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, ClassVar, Final, LiteralString, Protocol, TypeAlias

import msgspec

from auditord.duplicates import Duplicates
from auditord.store.protocol import Provenance
from auditord.store.rows import PendingRecord, make_pending
from auditord.store.sources import Sources, canonical, digest_of
from auditord.store.work import as_json
from auditord_hookspecs import AuditordError
from auditord_hookspecs.wire import decode_record

AT_ONCE: Final = 500
"""Rows that are read or written at a time."""

Row: TypeAlias = Sequence[Any]  # Any: columns of all types
"""A row, with the same columns in both databases."""


@dataclass(frozen=True, slots=True)
class Table:
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
    Table("outbox", (3,), "number"),
    Table("plugin_state", (2,)),
    Table("spools"),
    Table("archived_records", (1, 2)),
    Table("archive_removals"),
    Table("archive", (7, 8)),
    Table("rollup_labels"),
    Table("rollups"),
    Table("rollup_changes", (), "number"),
    Table("rollup_state"),
    Table("rolled_keys"),
    Table("lake"),
    Table("lake_changes"),
)


class CopyRefused(AuditordError):
    """A copy that would mix records, or did not come out equal.

    Remedy:
        do what the text says: choose an empty target, or go on with --resume; both stores are as they were, or hold
        only copies.
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
    """Records as rows, their columns worked out from the wire text, which itself stays as it is, byte for byte."""
    return [await _numbered(sources, kept) for kept in records]


async def _numbered(sources: Sources, kept: CopiedRecord) -> PendingRecord:
    record, provenance = decode_record(kept.document.encode()), Provenance(kept.received_at, kept.principal, kept.agent)
    source, (score_set,) = await sources.numbers(provenance, [record])
    pending = make_pending(record, provenance, Duplicates.SAME_RUN, source=source, score_set=score_set)
    return msgspec.structs.replace(pending, row=msgspec.structs.replace(pending.row, document=kept.document))


class Progress(Protocol):
    """An observer of a copy."""

    def progressed(self, phase: str, done: int, total: int) -> None:
        """So many records have been copied, or compared."""
        ...


class End(ABC):
    """A store as an end of a copy: one to be read, as of the moment when it was opened, or one to be filled."""

    schema: ClassVar[LiteralString]
    """The schema of its tables, with a full stop."""
    forgotten: ClassVar[Sequence[str]]
    """Statements after which the store counts anew when it is opened."""

    def __init__(self, where: str, queries: Mapping[str, LiteralString]) -> None:
        self.where = where
        self._queries = queries

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
    def _transaction(self) -> AbstractAsyncContextManager[object]:
        """Inside, all or nothing is written."""

    async def count(self) -> int:
        """The number of records."""
        return int(str(await self._one("count_records")))

    async def row_counts(self) -> Mapping[str, int]:
        """The number of rows of each table beside the records."""
        count = f"SELECT count(*) FROM {self.schema}"  # noqa: S608 a literal
        return {table.name: int((await self._rows(count + table.name, {}))[0][0]) for table in TABLES}

    async def archive(self) -> str | None:
        """The state of the archive that goes with these records; None without an archive."""
        columns = "archive_id, location, snapshot_id, chunk"
        rows = await self._rows(f"SELECT {columns} FROM {self.schema}archive WHERE archive_id <> ''", {})  # noqa: S608 literals
        return next(
            (f"{place}, snapshot {snapshot}, chunk {chunk} ({name})" for name, place, snapshot, chunk in rows), None
        )

    async def page(self, after: str) -> Sequence[CopiedRecord]:
        """The records behind an id, in the order of ids; none at the end."""
        return [CopiedRecord(*row) for row in await self._ask("read_records", after=after, limit=AT_ONCE)]

    def rows(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """The rows of a small table, in parts."""
        return self._stream(self._queries[f"read_{table.name}"], table.times)

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
        """Let nobody use the store until :meth:`finish`."""
        await self._ask("begin_copy", source=source)

    async def number_scores(self, source: "End", *, resume: bool) -> None:
        """Give what components score the numbers of the source: roll-ups have these in all that they keep.

        Raises:
            CopyRefused: some have other numbers here.
        """
        wanted = await source.score_sets()
        async with self._transaction():
            if not resume:
                await self._ask("forget_score_sets")
            for number, text in wanted.items():
                await self._ask("write_score_set", score_set=number, scores=text, digest=digest_of(text))
            await self._ask("continue_numbers")
        if await self.score_sets() != wanted:
            raise CopyRefused(f"{self.where} numbers scores otherwise than {source.where}: name an empty store")

    async def score_sets(self) -> Mapping[int, str]:
        """The scores of components, by number."""
        return {number: canonical(scores) for number, scores in await self._ask("read_score_sets")}

    async def write(self, added: Sequence[CopiedRecord], removed: Sequence[str]) -> None:
        """Remove records, then add others, in one transaction."""
        async with self._transaction():
            await self._ask("remove_records", ids=as_json(removed))
            await self._write_records(added)

    async def refill(self, source: "End") -> None:
        """Make everything beside the records equal to the source, in one transaction."""
        async with self._transaction():
            await self._write_all(Table("sources"), source)
            for table in TABLES:
                await self._rows(f"DELETE FROM {self.schema}{table.name}", {})  # noqa: S608 literals
                await self._write_all(table, source)
            for table in TABLES:
                if table.numbered is not None:
                    number = await source.last_number(table)
                    await self._ask("forget_last_number", table=table.name, column=table.numbered)
                    await self._ask("set_last_number", table=table.name, column=table.numbered, number=number)
            for forget in self.forgotten:
                await self._ask(forget)
            await self._ask("continue_numbers")

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


class ContentDigest:
    """The digest of records in the order of their ids, of all that a store knows of each."""

    def __init__(self) -> None:
        self.records = 0
        self._hash = blake2b(digest_size=16)

    def add(self, record: CopiedRecord) -> None:
        """Take in the next record."""
        self.records += 1
        self._hash.update(msgspec.msgpack.encode(record))

    def text(self) -> str:
        """The digest of what was taken in, in hexadecimal."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a store: how many records, their digest, the rows of other tables, the state of its archive."""

    records: int
    digest: str
    tables: Mapping[str, int]
    archive: str | None


async def contents(end: End, progress: Progress) -> Contents:
    """Read through all records of a store."""
    digest, total, after = ContentDigest(), await end.count(), ""
    while page := await end.page(after):
        for kept in page:
            digest.add(kept)
        after = page[-1].record_id
        progress.progressed("checking", digest.records, total)
    return Contents(digest.records, digest.text(), await end.row_counts(), await end.archive())
