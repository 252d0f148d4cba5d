"""The upkeep of the roll-ups beside the store's other work: changes are folded, cells are filled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from auditord.errors import StoreUnavailable
from auditord.store.rollups.cells import END, FIRST_DAY
from auditord.store.rollups.folding import (
    AT_ONCE,
    drop_unused_labels,
    fill,
    filled_to,
    fold,
    forget,
    next_changes,
    next_days,
    number_labels,
    rows_of,
    waiting_changes,
)
from auditord.store.work import Work, atomic

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

_FEW: Final = 500
"""Records since the last folding, or changes by them, that are rather read as they are than folded for a sum."""

Pages: TypeAlias = AsyncIterator[Sequence[Sequence[Any]]]  # Any: columns of all types


class Write(Protocol):
    """The store's way to do work outside a transaction, unless it begins one."""

    async def __call__(self, make: Callable[[], Work[T]], *, is_long: bool = False) -> T:
        """Do the work that the function begins."""
        ...


class Read(Protocol):
    """The store's way to do short work that only reads."""

    async def __call__(self, work: Work[T]) -> T:
        """Do the work."""
        ...


class Stream(Protocol):
    """The store's way to stream the rows of a named statement, as of one moment."""

    def __call__(self, name: str, parameters: Mapping[str, object]) -> AbstractAsyncContextManager[Pages]:
        """The rows, page by page."""
        ...


class Upkeep:
    """Folds and fills in a task of its own, as long as there is something to do.

    Args:
        write: of the store.
        read: of the store.
        stream: of the store.
        is_ours: False for a store that is only read, or that another process looks after.
    """

    def __init__(self, write: Write, read: Read, stream: Stream, *, is_ours: bool) -> None:
        self._write = write
        self._read = read
        self._stream = stream
        self._is_ours = is_ours
        self._is_complete = False
        self._waiting = AT_ONCE  # records and changes of cells, at most; nobody has counted yet what was left before
        self._redactions = 1  # perhaps one by an earlier process, which ended before it had dropped labels
        self._redactions_done = 0
        self._folding = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def noted(self, records: int) -> None:
        """So many records have been changed."""
        self._waiting += records
        if self._waiting >= AT_ONCE:
            self.wake()

    def redacted(self) -> None:
        """Meta was taken out of records: see to it that no change and no label keeps it."""
        self._redactions += 1
        self.wake()

    def wake(self) -> None:
        """See to it that what there is to do is done soon."""
        if self._is_ours and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(_log_fault)

    async def ready(self) -> int:
        """Prepare for a sum: many changes are folded. Returns the day up to which the cells are complete."""
        if self._is_ours and self._waiting > _FEW:
            await self.fold()
        return await self._filled_to()

    async def start_over(self) -> None:
        """Drop all cells, for the daemon to fill them anew; not for a store whose records are partly in an archive."""
        self._is_complete = False
        await self._write(partial(atomic, forget))

    async def close(self) -> None:
        """End; what is not done is done by the next process."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, StoreUnavailable):
                await self._task

    async def _work(self) -> None:
        with suppress(StoreUnavailable):  # the next change tries again
            if await self._filled_to() < END:
                await self._fill()
            # Changes of one cell are folded the cheaper the more they are: they wait until they are many.
            self._waiting = await self._read(waiting_changes())
            if self._waiting >= AT_ONCE:
                await self.fold()
            while self._redactions > self._redactions_done:  # some come while changes are folded
                await self.fold()

    async def _fill(self) -> None:
        while (days := await self._read(next_days())) is not None:
            async with self._stream("read_rollup_days", {"begin": days.begin, "end": days.end}) as pages:
                await days.read(pages)
            if days.begin == FIRST_DAY:
                _log.info("the roll-ups are being filled; sums over long periods take longer until they are complete")
            await self._write(partial(atomic, partial(fill, days)), is_long=True)
            if days.end == END:
                _log.info("the roll-ups are complete")

    async def fold(self) -> None:
        """Fold all changes that there are."""
        async with self._folding:
            redactions = self._redactions  # one that comes from here on may be missed by what is read next
            while (waiting := await self._read(next_changes())) is not None:
                # Put together in threads: meanwhile neither the loop nor SQLite's only writer is held up.
                levels = await asyncio.to_thread(waiting.cells)
                numbers = await self._write(partial(atomic, partial(number_labels, levels)))
                rows = await asyncio.to_thread(rows_of, levels, numbers)
                await self._write(partial(atomic, partial(fold, waiting, rows)))
            self._waiting = 0
            if redactions > self._redactions_done:
                await self._write(partial(atomic, drop_unused_labels), is_long=True)
                self._redactions_done = redactions

    async def _filled_to(self) -> int:
        if self._is_complete:
            return END
        day = await self._read(filled_to())
        self._is_complete = day >= END  # it stays so
        return day


def _log_fault(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        _log.error("the roll-ups could not be kept up, sums take longer", exc_info=fault)
