"""The upkeep of the roll-ups beside the store's other work: changes are folded, cells are filled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from auditord.errors import StoreUnavailable
from auditord.store.archived import ArchiveState
from auditord.store.rollups.cells import END, FIRST_DAY, GROUPED_KEYS, RolledKey
from auditord.store.rollups.deltas import CORES_KEY, MICROS_PER_DAY
from auditord.store.rollups.folding import (
    Days,
    FoldingLimits,
    GatheredChanges,
    drop_unused_labels,
    fill,
    filled_to,
    fold,
    forget,
    has_unused_labels,
    next_changes,
    next_days,
    number_labels,
    read_state,
    waiting_changes,
)
from auditord.store.rollups.keys import fill_keys, hold_next_days, list_keys, release, set_keys
from auditord.store.rollups.zone_keys import beside, is_of_zone, key_of_zone, parts_of
from auditord.store.rows import RecordRow
from auditord.store.work import Work, atomic
from auditord_hookspecs.zones import UTC_NAME

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

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


class ArchivedRecords(Protocol):
    """The part of the store that knows the archive."""

    async def archive_state(self) -> ArchiveState:
        """The state of the archive."""
        ...

    async def read_archived(self, days: Days) -> bool:
        """Let days take up the archived records that stopped on them; False if there are some and no archive here."""
        ...


class Upkeep:
    """Folds and fills in a task of its own, as long as there is something to do.

    Args:
        write: of the store.
        read: of the store.
        stream: of the store.
        archived: the store.
        is_ours: False for a store that is only read, or that another process looks after.
    """

    def __init__(self, write: Write, read: Read, stream: Stream, archived: ArchivedRecords, *, is_ours: bool) -> None:
        self._write = write
        self._read = read
        self._stream = stream
        self._archived = archived
        self._is_ours = is_ours
        self.limits = FoldingLimits()
        """Of folding; others may be set at any time."""
        self.keys: Sequence[str] = ()
        """The keys with cells of their own, as they were read last."""
        self._wanted: Sequence[str] | None = None
        self._is_complete = False
        self._is_woken = False
        self._waiting = self.limits.changes  # records and changes, at most; nobody has counted yet what was left before
        self._cells: set[int] = set()  # hashes of what tells the cells of new records apart
        self._noted = 0
        self._is_due = False
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._redactions = 1  # perhaps one by an earlier process, which ended before it had dropped labels
        self._redactions_done = 0
        self._folding = asyncio.Lock()
        self._work_task: asyncio.Task[None] | None = None
        self._fold_task: asyncio.Task[None] | None = None

    def noted(self, records: int, new: Iterable[RecordRow] = ()) -> None:
        """So many records have been changed, of which these are new."""
        self._waiting += records
        self._noted += records
        if len(self._cells) < self.limits.cells:
            self._cells.update([_cell_of(row) for row in new])
        if self._are_many():
            self.wake()
        elif self._quiet_timer is None and self._is_ours:
            self._start_quiet_timer()

    def _are_many(self) -> bool:
        return self._is_due or self._waiting >= self.limits.changes or len(self._cells) >= self.limits.cells

    def _start_quiet_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._quiet_timer = loop.call_later(self.limits.quiet_seconds, self._fold_if_quiet, self._noted)

    def _fold_if_quiet(self, noted_before: int) -> None:
        """See to it that waiting changes are folded if few records have come since so many were noted."""
        self._quiet_timer = None
        if self._waiting < self.limits.worthwhile:
            return
        if self._noted - noted_before < self.limits.worthwhile:
            self._is_due = True
            self.wake()
        else:
            self._start_quiet_timer()

    def redacted(self) -> None:
        """Meta was taken out of records: see to it that no change and no label keeps it."""
        self._redactions += 1
        self.wake()

    def wake(self) -> None:
        """See to it that what there is to do is done soon."""
        self._is_woken = True
        if self._is_ours and (self._work_task is None or self._work_task.done()):
            self._work_task = asyncio.get_running_loop().create_task(self._work())
            self._work_task.add_done_callback(_log_fault)

    def keep_by(self, keys: Sequence[str] | None, zone: str = UTC_NAME) -> None:
        """See to it that the number of cores, these keys and the days of a zone, and no others, get cells of their own.

        None instead of keys: as it is.
        """
        if keys is not None:
            wanted = [CORES_KEY, *[key for key in keys if key not in GROUPED_KEYS and not is_of_zone(key)]]
            if (of_zone := key_of_zone(zone)) is not None:
                wanted = [of_zone, *[beside(of_zone, key) for key in wanted]]
            self._wanted = wanted
            self.wake()

    async def ready(self) -> int:
        """Prepare for a sum: many changes are folded. Returns the day up to which the cells are complete.

        A sum does not wait long for that: it reads the changes that are not in the cells, too.
        """
        if self._is_ours and self._waiting > self.limits.unfolded:
            if self._fold_task is None or self._fold_task.done():
                self._fold_task = asyncio.get_running_loop().create_task(self._fold_changes())
                self._fold_task.add_done_callback(_log_fault)
            await asyncio.wait({self._fold_task}, timeout=self.limits.patience)
        return await self._filled_to()

    async def rolled_keys(self) -> Sequence[RolledKey]:
        """The keys with cells of their own."""
        return (await self._read(read_state())).keys

    async def start_over(self) -> None:
        """Drop all cells, for the daemon to fill them anew."""
        self._is_complete = False
        await self._write(partial(atomic, forget))

    async def close(self) -> None:
        """End; what is not done is done by the next process."""
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
        if tasks := [task for task in (self._work_task, self._fold_task) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _work(self) -> None:
        with suppress(StoreUnavailable):  # the next change tries again
            while self._is_woken:
                self._is_woken = False
                await self._set_keys()
                if await self._filled_to() < END:
                    await self._fill()
                await self._fill_keys()
                await self._count()
                if self._are_many():
                    await self.fold()
                while self._redactions > self._redactions_done:  # some come while changes are folded
                    await self.fold()

    async def _count(self) -> None:
        async with self._folding:  # what is folded meanwhile would be counted as waiting still
            noted = self._waiting
            waiting = await self._read(waiting_changes())
            self._waiting += waiting - noted

    async def _fill(self) -> None:
        while (days := await self._read(next_days(archived := await self._archived.archive_state()))) is not None:
            async with self._stream("read_rollup_days", {"begin": days.begin, "end": days.end}) as pages:
                await days.read(pages)
            if archived.records and days.end < END and not await self._archived.read_archived(days):
                return
            if _membership(archived) != _membership(await self._archived.archive_state()):
                continue  # a record moved to the archive or back, and may have been read twice or not at all
            if days.begin == FIRST_DAY:
                _log.info("the roll-ups are being filled; sums over long periods take longer until they are complete")
            await self._write(partial(atomic, partial(fill, days)), is_long=True)
            if days.end == END:
                _log.info("the roll-ups are complete")

    async def _set_keys(self) -> None:
        if (wanted := self._wanted) is not None:
            if await self._write(partial(atomic, partial(set_keys, wanted)), is_long=True):
                parts = dict.fromkeys([part for key in wanted for part in parts_of(key)])
                names = ", ".join(each or "number of cores" for each in parts) or "no further label"
                _log.info("the roll-ups are kept by site, group, user, and by: %s", names)
                self._redactions += 1  # labels of keys that are not kept any more
            self._wanted = None
        self.keys = await self._read(list_keys())

    async def _fill_keys(self) -> None:
        while True:
            archived = await self._archived.archive_state()
            filling = await self._write(partial(atomic, partial(hold_next_days, archived)))
            if filling is None:
                return
            days = filling.days
            async with self._stream("read_rollup_days", {"begin": days.begin, "end": days.end}) as pages:
                await days.read(pages)
            if filling.has_archived and not await self._archived.read_archived(days):
                await self._write(partial(atomic, release))
                return
            if _membership(archived) == _membership(await self._archived.archive_state()):
                await self._write(partial(atomic, partial(fill_keys, filling)), is_long=True)

    async def fold(self) -> None:
        """Fold all changes that there are, and drop the labels that redactions have left."""
        redactions = self._redactions  # one that comes from here on may be missed by what is read next
        await self._fold_changes()
        if redactions > self._redactions_done:
            if await self._read(has_unused_labels()):
                await self._write(partial(atomic, drop_unused_labels), is_long=True)
            self._redactions_done = redactions

    async def _fold_changes(self) -> None:
        async with self._folding:
            noted, cells, is_all = self._waiting, self._cells, False
            self._is_due = False
            try:
                while not is_all:
                    self._waiting, self._cells = 0, set()
                    is_all = await self._fold_some()
            except BaseException:
                self._waiting += noted
                self._cells |= cells
                raise

    async def _fold_some(self) -> bool:
        """Fold the oldest changes; returns whether these were all: what has come since then waits for more."""
        gathered, are_all = await self._gathered()
        if not gathered.numbers:
            return True
        # Put together in threads: meanwhile neither the loop nor SQLite's only writer is held up.
        levels = await asyncio.to_thread(gathered.cells.by_level)
        numbers = await self._write(partial(atomic, partial(number_labels, levels)))
        is_folded = await self._write(partial(atomic, partial(fold, gathered, levels, numbers)), is_long=True)
        if gathered.cells.missed:
            self.wake()
        return is_folded and are_all

    async def _gathered(self) -> tuple[GatheredChanges, bool]:
        """The oldest changes, and whether these are all."""
        limits = self.limits
        waiting = await self._read(next_changes(limits.read_at_once))
        gathered, are_all = GatheredChanges(waiting.keys), False
        while not are_all and (before := gathered.cells.changes) < limits.changes:
            if not await asyncio.to_thread(gathered.add, waiting.rows, limits.cells):
                break
            are_all = gathered.cells.changes - before < limits.read_at_once
            if not are_all:
                waiting = await self._read(next_changes(limits.read_at_once, gathered.numbers[-1]))
        return gathered, are_all

    async def _filled_to(self) -> int:
        if self._is_complete:
            return END
        day = await self._read(filled_to())
        self._is_complete = day >= END  # it stays so
        return day


def _cell_of(row: RecordRow) -> int:
    day = None if row.stop_time is None else row.stop_time // MICROS_PER_DAY
    labels = row.labels
    return hash((day, labels.site, labels.user_group, labels.user_name))


def _membership(archived: ArchiveState) -> tuple[int, int]:
    """Differs between two states if any record moved: to the archive by a further chunk, back by a smaller number."""
    return archived.chunk, archived.records


def _log_fault(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, StoreUnavailable):
        _log.error("the roll-ups could not be kept up, sums take longer", exc_info=fault)
