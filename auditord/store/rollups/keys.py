"""Meta keys that get cells of their own in the roll-ups, and how these are filled from what is stored.

Cells of a key hold the days from ``rolled_keys.filled_from`` on; sums over earlier days are made of the records. They
are filled from the latest day to the first, since people ask for the last months. While days are read for them, changes
of these days are held: nobody folds them. So what was read, and what it includes of them, are written together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from auditord.database.instants import to_micros
from auditord.store.archived import ArchiveState
from auditord.store.rollups.cells import END, FIRST_DAY, RolledKey
from auditord.store.rollups.changes import RollupChanges
from auditord.store.rollups.deltas import MICROS_PER_DAY
from auditord.store.rollups.folding import (
    Days,
    GatheredChanges,
    days_with_cells,
    drop_cells,
    fill_anew,
    read_state,
    write_cells,
)
from auditord.store.rollups.zone_keys import known
from auditord.store.work import Work, ask


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """Some days whose records are read for the cells of keys.

    Args:
        days: up to the first that is in the cells.
        keys: all that begin with the same day.
        hold: by which changes of these days are held.
        has_archived: whether archived records may have stopped on them.
    """

    days: Days
    keys: Sequence[RolledKey]
    hold: int
    has_archived: bool


def list_keys() -> Work[Sequence[str]]:
    """The keys that have cells."""
    return [key for _, key, _ in (yield from ask("list_rolled_keys"))]


def set_keys(keys: Sequence[str]) -> Work[bool]:
    """Let exactly these have cells, in one transaction; returns whether that changes anything."""
    state = yield from read_state("lock_rollups")
    gone = [each for each in state.keys if each.key not in keys]
    there = {each.key for each in state.keys}
    for each in gone:
        yield from drop_cells(each)
        yield from ask("forget_rolled_key", number=each.number)
    numbers = {each.number for each in state.keys if each not in gone}
    begin, end = yield from days_with_cells()
    filled_from = FIRST_DAY if begin == end and state.filled_to == END else END
    for key in (new := [key for key in dict.fromkeys(keys) if key not in there]):
        numbers.add(number := min(set(range(1, len(numbers) + 2)) - numbers))
        yield from ask("add_rolled_key", number=number, meta_key=key, filled_from=filled_from)
    if gone:
        yield from ask("hold_rollups", held_from=0, held_to=0)
    return bool(gone or new)


def hold_next_days(archived: ArchiveState) -> Work[Filling | None]:
    """The days to be read next, whose changes are held from now on; None if the cells of all keys are complete.

    Args:
        archived: the state of the archive; each day between the first and the last stop time in it may have records.
    """
    state = yield from read_state("lock_rollups")
    names = known([each.key for each in state.keys])
    end = max((each.filled_from for each in state.keys if each.key in names), default=FIRST_DAY)
    if end == FIRST_DAY or state.filled_to < END:
        return None
    keys = [each for each in state.keys if each.filled_from == end and each.key in names]
    ((stop,),) = yield from ask("previous_rollup_stop", day=end)
    begin, last = FIRST_DAY if stop is None else int(stop) // MICROS_PER_DAY, FIRST_DAY
    if archived.records and archived.first_stop is not None and archived.last_stop is not None:
        first, last = (to_micros(each) // MICROS_PER_DAY for each in (archived.first_stop, archived.last_stop))
        last = min(last, end - 1) if end > first else FIRST_DAY
    begin = max(begin, last)
    yield from ask("hold_rollups", held_from=begin, held_to=end)
    days = Days(begin, end, RollupChanges([each.key for each in keys]))
    return Filling(days, keys, (yield from read_state()).hold, has_archived=begin == last > FIRST_DAY)


def release() -> Work[None]:
    """Let changes of all days be folded again."""
    yield from ask("hold_rollups", held_from=0, held_to=0)


def fill_keys(filling: Filling) -> Work[None]:
    """Put days that have been read into the cells of keys, in one transaction, unless another process was faster.

    What they include of changes that waited is folded into all other cells.
    """
    state, days = (yield from read_state("lock_rollups")), filling.days
    if state.hold != filling.hold or not set(filling.keys) <= set(state.keys):
        return
    yield from write_cells(days.cells([replace(each, filled_from=days.begin) for each in filling.keys], alone=True))
    others = [each for each in state.keys if each not in filling.keys]
    gathered = GatheredChanges(others)
    gathered.add(days.settled)
    yield from write_cells(gathered.cells)
    yield from ask("forget_rollup_changes", numbers=days.settled_numbers())
    yield from fill_anew(gathered.cells.missed)
    for each in filling.keys:
        yield from ask("set_filled_from", number=each.number, filled_from=days.begin)
    yield from release()
