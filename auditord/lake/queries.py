"""Sums and records of a snapshot of the lake, as the record stores give them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from threading import Lock
from typing import Final, TypeVar

from pyiceberg.table import Table

from auditord.database.instants import from_micros
from auditord.errors import StoreUnavailable
from auditord.lake.engines import Engine, Work
from auditord.lake.table import LakeTable, positions_of
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.aggregates import LakeSnapshot

T = TypeVar("T")

_BETWEEN_INTERRUPTS: Final = 0.1
"""Seconds: an interrupt that comes before a statement has begun is forgotten."""


class LakeReader:
    """Asks the lake, in threads of its own.

    Args:
        table: of the lake.
        daemon: whose records count; None: those of all.
        engine: computes.
    """

    def __init__(self, table: LakeTable, daemon: str | None, engine: Engine) -> None:
        self._table = table
        self._daemon = daemon
        self._engine = engine
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="lake")

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the newest snapshot. Whoever does not wait for the answer ends the work on it.

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
        work = Work()
        pages = _Pages(self._pages(work, query))
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
        """Have a thread do something of the work on an answer; whoever does not wait for it ends the work."""
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, call)

        def leave() -> None:
            if not answer.done():
                work.interrupt()
                loop.call_later(_BETWEEN_INTERRUPTS, leave)
            elif not answer.cancelled():
                answer.exception()  # nobody asks for it any more

        try:
            return await asyncio.shield(answer)
        finally:
            leave()

    def close(self) -> None:
        """Wait for what is asked, and let go of all."""
        self._threads.shutdown()
        self._engine.close()

    def _answer(self, work: Work, query: AggregateQuery) -> Aggregates:
        with self._table.loaded() as table:
            snapshot = self._newest(table)
            answer = self._engine.sums(table, query, self._daemon, work)
        return replace(answer, snapshot=snapshot)

    def _pages(self, work: Work, query: RecordQuery) -> Generator[Sequence[bytes], None, None]:
        with self._table.loaded() as table:
            self._newest(table)
            yield from self._engine.records(table, query, self._daemon, work)

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
