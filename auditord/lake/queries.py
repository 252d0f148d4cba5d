"""Sums and records of a snapshot of the lake, as the record stores give them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace
from pyiceberg.table import Table

from auditord.database.instants import from_micros
from auditord.errors import StoreUnavailable
from auditord.lake.engines import Chosen, Engine, Work
from auditord.lake.table import LakeTable, count_released, positions_of
from auditord.store.lake import Days, LakeOvertaken, LakeRecord, LakeState, Released, ReleasedRow
from auditord.store.rollups.scope import scope_within
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.aggregates import LakeSnapshot

T = TypeVar("T")
_Choose: TypeAlias = Callable[[Table], Chosen]

_BETWEEN_INTERRUPTS: Final = 0.1
"""Seconds: an interrupt that comes before a statement has begun is forgotten."""


class LakeReader:
    """Asks the lake, in threads of its own.

    Args:
        table: of the lake.
        daemon: whose records count; None: those of all.
        engine: computes.
        name: of this daemon, whose released records are read; None: it has none.
    """

    def __init__(self, table: LakeTable, daemon: str | None, engine: Engine, name: str | None = None) -> None:
        self._table = table
        self._daemon = daemon
        self._engine = engine
        self._name = name if name is not None else daemon
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="lake")

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the newest snapshot. Cancelling the call ends the work.

        Raises:
            StoreUnavailable: the lake has nothing yet or cannot be read now, or the limits are too narrow.
        """
        work = Work()
        return await self._done(work, lambda: self._answer(work, query))

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Pages of wire texts of the newest snapshot, in the query's order; the first one is there, if there is any.

        Raises:
            StoreUnavailable: the lake has nothing yet or cannot be read now, or the limits are too narrow.
        """
        async with self._streamed(query, lambda table: Chosen(self._newest(table).number, self._daemon)) as pages:
            yield pages

    async def find(self, state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        """Single rows; see :class:`auditord.store.lake.ReleasedRecords`."""

        def found() -> Sequence[LakeRecord]:
            with self._table.loaded() as table:
                has_named = table.snapshot_by_id(state.snapshot_id) is not None
                return self._table.find(table, state.snapshot_id if has_named else None, self._name or "", wanted)

        return await self._done(Work(), found)

    async def sum_released(self, released: Released, query: AggregateQuery, days: Days | None) -> Aggregates:
        """Sums over released records; see :class:`auditord.store.lake.ReleasedRecords`."""
        scope, work = None if days is None else scope_within(query, *days), Work()

        def answer() -> Aggregates:
            with self._table.loaded() as table:
                chosen = replace(self._released(table, released), scope=scope)
                return self._engine.sums(table, replace(query, as_of=None), chosen, work)

        return await self._done(work, answer)

    @asynccontextmanager
    async def stream_released(
        self, released: Released, query: RecordQuery
    ) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Pages of released records; see :class:`auditord.store.lake.ReleasedRecords`."""
        async with self._streamed(query, lambda table: self._released(table, released)) as pages:
            yield pages

    @asynccontextmanager
    async def _streamed(
        self, query: RecordQuery, choose: _Choose
    ) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        work = Work()
        pages = _Pages(self._pages(work, query, choose))
        try:
            first = await self._done(work, pages.next)
            yield self._all(work, first, pages)
        finally:
            self._threads.submit(pages.close)

    async def _all(self, work: Work, first: Sequence[bytes], pages: "_Pages") -> AsyncIterator[Sequence[bytes]]:
        page = first
        while page:
            yield page
            page = await self._done(work, pages.next)

    async def _done(self, work: Work, call: Callable[[], T]) -> T:
        """Do a part of the work in a thread; cancelling the call ends the work."""
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, call)

        def leave() -> None:
            if not answer.done():
                work.interrupt()
                loop.call_later(_BETWEEN_INTERRUPTS, leave)
            elif not answer.cancelled():
                answer.exception()  # retrieved, so that asyncio does not warn of it

        try:
            return await asyncio.shield(answer)
        finally:
            leave()

    def close(self) -> None:
        """Wait for open questions, and release everything."""
        self._threads.shutdown()
        self._engine.close()

    def _answer(self, work: Work, query: AggregateQuery) -> Aggregates:
        with self._table.loaded() as table:
            snapshot = self._newest(table)
            answer = self._engine.sums(table, query, Chosen(snapshot.number, self._daemon), work)
        return replace(answer, snapshot=snapshot)

    def _pages(self, work: Work, query: RecordQuery, choose: _Choose) -> Generator[Sequence[bytes], None, None]:
        with self._table.loaded() as table:
            yield from self._engine.records(table, query, choose(table), work)

    def _newest(self, table: Table) -> LakeSnapshot:
        """The newest snapshot.

        Raises:
            StoreUnavailable: there is none, or the daemon has not synced anything yet.
        """
        newest, positions = table.current_snapshot(), positions_of(table)
        if newest is None or (self._daemon is not None and self._daemon not in positions):
            raise StoreUnavailable(
                f"The lake {self._table.location} has no records{'' if self._daemon is None else ' of ' + self._daemon}"
                " yet: they come with the next run, or `auditord lake run`."
            )
        counted = positions.values() if self._daemon is None else [positions[self._daemon]]
        is_complete = not any(position.is_filling for position in counted)
        return LakeSnapshot(newest.snapshot_id, from_micros(newest.timestamp_ms * 1_000), is_complete)

    def _released(self, table: Table, released: Released) -> Chosen:
        """The rows that are released records: of the snapshot that the store names, or of the newest if it is gone.

        Other daemons expire snapshots, and leave the rows of this one alone. So the newest snapshot has the same
        ones, unless a later state of the store has changed them: then some are missing.

        Raises:
            StoreUnavailable: the table does not have them.
        """
        state, newest, here = released.state, table.current_snapshot(), self._table.location
        position = None if self._name is None else positions_of(table).get(self._name)
        if str(table.metadata.table_uuid) != state.released_in:
            raise StoreUnavailable(
                f"This record store has released records to the lake at {state.location}, and {here} is another table: "
                "mend lake.catalog and lake.warehouse, or restore the lake."
            )
        if newest is None or position is None or position.store_id != state.store_id:
            raise StoreUnavailable(
                f"The lake {here} has no records of this record store under the name {self._name}: mend lake.name."
            )
        if table.snapshot_by_id(state.snapshot_id) is not None:
            return Chosen(state.snapshot_id, self._name, released)
        is_older = (newest.sequence_number or 0) < state.sequence
        is_ahead = position.batch > state.given or position.release > state.release  # or a run was killed
        if is_older or (is_ahead and count_released(table, self._name or "", released) < state.records):
            raise LakeOvertaken(
                f"The lake {here} is {'older' if is_older else 'newer'} than this record store, and its snapshot "
                f"{state.snapshot_id} is gone: let `auditord lake run` put that right, and try again."
            )
        return Chosen(newest.snapshot_id, self._name, released)


class _Pages:
    """Pages that one thread at a time takes, and that are closed once it has done so."""

    def __init__(self, pages: Generator[Sequence[bytes], None, None]) -> None:
        self._pages = pages
        self._lock = Lock()

    def next(self) -> Sequence[bytes]:
        """The next page; nothing at the end."""
        with self._lock:
            return next(self._pages, ())

    def close(self) -> None:
        """End the question."""
        with self._lock:
            self._pages.close()
