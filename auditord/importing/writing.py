"""The first reading of a source: store its records, and save the position after them.

Records are committed before the position is. So after a kill, only records are repeated that the store already has, and
their ids identify them as the same records.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from auditord.database.durable_files import write_durably
from auditord.ingest import add_each
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.amendments import Action, Amendment
from auditord.store.store import RecordStore
from auditord_hookspecs import AuditordError, Importer, ImportPage, InvalidRecord, Record, Transform

T = TypeVar("T")

REASON: Final = "imported again with --replace"

Advanced = Callable[[int, float], None]
"""Called after every page with its number of rows, and the fraction of the source read so far."""

_AT_ONCE: Final = 2
"""Further pages in work while the oldest one is awaited: the database works on one page, another is prepared."""


class BadPosition(AuditordError):
    """The file with the position of an import cannot be read or written.

    Remedy:
        make the service's user the owner of the folder `imports` in state_dir, or start again with --restart: nothing
        is imported twice.
    """


class Progressed(msgspec.Struct, frozen=True):
    """The position of an import.

    Args:
        position: in the importer's own format; None at the beginning.
        written: whether all records are stored and only the comparison remains.
    """

    position: str | None = None
    written: bool = False


class PositionFile(msgspec.Struct, frozen=True):
    """The file with the position of an import, which survives a kill and a power cut."""

    path: Path

    @classmethod
    def of(cls, folder: Path, *what: str) -> "PositionFile":
        """Return the file in a folder for an import that these words identify."""
        name = blake2b("\0".join(what).encode(), digest_size=8).hexdigest()
        return cls(folder / f"{name}.json")

    def read(self) -> Progressed:
        """Return the last written position, or the beginning if there is none.

        Raises:
            BadPosition: the file cannot be read or parsed.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Progressed)
        except FileNotFoundError:
            return Progressed()
        except (OSError, msgspec.DecodeError) as error:
            raise BadPosition(
                f"{self.path} cannot be used: {error}; use --restart to import from the beginning without it"
            ) from error

    def write(self, progressed: Progressed) -> None:
        """Replace the file durably and atomically.

        Raises:
            BadPosition: it cannot be written.
        """
        try:
            write_durably(self.path, msgspec.json.encode(progressed))
        except OSError as error:
            raise BadPosition(f"{self.path} cannot be written: {error.strerror}") from error

    def forget(self) -> None:
        """Delete the file, so that the next import starts at the beginning."""
        self.path.unlink(missing_ok=True)


class Writer(msgspec.Struct, frozen=True):
    """Writes records to a store.

    Args:
        store: the target; senders must not forward imported records, so the store has no outbox.
        transform: applied to every record before it is stored.
        refused: receives the reason if the store refuses a record for good.
        replacing: whether to correct stored records of the same start with other content, whose old versions stay in
            their history, and to restore deleted records.
    """

    store: RecordStore
    provenance: Provenance
    transform: Transform | None
    refused: Callable[[str], None]
    replacing: bool = False

    async def write_all(self, importer: Importer, file: PositionFile, advanced: Advanced) -> None:
        """Read the source from the position in the file to its end.

        Rows that are invalid, or that the store refuses, are skipped; the comparison reports them.

        Raises:
            AuditordError: the source or the store failed; the position is after the last stored page.
        """
        position, rollups = file.read().position, self.store.rollups
        # Folding at the same time would take more of the database than the rows. It begins with the comparison, which
        # only reads, and the daemon does the rest: answers do not wait for it.
        limits, rollups.limits = rollups.limits, msgspec.structs.replace(rollups.limits, unread=sys.maxsize)
        try:
            async with aclosing(in_order(importer.pages(position), self._write)) as written:
                async for page, _ in written:
                    position = page.position
                    file.write(Progressed(position))
                    advanced(len(page.records), page.fraction)
        finally:
            rollups.limits = limits
            rollups.wake()
        file.write(Progressed(position, written=True))

    async def _write(self, page: ImportPage) -> None:
        records = [each for each in transform_page(page, self.transform) if isinstance(each, Record)]
        if not self.replacing:  # most likely, records that were deleted were in the source by mistake
            deleted = await self.store.find_deleted([record.record_id for record in records])
            records = [record for record in records if record.record_id not in deleted]
        verdicts = await add_each(self.store, records, self.provenance, Duplicates.SAME_RUN)
        for verdict in verdicts:
            if isinstance(verdict, InvalidRecord):
                self.refused(str(verdict))
        if self.replacing and Verdict.DIFFERENT in verdicts:
            pairs = zip(records, verdicts, strict=True)
            await self._correct([record for record, verdict in pairs if verdict is Verdict.DIFFERENT])

    async def _correct(self, records: Sequence[Record]) -> None:
        stored = await self.store.documents([record.record_id for record in records])
        corrections = [
            Amendment(Action.CORRECT, stored[record.record_id], record, REASON)
            for record in records
            if record.record_id in stored
        ]
        # The comparison reports records that were changed meanwhile or refused.
        try:
            await self.store.amend(corrections, self.provenance)
        except InvalidRecord:
            for correction in corrections:
                try:
                    await self.store.amend([correction], self.provenance)
                except InvalidRecord as error:
                    self.refused(str(error))


def transform_page(page: ImportPage, transform: Transform | None) -> Sequence[Record | InvalidRecord]:
    """Return the records of a page after the transform, in the form in which they are stored."""
    if transform is None:
        return page.records
    records: list[Record | InvalidRecord] = []
    for each in page.records:
        try:
            records.append(each if isinstance(each, InvalidRecord) else transform(each))
        except InvalidRecord as error:
            records.append(error)
    return records


async def in_order(
    pages: AsyncGenerator[ImportPage, None], work: Callable[[ImportPage], Coroutine[Any, Any, T]]
) -> AsyncGenerator[tuple[ImportPage, T], None]:
    """Process several pages at a time, and yield each page with its result, in the order of the pages."""
    waiting: deque[tuple[ImportPage, asyncio.Task[T]]] = deque()
    try:
        async with aclosing(pages):
            async for page in pages:
                waiting.append((page, asyncio.create_task(work(page))))
                if len(waiting) > _AT_ONCE:
                    yield waiting[0][0], await waiting[0][1]
                    waiting.popleft()
        while waiting:
            yield waiting[0][0], await waiting[0][1]
            waiting.popleft()
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
