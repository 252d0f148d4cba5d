"""The archive compared with what the record store knows of it."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pyiceberg.expressions import LessThanOrEqual

from auditord.archive.table import ArchiveTable
from auditord.store import RecordStore
from auditord.store.archived import Removal
from auditord_hookspecs.wording import counted

_AT_ONCE: Final = 1_000


@dataclass
class Verified:
    """The result of a verification.

    Args:
        records: rows that were read, count, and are known to the store.
        expected: how many the store knows.
        findings: what is wrong, in words.
    """

    records: int = 0
    expected: int = 0
    findings: list[str] = field(default_factory=list[str])


async def verify(
    store: RecordStore, table: ArchiveTable, progressed: Callable[[int, int], None] = lambda _done, _total: None
) -> Verified:
    """Read every row that counts, and compare its id and chunk with the store's index.

    Args:
        store: with the index.
        table: is read as of the snapshot that counts.
        progressed: is called with the number of records that have been read, and of all.
    """
    known = await store.archive_counted()
    state = known.state
    result = Verified(expected=state.records)
    records = table.records(state.snapshot_id, LessThanOrEqual(term="chunk", value=state.chunk))
    while some := await asyncio.to_thread(lambda: list(islice(records, _AT_ONCE))):
        rows = {Removal(each.record.record_id, each.chunk) for each in some} - set(known.removals)
        ids = set(await store.archived([row.record_id for row in rows]))
        result.records += len(rows & ids)
        progressed(result.records, result.expected)
        unknown = sorted(row.record_id for row in rows - ids)
        result.findings += [f"{each!r} is in the table, and the record store does not know it" for each in unknown]
    if result.records != result.expected:
        result.findings.append(
            f"{counted(result.expected, 'record is', 'records are')} archived, {result.records:,} of them in the table"
        )
    return result
