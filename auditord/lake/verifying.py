"""The released records in the lake, compared with what the record store knows of them."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from auditord.database.instants import to_micros
from auditord.lake.pruning import rows_of_daemon
from auditord.lake.schema import RECORD_COLUMNS, records_of
from auditord.lake.table import LakeTable
from auditord.store import RecordStore
from auditord.store.lake import ReleasedRow
from auditord_hookspecs.wording import counted


@dataclass
class Verified:
    """The result of a verification.

    Args:
        records: rows that were read, count, and are known to the store.
        expected: how many the store knows.
        findings: a sentence for each fault.
    """

    records: int = 0
    expected: int = 0
    findings: list[str] = field(default_factory=list[str])


async def verify(
    store: RecordStore,
    table: LakeTable,
    daemon: str,
    progressed: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verified:
    """Read every row of a released record, and compare its id and release with the store's index.

    Args:
        store: with the index.
        table: of the lake, whose newest snapshot is read.
        daemon: the name of the store's records there.
        progressed: is called with the number of records that have been read, and of all.
    """
    released = await store.released()
    state, recalled = released.state, set(released.recalled)
    result = Verified(expected=state.records)
    batches = table.rows(rows_of_daemon(daemon, state.release), RECORD_COLUMNS)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        copies = await asyncio.to_thread(list, records_of(batch))
        rows = {ReleasedRow(each.record.record_id, each.release, to_micros(each.stop_time)) for each in copies}
        rows -= recalled
        known = rows & set(await store.find_released([row.record_id for row in rows]))
        result.records += len(known)
        progressed(result.records, result.expected)
        unknown = sorted(row.record_id for row in rows - known)
        result.findings += [
            f"{each!r} is released in the lake, and the record store does not know it" for each in unknown
        ]
    if result.records != result.expected:
        result.findings.append(
            f"{counted(result.expected, 'record is', 'records are')} released, {result.records:,} of them in the lake"
        )
    return result
