"""The first reading of a source: its records into the store, and the position behind them.

The records are committed before the position is. So a kill repeats only records that the store has already, and their
ids make them the same records.
"""

import asyncio
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
"""Called after every page with its number of rows, and the fraction of the source that lies behind."""

_AT_ONCE: Final = 2
"""While the database works on one page, another one is being put together."""


class BadPosition(AuditordError):
    """The file that says how far an import came cannot be read or written.

    Remedy:
        give the service's user the folder `imports` of state_dir, or begin anew with --restart: nothing is imported
        twice.
    """


class Progressed(msgspec.Struct, frozen=True):
    """The position of an import.

    Args:
        position: the importer's own word for it; None at its beginning.
        written: whether everything is in the store, and only remains to be compared.
    """

    position: str | None = None
    written: bool = False


class PositionFile(msgspec.Struct, frozen=True):
    """The file of a position, which survives a kill and a power cut."""

    path: Path

    @classmethod
    def of(cls, folder: Path, *what: str) -> "PositionFile":
        """Return the file in a folder for an import that these words identify."""
        name = blake2b("\0".join(what).encode(), digest_size=8).hexdigest()
        return cls(folder / f"{name}.json")

    def read(self) -> Progressed:
        """Read the position that was written last; the beginning if none was.

        Raises:
            BadPosition: it was written by another program.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Progressed)
        except FileNotFoundError:
            return Progressed()
        except (OSError, msgspec.DecodeError) as error:
            raise BadPosition(f"{self.path} cannot be used: {error}; with --restart it is not needed") from error

    def write(self, progressed: Progressed) -> None:
        """Replace it, durably: there is always one whole version.

        Raises:
            BadPosition: it cannot be written.
        """
        try:
            write_durably(self.path, msgspec.json.encode(progressed))
        except OSError as error:
            raise BadPosition(f"{self.path} cannot be written: {error.strerror}") from error

    def forget(self) -> None:
        """Begin at the beginning the next time."""
        self.path.unlink(missing_ok=True)


class Writer(msgspec.Struct, frozen=True):
    """Puts records into a store.

    Args:
        store: the target; senders must not forward imported records, so the store has no outbox.
        transform: what every record meets before it is kept here.
        refused: receives the reason for which the store refuses a record for good.
        replacing: whether records that are stored with other content (of the same start) are corrected, and what they
            were is kept in their history; whether those come back that were deleted.
    """

    store: RecordStore
    provenance: Provenance
    transform: Transform | None
    refused: Callable[[str], None]
    replacing: bool = False

    async def write_all(self, importer: Importer, file: PositionFile, advanced: Advanced) -> None:
        """Read the source from the position in the file to its end.

        Rows that are no records, or that the store refuses, are left out: comparing finds them again.

        Raises:
            AuditordError: the source or the store fails; the position is behind the last page that is in the store.
        """
        position = file.read().position
        async with aclosing(in_order(importer.pages(position), self._write)) as written:
            async for page, _ in written:
                position = page.position
                file.write(Progressed(position))
                advanced(len(page.records), page.fraction)
        file.write(Progressed(position, written=True))

    async def _write(self, page: ImportPage) -> None:
        records = await self._wanted([each for each in transformed(page, self.transform) if isinstance(each, Record)])
        verdicts = await self._add(records)
        if self.replacing and Verdict.DIFFERENT in verdicts:
            pairs = zip(records, verdicts, strict=True)
            await self._correct([record for record, verdict in pairs if verdict is Verdict.DIFFERENT])

    async def _wanted(self, records: Sequence[Record]) -> Sequence[Record]:
        """Leave out those that were deleted from the store; most likely they were in the source by mistake."""
        if self.replacing:
            return records
        deleted = await self.store.deleted([record.record_id for record in records])
        return [record for record in records if record.record_id not in deleted]

    async def _correct(self, records: Sequence[Record]) -> None:
        stored = await self.store.documents([record.record_id for record in records])
        corrections = [
            Amendment(Action.CORRECT, stored[record.record_id], record, REASON)
            for record in records
            if record.record_id in stored
        ]
        # The comparison shows records that were changed meanwhile or refused.
        try:
            await self.store.amend(corrections, self.provenance)
        except InvalidRecord:
            for correction in corrections:
                await self._correct_alone(correction)

    async def _correct_alone(self, correction: Amendment) -> None:
        try:
            await self.store.amend([correction], self.provenance)
        except InvalidRecord as error:
            self.refused(str(error))

    async def _add(self, records: Sequence[Record]) -> Sequence[Verdict | InvalidRecord]:
        outcomes = await add_each(self.store, records, self.provenance, Duplicates.SAME_RUN)
        for outcome in outcomes:
            if isinstance(outcome, InvalidRecord):
                self.refused(str(outcome))
        return outcomes


def transformed(page: ImportPage, transform: Transform | None) -> Sequence[Record | InvalidRecord]:
    """Return the records of a page in the form in which they are kept here."""
    if transform is None:
        return page.records
    return [each if isinstance(each, InvalidRecord) else _transformed(each, transform) for each in page.records]


def _transformed(record: Record, transform: Transform) -> Record | InvalidRecord:
    try:
        return transform(record)
    except InvalidRecord as error:
        return error


async def in_order(
    pages: AsyncGenerator[ImportPage, None], work: Callable[[ImportPage], Coroutine[Any, Any, T]]
) -> AsyncGenerator[tuple[ImportPage, T], None]:
    """Work on several pages at a time; yield each with its result, in order, after all before it are done."""
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
