"""What the two ends of a copy have in common."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeAlias

import msgspec

from auditord.duplicates import Duplicates
from auditord.store.protocol import Provenance
from auditord.store.rows import PendingRecord, make_pending
from auditord.store.sources import Sources
from auditord_hookspecs import AuditordError
from auditord_hookspecs.wire import decode_record

AT_ONCE: Final = 500
"""Rows that are read or written at a time."""

Row: TypeAlias = tuple[str | int | datetime | None, ...]
"""A row of a small table, with the same columns in both databases."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is copied as a whole.

    Args:
        name: of the table.
        times: the places of instants in a row.
        numbered: the columns that number its rows, in SQLite and in PostgreSQL.
    """

    name: str
    times: Collection[int] = ()
    numbered: str | None = None


TABLES: Final[Sequence[Table]] = (
    Table("differences", (3,), "arrival"),
    Table("versions", (4, 7, 8), "number"),
    Table("outbox", (3,), "number"),
    Table("plugin_state", (2,)),
    Table("spools"),
)


class CopyRefused(AuditordError):
    """A copy that would mix records, or did not come out equal."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A record with everything that a store knows of it.

    Args:
        record_id: its id.
        document: its wire text.
        content: the hash of its meta and components.
        received_at: of its first arrival.
        updated_at: of its last change.
        principal: who brought it.
        agent: with what.
    """

    record_id: str
    document: str
    content: int
    received_at: datetime
    updated_at: datetime | None
    principal: str | None
    agent: str | None


async def numbered(sources: Sources, records: Sequence[Kept]) -> Sequence[PendingRecord]:
    """Records as rows, their columns worked out from the wire text, which itself stays as it is, byte for byte."""
    return [await _numbered(sources, kept) for kept in records]


async def _numbered(sources: Sources, kept: Kept) -> PendingRecord:
    record, provenance = decode_record(kept.document.encode()), Provenance(kept.received_at, kept.principal, kept.agent)
    source, (score_set,) = await sources.numbers(provenance, [record])
    pending = make_pending(record, provenance, Duplicates.SAME_RUN, source=source, score_set=score_set)
    return msgspec.structs.replace(pending, row=msgspec.structs.replace(pending.row, document=kept.document))


class Progress(Protocol):
    """Who watches a copy."""

    def progressed(self, phase: str, done: int, total: int) -> None:
        """So many records have been copied, or compared."""
        ...


class Source(Protocol):
    """A store to be read: everything is as of the moment when it was opened."""

    where: str

    async def count(self) -> int:
        """How many records there are."""
        ...

    async def page(self, after: str) -> Sequence[Kept]:
        """The records behind an id, in the order of ids; none at the end."""
        ...

    def rows(self, name: str) -> AsyncIterator[Sequence[Row]]:
        """The rows of a small table, in parts."""
        ...

    async def last_numbers(self) -> Mapping[str, int]:
        """The highest number that each numbered table has ever given."""
        ...


class Target(Protocol):
    """A store to be filled; what it has now can be read."""

    where: str

    async def page(self, after: str) -> Sequence[Kept]:
        """As :meth:`Source.page`, of what is there now."""
        ...

    async def unfinished(self) -> str | None:
        """Which store is being copied here."""
        ...

    async def is_empty(self) -> bool:
        """Whether nothing has been kept here."""
        ...

    async def begin(self, source: str) -> None:
        """Let nobody use the store until :meth:`finish`."""
        ...

    async def write(self, added: Sequence[Kept], removed: Sequence[str]) -> None:
        """Remove records, then add others, in one transaction."""
        ...

    async def refill(self, source: Source) -> None:
        """Make everything beside the records equal to the source, in one transaction."""
        ...

    async def finish(self) -> None:
        """The copy is complete."""
        ...
