"""Changes folded into the cells of the roll-ups, and the cells filled from what was stored before there were any.

Cells are complete up to a day (``rollup_state.filled_to``). Changes of later days wait: the records that they are about
are read when it is their day's turn. The records that are read and the changes that this settles are of one state, so
that a record which comes meanwhile is counted exactly once. Records of the archive are read beside them; if any moved
there or back meanwhile, the days are read again.

Cells of a key are filled the other way round, from the latest day to the first (:mod:`auditord.store.rollups.keys`).
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from auditord.database.instants import to_micros
from auditord.store.archived import ArchiveState
from auditord.store.rollups.cells import (
    END,
    OF_A_KEY,
    CellKey,
    CellRow,
    Cells,
    CellsOfLevels,
    Level,
    RolledKey,
    label_row,
)
from auditord.store.rollups.changes import RollupChanges
from auditord.store.rollups.deltas import CORES, MICROS_PER_DAY, CellChange
from auditord.store.rows import RolledAmounts, RolledLabels, RolledRecord, make_row
from auditord.store.work import Work, as_json, ask, for_each
from auditord_hookspecs import Component, Record
from auditord_hookspecs.records import Meta

FORGET_ALL: Final = ("forget_rollups", "forget_all_rollup_changes", "forget_rollup_state", "forget_filled_keys")
"""Statements after which the cells are filled anew from the records."""

_ROWS_AT_ONCE: Final = 5_000

WaitingRow: TypeAlias = tuple[int, int, str, str]
"""Of the changes of a day the number, the day, themselves and the keys that they tell apart, both as JSON."""

_changes: Final = msgspec.json.Decoder(list[CellChange])


@dataclass(frozen=True, slots=True)
class FoldingLimits:
    """Limits of how long changes wait to be folded, and of how many are folded together.

    A burst is folded behind its end, or once very many changes wait: the more changes of one cell are folded together,
    the fewer rows are written for each.

    Args:
        cells: cells of days that are changed in one transaction: nearly as many rows are written for far fewer of them.
        changes: changes that may wait, and are folded in one transaction.
        read_at_once: changes that are in memory as text.
        unfolded: records and changes that a sum rather reads as they are than waits for.
        worthwhile: changes that are folded as soon as the store is quiet, so that no sum waits for that.
        quiet_seconds: the store is quiet if fewer records than ``worthwhile`` came in this time.
        patience: seconds that a sum waits for a folding: after many records of many users, or a restart, it may take
            half a minute.
    """

    cells: int = 16_000
    changes: int = 250_000
    read_at_once: int = 20_000
    unfolded: int = 500
    worthwhile: int = 5_000
    quiet_seconds: float = 5.0
    patience: float = 1.0


class State(NamedTuple):
    """The state of the roll-ups: see the table."""

    filled_to: int
    held_from: int
    held_to: int
    hold: int
    keys: Sequence[RolledKey]

    def holds(self, day: int) -> bool:
        """Return whether changes of a day wait until cells of a key are filled."""
        return self.held_from <= day < self.held_to


class _Rolled(msgspec.Struct, gc=False):
    """The parts of a document that cells need."""

    components: tuple[Component, ...]
    meta: Meta | None = None


_rolled: Final = msgspec.json.Decoder(_Rolled)
_keys: Final = msgspec.json.Decoder(tuple[str, ...])


@dataclass(slots=True, eq=False)
class Days:
    """Some days whose records are read for the cells.

    Args:
        begin: the first one, up to which the cells are complete.
        end: the day behind the last one.
        changes: what the cells get.
    """

    begin: int
    end: int
    changes: RollupChanges
    settled: list[WaitingRow] = field(default_factory=list[WaitingRow])
    """Changes that what has been read includes."""

    async def read(self, pages: AsyncIterator[Sequence[Sequence[Any]]]) -> None:  # Any: columns of all types
        """Take up the rows of ``read_rollup_days``."""
        async for page in pages:
            for number, start, stop, site, group, user, score_set, document in page:
                if number is not None:  # of a change: the day, its keys and itself
                    self.settled.append((number, start, document, site))
                else:
                    rolled = _rolled.decode(document)
                    labels = RolledLabels(rolled.meta, site, group, user)
                    record = RolledRecord(start, stop, labels, _amounts_of(rolled.components), more=None)
                    self.changes.add(record, score_set)

    def cells(self, keys: Sequence[RolledKey], *, alone: bool = False) -> Cells:
        """The cells that they are in."""
        cells = Cells(keys, alone=alone)
        for change in self.changes.by_day():
            cells.add(change.day, change.changes, self.changes.keys)
        return cells

    def settled_numbers(self) -> str:
        """The numbers of the changes that are settled, as JSON."""
        return as_json([row[0] for row in self.settled])

    def add(self, records: Sequence[Record], score_sets: Sequence[int | None]) -> None:
        """Take up archived records, with the numbers of their score sets."""
        for record, score_set in zip(records, score_sets, strict=True):
            self.changes.add(make_row(record), score_set)


def _amounts_of(components: Sequence[Component]) -> RolledAmounts:
    names, numbers = tuple([each.name for each in components]), tuple([each.amount for each in components])
    cores = next((number for name, number in zip(names, numbers, strict=True) if name == CORES), None)
    return RolledAmounts(names, numbers, max(numbers, default=0), cores)


def read_state(statement: str = "rollup_state") -> Work[State]:
    """The state of the roll-ups."""
    ((complete, held_from, held_to, hold),) = yield from ask(statement)
    keys = [RolledKey(*each) for each in (yield from ask("list_rolled_keys"))]
    return State(complete, held_from, held_to, hold, keys)


def filled_to() -> Work[int]:
    """The first day that is not in the cells yet."""
    return (yield from read_state()).filled_to


def days_with_cells() -> Work[tuple[int, int]]:
    """The first day that has cells, and the day behind the last one; the same day twice if there are none."""
    ((first, last),) = yield from ask("days_of_rollups")
    return (0, 0) if first is None or last is None else (int(first), int(last) + 1)


def next_days(archived: ArchiveState) -> Work[Days | None]:
    """The days to be read next, at most one of which has records; None if the cells are complete.

    Args:
        archived: the state of the archive; each day between the first and the last stop time in it may have records.
    """
    begin = yield from filled_to()
    if begin >= END:
        return None
    ((stop,),) = yield from ask("next_rollup_stop", day=begin)
    days = [] if stop is None else [int(stop) // MICROS_PER_DAY]
    if archived.records and archived.first_stop is not None and archived.last_stop is not None:
        first, last = (to_micros(each) // MICROS_PER_DAY for each in (archived.first_stop, archived.last_stop))
        days += [max(first, begin)] if begin <= last else []
    return Days(begin, min(days) + 1 if days else END, RollupChanges(()))


@dataclass(frozen=True, slots=True, eq=False)
class WaitingChanges:
    """Some of the changes that wait to be folded.

    Args:
        rows: of each transaction and day the number, the day, the changes as JSON, and the keys that they tell apart.
        keys: those that have cells.
    """

    rows: Sequence[WaitingRow]
    keys: Sequence[RolledKey]


class GatheredChanges:
    """Changes that are folded together.

    Args:
        keys: those that have cells.
    """

    def __init__(self, keys: Sequence[RolledKey]) -> None:
        self.keys = keys
        self.cells = Cells(keys)
        """The cells that they change."""
        self.numbers: list[int] = []
        self.days: set[int] = set()

    def add(self, rows: Sequence[WaitingRow], most: int | None = None) -> bool:
        """Take changes up; once the cells are so many, the rest is left: returns whether none is."""
        for number, day, changes, keys in rows:
            if most is not None and self.cells.number >= most:
                return False
            self.cells.add(day, _changes.decode(changes), _keys.decode(keys))
            self.numbers.append(number)
            self.days.add(day)
        return True


def waiting_changes() -> Work[int]:
    """The number of changes of cells that nobody has folded yet; records that fall into one cell together are one."""
    ((changes,),) = yield from ask("size_of_rollup_changes")
    return int(changes)


def next_changes(most: int, after: int = 0) -> Work[WaitingChanges]:
    """The oldest changes behind one, to be folded next: about so many, and fewer only if these are all."""
    state = yield from read_state()
    parameters = {"filled_to": state.filled_to, "held_from": state.held_from, "held_to": state.held_to}
    rows = yield from ask("list_rollup_changes", **parameters, after=after, most=most)
    return WaitingChanges([(number, day, changes, keys) for number, day, changes, keys in rows], state.keys)


def fold(gathered: GatheredChanges, levels: CellsOfLevels, labels: Mapping[str, int]) -> Work[bool]:
    """Fold changes that have been read, in one transaction, unless another process was faster with any of them.

    Labels that another process has dropped meanwhile, since no cell had them yet, count as such a change. Returns
    whether they are folded.

    Args:
        gathered: the changes.
        levels: the cells that they change.
        labels: the numbers of their labels, see :func:`number_labels`.
    """
    state, numbers = (yield from read_state("lock_rollups")), as_json(gathered.numbers)
    ((found,),) = yield from ask("count_rollup_changes", numbers=numbers)
    ((known,),) = yield from ask("count_rollup_labels", numbers=as_json(sorted(labels.values())))
    held = any(map(state.holds, gathered.days))
    if found < len(gathered.numbers) or known < len(labels) or state.keys != gathered.keys or held:
        return False
    yield from write(_rows_of(levels, labels))
    yield from ask("forget_rollup_changes", numbers=numbers)
    yield from fill_anew(gathered.cells.missed)
    return True


def fill_anew(keys: Iterable[RolledKey]) -> Work[None]:
    """Drop the cells of keys, so that they are filled anew."""
    for key in keys:
        yield from drop_cells(key)
        yield from ask("set_filled_from", number=key.number, filled_from=END)


def drop_cells(key: RolledKey) -> Work[None]:
    """Drop the cells of a key."""
    first = key.level(Level.DAY_AND_USER)
    yield from ask("drop_levels", first=first, behind=first + OF_A_KEY)


def number_labels(levels: CellsOfLevels) -> Work[Mapping[str, int]]:
    """The numbers of the labels of cells; new ones get theirs."""
    labels = {text: label_row(text) for places in levels.values() for _, text, *_ in places}
    ordered = sorted(labels.values(), key=lambda row: row.digest)
    yield from for_each("add_rollup_labels", ordered)
    found = yield from ask("find_rollup_labels", digests=as_json([row.digest for row in ordered]))
    numbers: dict[str, int] = dict(found)
    return {text: numbers[row.digest] for text, row in labels.items()}


def _rows_of(levels: CellsOfLevels, numbers: Mapping[str, int]) -> Iterator[CellRow]:
    """The changes of cells as rows."""
    for level, places in levels.items():
        for place, cell in places.items():
            yield from cell.rows(level, place, numbers[place[1]])


def fill(days: Days) -> Work[None]:
    """Put days that have been read into the cells, in one transaction, unless another process was faster."""
    state = yield from read_state("lock_rollups")
    if state.filled_to != days.begin:
        return
    yield from write_cells(days.cells(()))
    yield from ask("forget_rollup_changes", numbers=days.settled_numbers())
    yield from ask("set_rollup_state", filled_to=days.end)


def write_cells(cells: Cells) -> Work[None]:
    """Change cells, inside a transaction."""
    levels = cells.by_level()
    yield from write(_rows_of(levels, (yield from number_labels(levels))))


def has_unused_labels() -> Work[bool]:
    """Return whether some labels are in no cell; all cells are read, which holds up nobody."""
    ((has,),) = yield from ask("has_unused_rollup_labels")
    return bool(has)


def drop_unused_labels() -> Work[None]:
    """Drop labels that no cell has: names of users that were taken out of all records are not kept."""
    yield from ask("lock_rollups")
    yield from ask("drop_unused_rollup_labels")


def forget() -> Work[None]:
    """Drop all cells and changes."""
    yield from ask("lock_rollups")
    for name in FORGET_ALL:
        yield from ask(name)


def write(rows: Iterator[CellRow]) -> Work[None]:
    """Change cells, inside a transaction."""
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield from for_each("add_to_rollups", some)
        gone = [
            CellKey(row.level, row.period, row.labels, row.score_set, row.component)
            for row in some
            if row.records < 0 or row.left_out < 0 or row.gone_first is not None
        ]
        yield from for_each("drop_empty_rollups", gone)
