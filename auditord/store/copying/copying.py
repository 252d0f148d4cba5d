"""Copy a store. Records that the target already has are kept, so that an interrupted copy can be resumed.

Both ends are read in the order of ids, page by page, and differences are written to the target. At the end, both are
read again, and only if all records are equal, the target may be used.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from hashlib import blake2b

import msgspec

from auditord.config.model import StoreSection
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.postgres.address import address_of
from auditord.store.copying.endpoints import PAGE_SIZE, CopiedRecord, CopyRefused, End, Progress
from auditord.store.copying.postgres import postgres_source, postgres_target
from auditord.store.copying.sqlite import sqlite_source, sqlite_target
from auditord.store.lake import LakePart
from auditord_hookspecs.wording import counted


class Copied(msgspec.Struct, frozen=True):
    """The result of a copy.

    Args:
        records: the number of records in each store.
        written: the number of records that were written to the target.
        digest: the digest of the records; see :class:`ContentDigest`.
    """

    records: int
    written: int
    digest: str


async def copy_store(
    source: StoreSection, target: StoreSection, *, resume: bool, now: Callable[[], datetime], progress: Progress
) -> Copied:
    """Copy everything that a store keeps, except the cells of roll-ups, which the daemon fills from the records.

    Args:
        source: read as of one moment, even while it is being written.
        target: must be empty, unless a copy is resumed. In PostgreSQL, missing tables are created.
        resume: whether to continue an interrupted copy of the same source.
        now: the clock for the times at which migrations were applied.
        progress: is notified.

    Raises:
        CopyRefused: the target has records, or differs from the source at the end.
        SchemaMismatch: a store is another program's, or of another version.
        StoreUnavailable: a store cannot be used now. Copied records stay, and the copy can be resumed.
    """
    async with AsyncExitStack() as stack:
        source_end: End = await stack.enter_async_context(
            postgres_source(address_of(source)) if is_postgresql(source.url) else sqlite_source(sqlite_path(source.url))
        )
        target_end: End = await stack.enter_async_context(
            postgres_target(address_of(target), now)
            if is_postgresql(target.url)
            else sqlite_target(sqlite_path(target.url))
        )
        unfinished = await target_end.find_unfinished()
        if unfinished is None:
            if not await target_end.is_empty():
                raise CopyRefused(f"{target_end.where} is not empty: name an empty store, so that no records are mixed")
            await target_end.begin(source_end.where)
        elif unfinished != source_end.where:
            raise CopyRefused(
                f"{target_end.where} holds an unfinished copy of {unfinished}: "
                "continue that copy, or name an empty store"
            )
        elif not resume:
            raise CopyRefused(
                f"{target_end.where} holds an unfinished copy of {unfinished}: add --resume to continue it"
            )
        return await _copy_records(source_end, target_end, progress)


async def _copy_records(source: End, target: End, progress: Progress) -> Copied:
    total, written, done = await source.count(), 0, 0
    added, removed = list[CopiedRecord](), list[str]()
    async with aclosing(_side_by_side(source.page, target.page)) as pairs:
        async for wanted, stored in pairs:
            done += wanted is not None
            if wanted != stored:
                added += [wanted] if wanted is not None else []
                removed += [stored.record_id] if stored is not None else []
                if len(added) + len(removed) >= PAGE_SIZE:
                    await target.write(added, removed)
                    written += len(added)
                    added, removed = [], []
            if done % PAGE_SIZE == 0:
                progress.note_progress("copying", done, total)
    if added or removed:
        await target.write(added, removed)
    written += len(added)
    await target.refill(source)
    digest = ContentDigest()
    async with aclosing(_side_by_side(source.page, target.page)) as pairs:
        async for wanted, stored in pairs:
            if wanted is None or wanted != stored:
                raise CopyRefused(f"{target.where} differs from the source: {_difference(wanted, stored)}")
            digest.add(wanted)
            if digest.records % PAGE_SIZE == 0:
                progress.note_progress("comparing", digest.records, total)
    if digest.records != total:
        raise CopyRefused(
            f"{counted(digest.records, 'record was', 'records were')} compared, but {source.where} counts {total}"
        )
    await target.finish()
    return Copied(digest.records, written, digest.text())


def _difference(wanted: CopiedRecord | None, stored: CopiedRecord | None) -> str:
    if wanted is None or stored is None:
        record = wanted or stored
        return f"the record {record and record.record_id!r} is {'missing' if stored is None else 'not in the source'}"
    names = [name for name in CopiedRecord.__struct_fields__ if getattr(wanted, name) != getattr(stored, name)]
    return f"the record {wanted.record_id!r} differs in {' and '.join(names)}"


_Page = Callable[[str], Awaitable[Sequence[CopiedRecord]]]


async def _side_by_side(
    source: _Page, target: _Page
) -> AsyncGenerator[tuple[CopiedRecord | None, CopiedRecord | None], None]:
    """Yield each id's record in the source and in the target. Callers may write a yielded record to the target."""
    async with aclosing(_all(source)) as ours, aclosing(_all(target)) as theirs:
        wanted, stored = await anext(ours, None), await anext(theirs, None)
        while wanted is not None or stored is not None:
            if stored is None or (wanted is not None and wanted.record_id < stored.record_id):
                yield wanted, None
                wanted = await anext(ours, None)
            elif wanted is None or stored.record_id < wanted.record_id:
                yield None, stored
                stored = await anext(theirs, None)
            else:
                yield wanted, stored
                wanted, stored = await anext(ours, None), await anext(theirs, None)


async def _all(read: _Page) -> AsyncGenerator[CopiedRecord, None]:
    after = ""
    while page := await read(after):
        for kept in page:
            yield kept
        after = page[-1].record_id


class ContentDigest:
    """The digest of records in the order of their ids, with everything that a store knows about them."""

    def __init__(self) -> None:
        self.records = 0
        self._hash = blake2b(digest_size=16)

    def add(self, record: CopiedRecord) -> None:
        self.records += 1
        self._hash.update(msgspec.msgpack.encode(record))

    def text(self) -> str:
        """Return the digest of all records so far, in hexadecimal."""
        return self._hash.hexdigest()


class Contents(msgspec.Struct, frozen=True):
    """The contents of a store: number and digest of records, row counts of other tables, and its part in the lake."""

    records: int
    digest: str
    tables: Mapping[str, int]
    lake: LakePart | None


async def contents(end: End, progress: Progress) -> Contents:
    """Read all records of a store to describe its contents."""
    digest, total, after = ContentDigest(), await end.count(), ""
    while page := await end.page(after):
        for kept in page:
            digest.add(kept)
        after = page[-1].record_id
        progress.note_progress("checking", digest.records, total)
    return Contents(digest.records, digest.text(), await end.row_counts(), await end.lake())
