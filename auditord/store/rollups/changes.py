"""Changes of the roll-ups: sums over the finished records that a transaction adds, less those that it removes.

A transaction appends one row per day of stop times (UTC) that it touches; rows are folded into the cells later
(:mod:`auditord.store.rollups.folding`), and read as they are until then. Only records whose columns are complete
(``more`` is not set) and that do not end before they start are in roll-ups: sums read the few others from the records.

**The archive.** A record that moves to the archive, or comes back from there, stays in the roll-ups: who moves it notes
nothing here. The cells must be complete before (:func:`auditord.store.rollups.folding.filled_to`), or the record would
be missing in them. A record in the archive that is corrected or deleted without coming back first::

    changes = RollupChanges()
    changes.remove(make_row(before), before.components, score_set_before)
    changes.add(make_row(after), after.components, score_set_after)  # not for a deletion
    yield from note(changes)  # in the transaction that changes the state of the archive

The number of a score set is that of :class:`auditord.store.sources.Sources`, None without scores. Sums over a store
with an archive: :mod:`auditord.store.rollups.scope`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

import msgspec

from auditord.store.planning import ChangePlan, StoredRow
from auditord.store.rows import PendingRecord, make_row
from auditord.store.work import Work, for_each
from auditord_hookspecs import Component

MICROS_PER_DAY: Final = 86_400_000_000

RECORD: Final = ""
"""Stands for a component that every record has once; no component has an empty name."""

CPU_TIME: Final = "TotalCPU"
"""The component by whose presence cells are told apart: an efficiency is that of the records that have it."""

LOW_BITS: Final = 40
"""Bits of a sum of products that are kept apart, so that both parts of it fit 64 bits in every database."""

_LOW: Final = (1 << LOW_BITS) - 1

_LARGEST_AMOUNT: Final = 1 << 53
_LONGEST_RUNTIME: Final = 1 << 33
"""Amount and seconds from which on a record is only counted as left out: a few of them might not fit 64 bits."""

AmountChange: TypeAlias = tuple[str, int, int, int, int]
"""The change of the sums over components of one name.

That is the name or :data:`RECORD`; how many more records have it; how much more of it; and how much more of it times
seconds of runtime, shifted by :data:`LOW_BITS`, and the rest of that.
"""

CellChange: TypeAlias = tuple[
    str, int, int | None, int | None, int | None, int | None, int, Sequence[AmountChange], bool, bool
]
"""A change of one cell, as the statements for sums and for folding read it; a cell may change several times.

- JSON of meta, as far as it tells cells apart;
- the number of what components score, 0 for nothing;
- the earliest and the latest stop time of added records, in microseconds since 1970;
- the same of removed records;
- how many more records are in no sum;
- the sums;
- whether what is gone concerns the cells of one user alone: the same transaction adds records to the cells of all users
  together whose stop times are at both ends of those that are gone;
- whether the records have a CPU time.
"""

_Place: TypeAlias = tuple[int, str | None, str | None, str | None, int, bool]
"""Day since 1970, site, group, user, score set, whether there is a CPU time."""

_Key: TypeAlias = tuple[int, str | None, str | None, str | None, int, tuple[str, ...]]
"""The first five, and the names of the components: records that have the same ones are counted together."""

_Cells: TypeAlias = dict[_Key, list[int]]
"""Of each key the first and the last stop time, how many records are left out, how many are counted and their runtime;
and of each component the amount, and the amount times runtime.

