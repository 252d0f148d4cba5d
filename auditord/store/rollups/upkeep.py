"""Run the consumers inside the database (counts and roll-ups) in the background."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from auditord.database.instants import MICROS_PER_DAY, to_micros
from auditord.errors import StoreUnavailable
from auditord.store.dialects import StoreDialect
from auditord.store.releasing import read_lake
from auditord.store.rollups.cells import (
    CORES_KEY,
    FIRST_DAY,
    GROUPED_KEYS,
    CellSet,
    by_user,
    is_special,
    join_keys,
    key_of_zone,
    list_sets,
    parts_of,
)
from auditord.store.rollups.folding import fold_slices, is_behind, replace_sets, start_over
from auditord.store.work import Work, atomic
from auditord_hookspecs.zones import UTC_NAME

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class Write(Protocol):
    """Does work that writes; see :class:`auditord.store.lake_store.LakeStore`."""

    async def __call__(self, work: Work[T], *, is_long: bool = False) -> T:
        """Do the work, which begins its own transaction if it needs one."""
        ...


class Read(Protocol):
    """Does short work that only reads."""

    async def __call__(self, work: Work[T]) -> T:
        """Do the work."""
        ...


class FoldingLimits(msgspec.Struct, frozen=True):
    """Limits of how long changes wait to be folded, and of how many are folded in one transaction.

    Args:
        unread: the number of changes after which folding begins even if more keep coming.
        quiet_seconds: the time without changes after which the rest is folded.
        behind_seconds: the time after which folding begins again if it was stopped by a fault or by a transaction of
            another session, which hides later changes.
        slice_seconds: the target duration of a transaction while others write, which wait for it in SQLite. A larger
            slice costs less per record, since more of its records share cells.
        smallest: the minimum number of records in a slice.
        largest: the maximum number of records in a slice.
        first: the number of records in the first slice, unless the last attempt failed.
    """

    unread: int = 20_000
    quiet_seconds: float = 1.0
    behind_seconds: float = 10.0
    slice_seconds: float = 0.02
    smallest: int = 100
    largest: int = 50_000
    first: int = 100


class Upkeep:
    """Folds the feed into counts and roll-ups, in a background task that ends when everything is folded.

    While something is left that cannot be folded yet, the task is started again and again.

    Args:
        write: the store's way to write.
        read: the store's way to read.
        dialect: the SQL of the database.
        is_ours: False for a store that is only read, or maintained by another process.
    """

    def __init__(self, write: Write, read: Read, dialect: StoreDialect, *, is_ours: bool) -> None:
        self._write = write
        self._read = read
        self._dialect = dialect
        self._is_ours = is_ours
        self.limits = FoldingLimits() if dialect.has_one_writer else FoldingLimits(slice_seconds=1.0, first=20_000)
        """The limits of folding, which may be changed at any time."""
        self._wanted: Sequence[str] | None = None
        self._noted = 0
        self._is_woken = False
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._folding = asyncio.Lock()
        self._failed_size: int | None = None
        """The size of the slice that is being folded, or of the last one if it failed."""
        self._task: asyncio.Task[None] | None = None

    def note(self, records: int) -> None:
        """Count records that a write has changed, and start folding if there are many or writes pause."""
        self._noted += records
        if not self._is_ours:
            return
        if self._noted >= self.limits.unread:
            self.wake()
        elif self._quiet_timer is None:
            self._start_quiet_timer()

    def _start_quiet_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._quiet_timer = loop.call_later(self.limits.quiet_seconds, self._fold_if_quiet, self._noted)

    def _fold_if_quiet(self, noted_before: int) -> None:
        self._quiet_timer = None
        if self._noted == noted_before:
            self.wake()
        elif self._noted:
            self._start_quiet_timer()

    def wake(self) -> None:
        """Start the background task, or make the running one look again."""
        self._is_woken = True
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._is_ours and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(_log_fault)

    def keep_by(self, keys: Sequence[str] | None, zone: str = UTC_NAME, *, with_users: Sequence[str] = ()) -> None:
        """Request sets of cells for these keys and for the days of a zone, and for no others.

        Args:
            keys: meta keys for all users together; None changes nothing.
            zone: a time zone.
            with_users: meta keys by user.
        """
        if keys is None:
            return
        plain, personal = (
            [key for key in dict.fromkeys(each) if key not in GROUPED_KEYS and not is_special(key)]
            for each in (keys, with_users)
        )
        zone_part, sets = key_of_zone(zone), list(map(by_user, personal))
        if zone_part is None:
            sets += [key for key in plain if key not in personal]
        else:
            sets += [join_keys(zone_part, key) for key in (CORES_KEY, *dict.fromkeys((*plain, *personal)))]
        self._wanted = sets
        self.wake()

    async def sets(self) -> Sequence[CellSet]:
        return await self._read(list_sets())

    async def start_over(self) -> None:
        """Drop all cells, so that the daemon fills them again."""
        await self._write(atomic(start_over_beside_released), is_long=True)
        self.wake()

    async def close(self) -> None:
        """Stop folding. The next process continues where it stopped."""
        self._is_ours = False
        for timer in (self._quiet_timer, self._next_look):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def fold(self) -> None:
        """Fold the whole feed.

        After a failure, such as a slice that took too long, the next attempt begins with half the size.
        """
        loop = asyncio.get_running_loop()
        async with self._folding:
            size, is_all = self.limits.first, False
            if self._failed_size is not None:
                size = max(self._failed_size // 2, self.limits.smallest)
            while not is_all:
                noted, began = self._noted, loop.time()
                self._noted = 0
                fold = partial(fold_slices, size, self._dialect)
                self._failed_size = size
                is_all = await self._write(atomic(fold), is_long=True)
                self._failed_size = None
                took = loop.time() - began
                limits = self.limits
                wanted = limits.slice_seconds if self._noted or noted else 10 * limits.slice_seconds
                if took < wanted / 2:
                    size *= 2
                elif took >= wanted:
                    size //= 2
                size = max(limits.smallest, min(limits.largest, size))
                if self._noted and not is_all:
                    await asyncio.sleep(took)  # leave half of the time to other writers

    async def _work(self) -> None:
        behind = True
        with suppress(StoreUnavailable):
            while self._is_woken:
                self._is_woken = False
                if (wanted := self._wanted) is not None:
                    if await self._write(atomic(partial(_replace_sets, wanted)), is_long=True):
                        parts = dict.fromkeys([part for key in wanted for part in parts_of(key)])
                        names = ", ".join(each for each in parts if each != CORES_KEY) or "no further label"
                        _log.info("the roll-ups are kept by site, group, user, number of cores, and by: %s", names)
                    self._wanted = None
                await self.fold()
            behind = await self._read(is_behind())
        # A foreign transaction hides all later changes until it ends, and PostgreSQL does not announce its end.
        if behind and self._is_ours:
            self._next_look = asyncio.get_running_loop().call_later(self.limits.behind_seconds, self.wake)


def start_over_beside_released() -> Work[None]:
    """Drop all cells, so that they are filled from stored records, but not for days that may have released ones."""
    yield from start_over((yield from _day_after_released()))


def _day_after_released() -> Work[int]:
    """Return the day after the last released record. The feed lacks some records of earlier days.

    No record is released until the transaction ends. Else the new cells could lack it.
    """
    state = yield from read_lake("lock_lake")
    return (
        FIRST_DAY if not state.records or state.last_stop is None else to_micros(state.last_stop) // MICROS_PER_DAY + 1
    )


def _replace_sets(set_keys: Sequence[str]) -> Work[bool]:
    return (yield from replace_sets(set_keys, (yield from _day_after_released())))


def _log_fault(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, StoreUnavailable):
        _log.error("counts and roll-ups could not be updated, so sums take longer", exc_info=fault)
