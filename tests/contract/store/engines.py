"""The engine of the lake over the records of a store, in one Parquet file."""

from importlib import import_module
from pathlib import Path
from typing import Any

from auditord.archive.schema import rows_of
from auditord.lake.duckdb_engine import DuckDb, EngineLimits, sums_over
from auditord.lake.schema import SCHEMA
from auditord.store import RecordStore
from auditord.store.archived import ArchivedRecord
from auditord.store.reading import decoded
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.wire import encode_record

_parquet: Any = import_module("pyarrow.parquet")  # Any: it ships no types
_schema: Any = SCHEMA  # its methods say little about their types


class LakeEngine:
    """Sums as the lake gives them.

    Args:
        folder: for the file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "lake.parquet"
        self._database = DuckDb(EngineLimits(256 << 20, 1, folder / "spill"))

    async def aggregate(self, store: RecordStore, query: AggregateQuery) -> Aggregates:
        """The answer over the records that the store has by now."""
        async with store.stream(RecordQuery()) as pages:
            records = [record async for record in decoded(pages)]
        copies = [
            ArchivedRecord(record, encode_record(record).decode(), record.start_time, None, "", "")
            for record in records
        ]
        _parquet.write_table(rows_of(copies, _schema.as_arrow(), daemon="site", batch=1), self._file)
        with self._database.reading([str(self._file)]) as connection:
            return sums_over(connection, query, "site")