One flat list, since this is made for nearly every record that comes.
"""

Ends: TypeAlias = tuple[int, int]
"""The first and the last stop time."""


class Finished(Protocol):
    """The columns of a record that decide on its cell, see :class:`auditord.store.rows.RecordRow`."""

    @property
    def start_time(self) -> int:
        """In microseconds since 1970; so is the next."""
        ...

    @property
    def stop_time(self) -> int | None:
        """None while open: in no cell."""
        ...

    @property
    def site(self) -> str | None:
        """A label; so are the next two."""
        ...

    @property
    def user_group(self) -> str | None:
        """See above."""
        ...

    @property
    def user_name(self) -> str | None:
        """See above."""
        ...

    @property
    def more(self) -> bool | None:
        """True if the labels do not tell all: in no cell."""
        ...


class DayChange(msgspec.Struct, frozen=True, gc=False):
    """The changes by a transaction of so many cells of one day since 1970."""

    day: int
    size: int
    changes: list[CellChange]


class RollupChanges:
    """The changes of the roll-ups by one transaction."""

    def __init__(self) -> None:
        self._added: _Cells = {}
        self._removed: _Cells = {}

    def add(self, row: Finished, components: Sequence[Component], score_set: int | None) -> None:
        """A record is there."""
        _count(self._added, row, components, score_set)

    def add_new(self, pending: Iterable[PendingRecord]) -> None:
        """Records are there."""
        for each in pending:
            _count(self._added, each.row, each.record.components, each.score_set)

    def remove(self, row: Finished, components: Sequence[Component], score_set: int | None) -> None:
        """A record is there no more."""
        _count(self._removed, row, components, score_set)

    def remove_stored(self, before: StoredRow) -> None:
        """A stored record is there no more."""
        if before.identity.stop is not None:
            record = before.record
            self.remove(make_row(record), record.components, before.score_set)

    def by_day(self) -> list[DayChange]:
        """The rows to be appended."""
        days: dict[int, list[CellChange]] = {}
        for key, cell in self._added.items():
            change: CellChange = (
                _labels(key),
                key[4],
                cell[0],
                cell[1],
                None,
                None,
                cell[2],
                _amounts(1, key, cell),
                False,
                CPU_TIME in key[5],
            )
            days.setdefault(key[0], []).append(change)
        for day, removal in self._removals():
            days.setdefault(day, []).append(removal)
        return [DayChange(day, len(days[day]), days[day]) for day in sorted(days)]

    def _removals(self) -> Iterator[tuple[int, CellChange]]:
        if not self._removed:
            return
        of_user, of_all = _covered(self._added, self._removed, _place), _covered(self._added, self._removed, _together)
        for key, cell in self._removed.items():
            first, last = (None, None) if _place(key) in of_user else (cell[0], cell[1])
            amounts, is_of_user = _amounts(-1, key, cell), _together(key) in of_all
            ends = (None, None, first, last)
            yield key[0], (_labels(key), key[4], *ends, -cell[2], amounts, is_of_user, CPU_TIME in key[5])


def changes_of_records(pending: Iterable[PendingRecord]) -> RollupChanges:
    """The changes by new records."""
    changes = RollupChanges()
    changes.add_new(pending)
    return changes


def changes_of_plan(plan: ChangePlan) -> RollupChanges:
    """The changes by a plan."""
    changes = changes_of_records(plan.new)
    for pending in plan.overwritten:
        changes.remove_stored(plan.before[pending.record_id])
        changes.add(pending.row, pending.record.components, pending.score_set)
    for pending in plan.moved:
        before = plan.before[pending.record_id]
        changes.remove_stored(before)
        changes.add(pending.row, pending.record.components, before.score_set)
    for record_id in plan.removed:
        changes.remove_stored(plan.before[record_id])
    return changes


def note(changes: RollupChanges) -> Work[None]:
    """Append changes, in the transaction of the records that they are about."""
    yield from for_each("note_rollup_changes", changes.by_day())


def split(number: int) -> tuple[int, int]:
    """Both parts of a sum of products."""
    return number >> LOW_BITS, number & _LOW


def widened(ends: Ends | None, first: int, last: int) -> Ends:
    """The ends with two more stop times."""
    if ends is None:
        return first, last
    return min(first, ends[0]), max(last, ends[1])


@lru_cache(50_000)
def label_text(site: str | None, group: str | None, user: str | None) -> str:
    """The labels of a cell as JSON: the meta that all of its records have."""
    values = {"site_id": site, "group_id": group, "user_id": user}
    return msgspec.json.encode({key: (value,) for key, value in values.items() if value is not None}).decode()


def _count(cells: _Cells, row: Finished, components: Sequence[Component], score_set: int | None) -> None:
    # In one pass and with few objects: this is done for every record that comes.
    start, stop = row.start_time, row.stop_time
    if stop is None or row.more or stop < start:
        return
    runtime, records, left_out = (stop - start) // 1_000_000, 1, 0
    names, amounts = tuple([each.name for each in components]), [each.amount for each in components]
    if runtime >= _LONGEST_RUNTIME or (amounts and max(amounts) >= _LARGEST_AMOUNT):
        runtime, records, left_out, names, amounts = 0, 0, 1, (), []
    key = (stop // MICROS_PER_DAY, row.site, row.user_group, row.user_name, score_set or 0, names)
    if (cell := cells.get(key)) is None:
        cells[key] = cell = [stop, stop, left_out, records, runtime]
        for amount in amounts:
            cell += (amount, amount * runtime)
        return
    if stop < cell[0]:
        cell[0] = stop
    elif stop > cell[1]:
        cell[1] = stop
    cell[2] += left_out
    cell[3] += records
    cell[4] += runtime
    at = 5
    for amount in amounts:
        cell[at] += amount
        cell[at + 1] += amount * runtime
        at += 2


def _labels(key: _Key) -> str:
    return label_text(key[1], key[2], key[3])


def _amounts(sign: int, key: _Key, cell: list[int]) -> list[AmountChange]:
    records = sign * cell[3]
    amounts = [(RECORD, records, records, *split(sign * cell[4]))]
    at = 5
    for name in key[5]:
        product = sign * cell[at + 1]
        amounts.append((name, records, sign * cell[at], product >> LOW_BITS, product & _LOW))
        at += 2
    return amounts


def _place(key: _Key) -> _Place:
    return *key[:5], CPU_TIME in key[5]


def _together(key: _Key) -> _Place:
    day, site, group, _, score_set, names = key
    return day, site, group, None, score_set, CPU_TIME in names


def _covered(added: _Cells, removed: _Cells, place_of: Callable[[_Key], _Place]) -> set[_Place]:
    """The places where the ends of all stop times are known although some are gone: these are those of what is added.

    Records that are gone were there before the transaction, so none of them is among those that it adds.
    """
    gone = _ends(removed, place_of)
    stops = _ends({key: cell for key, cell in added.items() if place_of(key) in gone}, place_of)
    return {place for place, (first, last) in stops.items() if first <= gone[place][0] and gone[place][1] <= last}


def _ends(cells: _Cells, place_of: Callable[[_Key], _Place]) -> dict[_Place, Ends]:
    ends: dict[_Place, Ends] = {}
    for key, (first, last, *_) in cells.items():
        place = place_of(key)
        ends[place] = widened(ends.get(place), first, last)
    return ends
