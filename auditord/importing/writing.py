"""The first reading of a source: its records into the store, and the position behind them."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from auditord.importing.conversion import Conversion, convert_page
from auditord.importing.position import PositionFile, Progressed
from auditord.importing.source import Page, Source, in_order
from auditord.ingest import add_each
from auditord.store import Duplicates, Provenance, RecordStore, Verdict
from auditord.store.amendments import Action, Amendment
from auditord_hookspecs import InvalidRecord, Record

REASON: Final = "imported again with --replace"

Advanced = Callable[[int, float], None]
"""Called after every page with its number of rows, and the fraction of the source that lies behind."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Puts records into a store.

    Args:
        store: the target; nothing of what is imported may be forwarded by senders, so it is one without an outbox.
        refused: receives the reason for which the store refuses a record for good.
        replacing: whether records that are stored with other content (of the same start) are corrected, and what they
            were is kept in their history; whether those come back that were deleted.
    """

    store: RecordStore
    provenance: Provenance
    conversion: Conversion
    refused: Callable[[str], None]
    replacing: bool = False

    async def write_all(self, source: Source, file: PositionFile, advanced: Advanced) -> None:
        """Read the source from the position in the file to its end.

        Rows that are no records, or that the store refuses, are left out: comparing finds them again.

        Raises:
            SourceFailed: the source fails; the position is behind the last page that is in the store.
            StoreUnavailable: the store fails; the same.
        """
        position = file.read().position
        async with source.pages(position) as pages, aclosing(in_order(pages, self._write)) as written:
            async for page, _ in written:
                position = page.position
                file.write(Progressed(position))
                advanced(len(page.texts), page.fraction)
        file.write(Progressed(position, written=True))

    async def _write(self, page: Page) -> None:
        good, _ = convert_page(page, self.conversion)
        records = await self._wanted([each.after for each in good])
        verdicts = await self._add(records)
        if self.replacing and Verdict.DIFFERENT in verdicts:
            pairs = zip(records, verdicts, strict=True)
            await self._correct([record for record, verdict in pairs if verdict is Verdict.DIFFERENT])

    async def _wanted(self, records: Sequence[Record]) -> Sequence[Record]:
        """Without those that were deleted from the store; most likely they were in AUDITOR by mistake."""
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
        # What is changed meanwhile, and what is refused, shows when it is compared.
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
