"""Sums over a snapshot of the lake, the same integers as the record stores give."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from pyiceberg.table import Table

from auditord.database.instants import from_micros
from auditord.errors import StoreUnavailable
from auditord.lake.engines import Engine, Work
from auditord.lake.table import LakeTable, positions_of
from auditord_hookspecs import AggregateQuery, Aggregates
from auditord_hookspecs.aggregates import LakeSnapshot

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
        loop, work = asyncio.get_running_loop(), Work()
        answer = loop.run_in_executor(self._threads, self._answer, work, query)

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

    def _newest(self, table: Table) -> LakeSnapshot:
        """The newest snapshot.

        Raises:
            StoreUnavailable: there is none, or the daemon has not synced anything yet.
        """
        newest = table.current_snapshot()
        if newest is None or (self._daemon is not None and self._daemon not in positions_of(table)):
            raise StoreUnavailable(
                f"The lake {self._table.location} has no records{'' if self._daemon is None else ' of ' + self._daemon}"
                " yet: they come with the next run, or `auditord lake run`."
            )
        return LakeSnapshot(newest.snapshot_id, from_micros(newest.timestamp_ms * 1_000))
