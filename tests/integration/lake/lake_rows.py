"""The rows of a lake, and what a store says that they must be."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Mapping
from typing import Any

from pyiceberg.expressions import EqualTo

from auditord.lake.schema import RECORD_COLUMNS, records_of
from auditord.lake.table import LakeTable
from auditord.store.store import RecordStore
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.wire import decode_record


def rows(table: LakeTable, daemon: str) -> Mapping[str, str]:
    """The wire texts of a daemon's records by id; none is there twice."""
    with table.load() as opened:
        read: Any = opened.scan(EqualTo(term="daemon", value=daemon), selected_fields=RECORD_COLUMNS).to_arrow()
    copies = [copy for batch in read.to_batches() for copy in records_of(batch)]
    found = {copy.record.record_id: copy.document for copy in copies}
    assert len(found) == len(copies)
    return found


async def texts(store: RecordStore) -> Mapping[str, str]:
    """The same of the store."""
    async with store.stream(RecordQuery()) as pages:
        documents = [document async for page in pages for document in page]
    return {decode_record(document).record_id: document.decode() for document in documents}
