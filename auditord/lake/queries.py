"""Queries for sums and records of a lake snapshot, with the same results as from a record store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace
from pyiceberg.table import Table

from auditord.database.instants import from_micros
from auditord.lake.engines import Chosen, Engine, Work
from auditord.lake.positions import newest_first, positions_of
from auditord.lake.reading import count_released
from auditord.lake.table import LakeTable
from auditord.store.lake import Days, LakeOvertaken, LakeRecord, LakeState, LakeUnavailable, Released, ReleasedRow
from auditord.store.rollups.scope import scope_within
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.aggregates import LakeSnapshot

T = TypeVar("T")
_Choose: TypeAlias = Callable[[Table], Chosen]

_BETWEEN_INTERRUPTS: Final = 0.1
"""Seconds between repeated interrupts. An interrupt that arrives before a statement has started is lost."""


class LakeReader:
    """Queries of the lake, run in their own threads.

    Args:
        table: of the lake.
        daemon: the daemon to query; None for all daemons.
        engine: runs the queries.
        name: this daemon's name, under which its released records are; the default is ``daemon``.
    """

    def __init__(self, table: LakeTable, daemon: str | None, engine: Engine, name: str | None = None) -> None:
        self._table = table
        self._daemon = daemon
        self._engine = engine
        self._name = name if name is not None else daemon
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="lake")

    async def aggregate(self, query: AggregateQuery, released: Released | None = None) -> Aggregates:
        """Return sums over the newest snapshot, which must have these released records.

        Cancelling the call interrupts the query.

        Raises:
            LakeMiscounted: another program has deleted or added rows, or the released records have just changed.
            StoreUnavailable: the lake is empty or unavailable, or the engine's limits are too low.
        """
        work = Work()

        def answer() -> Aggregates:
            with self._table.load() as table:
                snapshot = self._newest(table, released)
                found = self._engine.sums(table, query, Chosen(snapshot.number, self._daemon), work)
            return replace(found, snapshot=snapshot)

        return await self._in_thread(work, answer)

    @asynccontextmanager
    async def stream(
        self, query: RecordQuery, released: Released | None = None
    ) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Yield pages of wire texts of the newest snapshot, in the query's order. The first page is read on entry.

        Raises the same errors as :meth:`aggregate`.
        """

        def choose(table: Table) -> Chosen:
            return Chosen(self._newest(table, released).number, self._daemon)

        async with self._open_pages(query, choose) as pages:
            yield pages

    async def find(self, state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        """Return single rows; see :class:`auditord.store.lake.ReleasedRecords`."""

        def find_rows() -> Sequence[LakeRecord]:
            with self._table.load() as table:
                has_snapshot = table.snapshot_by_id(state.snapshot_id) is not None
                return self._table.find(table, state.snapshot_id if has_snapshot else None, self._name or "", wanted)

        return await self._in_thread(Work(), find_rows)

    async def sum_released(self, released: Released, query: AggregateQuery, days: Days | None) -> Aggregates:
        """Return sums over released records; see :class:`auditord.store.lake.ReleasedRecords`."""
        scope, work = None if days is None else scope_within(query, *days), Work()

        def answer() -> Aggregates:
            with self._table.load() as table:
                chosen = replace(self._choose_released(table, released), scope=scope)
                return self._engine.sums(table, replace(query, as_of=None), chosen, work)

        return await self._in_thread(work, answer)

    @asynccontextmanager
    async def stream_released(
        self, released: Released, query: RecordQuery
    ) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Yield pages of released records; see :class:`auditord.store.lake.ReleasedRecords`."""
        async with self._open_pages(query, lambda table: self._choose_released(table, released)) as pages:
            yield pages

    @asynccontextmanager
    async def _open_pages(
        self, query: RecordQuery, choose: _Choose
    ) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        work = Work()
        pages = _Pages(self._pages(work, query, choose))
        try:
            first = await self._in_thread(work, pages.next)
            yield self._all(work, first, pages)
        finally:
            self._threads.submit(pages.close)

    async def _all(self, work: Work, first: Sequence[bytes], pages: "_Pages") -> AsyncIterator[Sequence[bytes]]:
        page = first
        while page:
            yield page
            page = await self._in_thread(work, pages.next)

    async def _in_thread(self, work: Work, call: Callable[[], T]) -> T:
        """Run a part of the work in a thread. Cancelling the call interrupts the work."""
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, call)

        def interrupt() -> None:
            if not answer.done():
                work.interrupt()
                loop.call_later(_BETWEEN_INTERRUPTS, interrupt)
            elif not answer.cancelled():
                answer.exception()  # retrieve it, or asyncio logs a warning

        try:
            return await asyncio.shield(answer)
        finally:
            interrupt()

    def close(self) -> None:
        """Wait for running queries, then close the engine."""
        self._threads.shutdown()
        self._engine.close()

    def _pages(self, work: Work, query: RecordQuery, choose: _Choose) -> Generator[Sequence[bytes], None, None]:
        with self._table.load() as table:
            yield from self._engine.records(table, query, choose(table), work)

    def _newest(self, table: Table, released: Released | None) -> LakeSnapshot:
        """Return the newest snapshot.

        Raises:
            LakeMiscounted: another program has deleted or added rows.
            LakeOvertaken: the newest snapshot does not follow the store's.
            StoreUnavailable: there is no snapshot, or the daemon has not synced anything yet.
        """
        newest, positions = table.current_snapshot(), positions_of(table)
        if newest is None or (self._daemon is not None and self._daemon not in positions):
            raise LakeUnavailable(
                f"The lake {self._table.location} has no records{'' if self._daemon is None else ' of ' + self._daemon}"
                " yet: the next run syncs them; or run `auditord lake run` now."
            )
        self._table.counts.refuse_changed(table, self._daemon)
        if released is not None and released.state.records and self._name is not None:
            # Whether the newest snapshot follows the store's may no longer be known.
            state = released.state
            same = next((each for each in newest_first(table) if (each.sequence_number or 0) <= state.sequence), None)
            if same is not None and same.snapshot_id != state.snapshot_id:
                raise LakeOvertaken(
                    f"The lake {self._table.location} was set back: its newest snapshot does not follow "
                    f"{state.snapshot_id}, which this record store knows. Run `auditord lake run`, and try again."
                )
            self._table.counts.refuse_miscounted(table, newest.snapshot_id, self._name, released)
        counted = positions.values() if self._daemon is None else [positions[self._daemon]]
        is_complete = not any(position.is_filling for position in counted)
        return LakeSnapshot(newest.snapshot_id, from_micros(newest.timestamp_ms * 1_000), is_complete)

    def _choose_released(self, table: Table, released: Released) -> Chosen:
        """Choose the released rows in the snapshot that the store names, or in the newest if that one has expired.

        Other daemons expire snapshots but leave this daemon's rows alone. So the newest snapshot has the same rows,
        unless a later state of the store has changed them. Then some are missing.

        Raises:
            StoreUnavailable: the table does not have these rows.
        """
        state, newest, here = released.state, table.current_snapshot(), self._table.location
        position = None if self._name is None else positions_of(table).get(self._name)
        if str(table.metadata.table_uuid) != state.released_in:
            raise LakeUnavailable(
                f"This record store has released records to the lake at {state.location}, but {here} is another table: "
                "correct lake.catalog and lake.warehouse, or restore the lake."
            )
        if newest is None or position is None or position.store_id != state.store_id:
            raise LakeUnavailable(
                f"The lake {here} has no records of this record store under the name {self._name}: correct lake.name."
            )
        if table.snapshot_by_id(state.snapshot_id) is not None:
            self._table.counts.refuse_miscounted(table, state.snapshot_id, self._name or "", released)
            return Chosen(state.snapshot_id, self._name, released)
        is_older = (newest.sequence_number or 0) < state.sequence
        is_ahead = position.batch > state.given or position.release > state.release  # or a run was killed
        if is_older or (is_ahead and count_released(table, self._name or "", released) < state.records):
            raise LakeOvertaken(
                f"The lake {here} is {'older' if is_older else 'newer'} than this record store, and does not have its "
                f"snapshot {state.snapshot_id}: run `auditord lake run`, and try again."
            )
        self._table.counts.refuse_miscounted(table, newest.snapshot_id, self._name or "", released)
        return Chosen(newest.snapshot_id, self._name, released)


class _Pages:
    """A generator of pages, with a lock so that it is not closed while a thread reads the next page."""

    def __init__(self, pages: Generator[Sequence[bytes], None, None]) -> None:
        self._pages = pages
        self._lock = Lock()

    def next(self) -> Sequence[bytes]:
        """Return the next page, or an empty one at the end."""
        with self._lock:
            return next(self._pages, ())

    def close(self) -> None:
        with self._lock:
            self._pages.close()
