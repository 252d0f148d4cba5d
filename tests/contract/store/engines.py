"""The engine of the lake over the records of a store, in one Parquet file."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from auditord.lake.dialect import DuckDbDialect
from auditord.lake.duckdb_engine import DuckDb, EngineLimits, files_of_host, rows_in
from auditord.lake.engines import records_of, sums_of
from auditord.lake.schema import SCHEMA, rows_of
from auditord.store.lake import LakeRecord
from auditord.store.reading import decode_pages
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.wire import encode_record

_parquet: Any = import_module("pyarrow.parquet")  # Any: it ships no types
_schema: Any = SCHEMA  # its methods say little about their types


Stream: TypeAlias = Callable[[RecordQuery], AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]]
"""The method of a store."""


class LakeEngine:
    """Sums and records as the lake gives them.

    Args:
        folder: for the file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "lake.parquet"
        self._database = DuckDb(EngineLimits(256 << 20, 1, folder / "spill"))

    async def aggregate(self, store: RecordStore, query: AggregateQuery) -> Aggregates:
        """Sums over the records that the store has by now."""
        await self._copy(store.stream)
        with self._reading() as connection:
            return sums_of(rows_in(connection), query, DuckDbDialect("site"))

    @asynccontextmanager
    async def stream(self, stored: Stream, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """The records that a store has by now, whose method ``stream`` is given."""
        await self._copy(stored)
        with self._reading() as connection:
            yield _each(records_of(rows_in(connection), query, DuckDbDialect("site")))

    def _reading(self) -> AbstractContextManager[Any]:
        return self._database.reading(files_of_host([str(self._file)]))

    async def _copy(self, stored: Stream) -> None:
        async with stored(RecordQuery()) as pages:
            records = [record async for record in decode_pages(pages)]
        copies = [
            LakeRecord(record, encode_record(record).decode(), record.start_time, None, "", "") for record in records
        ]
        _parquet.write_table(rows_of(copies, _schema.as_arrow(), daemon="site", batch=1), self._file)


async def _each(pages: Iterator[Sequence[bytes]]) -> AsyncIterator[Sequence[bytes]]:
    for page in pages:
        yield page
