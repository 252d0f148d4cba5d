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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import msgspec

from auditord.store.planning import ChangePlan, StoredRow
from auditord.store.rows import PendingRecord, make_row
from auditord.store.work import Work, for_each
from auditord_hookspecs import Component

MICROS_PER_DAY: Final = 86_400_000_000

RECORD: Final = ""
"""Stands for a component that every record has once; no component has an empty name."""

LOW_BITS: Final = 40
"""Bits of a sum of products that are kept apart, so that both parts of it fit 64 bits in every database."""

_LARGEST_AMOUNT: Final = 1 << 53
_LONGEST_RUNTIME: Final = 1 << 33
"""Amount and seconds from which on a record is only counted as left out: a few of them might not fit 64 bits."""

_Key: TypeAlias = tuple[int, str | None, str | None, str | None, int | None]
"""Day since 1970, site, group, user, score set."""


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


class AmountChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The change of the sums over components of one name.

    Args:
        component: its name, or :data:`RECORD`.
        records: how many more records have it.
        amount: how much more of it.
        runtime_high: amount times seconds of runtime, shifted by :data:`LOW_BITS`.
        runtime_low: the rest of it.
    """

    component: str
    records: int
    amount: int
    runtime_high: int
    runtime_low: int


class CellChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The change of one cell; stop times are microseconds since 1970.

    Args:
        labels: JSON of meta, as far as it tells cells apart.
        score_set: the number of what components score; 0 for nothing.
        first_stop: the earliest among added records; so is the next the latest.
        last_stop: see above.
        gone_first: the earliest among removed records; so is the next the latest.
        gone_last: see above.
        left_out: how many more records are in no sum.
        amounts: the sums.
        gone_of_user: whether what is gone concerns the cells of one user alone: the same transaction adds records to
            the cells of all users together whose stop times are at both ends of those that are gone.
    """

    labels: str
    score_set: int
    first_stop: int | None
    last_stop: int | None
    gone_first: int | None
    gone_last: int | None
    left_out: int
    amounts: list[AmountChange]
    gone_of_user: bool


class DayChange(msgspec.Struct, frozen=True, gc=False):
    """The changes by a transaction of so many cells of one day since 1970."""

    day: int
    size: int
    changes: list[CellChange]


@dataclass(slots=True, eq=False)
class _Cell:
    """A cell's change as it grows; of each component how many records, the amount, amount times runtime."""

    stops: list[int] = field(default_factory=list[int])
    gone: list[int] = field(default_factory=list[int])
    left_out: int = 0
    records: int = 0
    runtime: int = 0
    sums: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


class RollupChanges:
    """The changes of the roll-ups by one transaction."""

    def __init__(self) -> None:
        self._cells: dict[_Key, _Cell] = {}

    def add(self, row: Finished, components: Sequence[Component], score_set: int | None) -> None:
        """A record is there."""
        if (cell := self._cell(row, score_set)) is not None and row.stop_time is not None:
            cell.stops.append(row.stop_time)
            _count(cell, 1, (row.stop_time - row.start_time) // 1_000_000, components)

    def remove(self, row: Finished, components: Sequence[Component], score_set: int | None) -> None:
        """A record is there no more."""
        if (cell := self._cell(row, score_set)) is not None and row.stop_time is not None:
            cell.gone.append(row.stop_time)
            _count(cell, -1, (row.stop_time - row.start_time) // 1_000_000, components)

    def remove_stored(self, before: StoredRow) -> None:
        """A stored record is there no more."""
        if before.identity.stop is not None:
            record = before.record
            self.remove(make_row(record), record.components, before.score_set)

    def by_day(self) -> list[DayChange]:
        """The rows to be appended."""
        days: dict[int, list[CellChange]] = {}
        together = self._together()
        for key, cell in self._cells.items():
            days.setdefault(key[0], []).append(_change(key, cell, together.get(_without_user(key))))
        return [DayChange(day, len(days[day]), days[day]) for day in sorted(days)]

    def _together(self) -> dict[_Key, _Cell]:
        """The stop times of those cells of all users together from which any is gone."""
        together = {_without_user(key): _Cell() for key, cell in self._cells.items() if cell.gone}
        for key, cell in self._cells.items() if together else ():
            if (all_users := together.get(_without_user(key))) is not None:
                all_users.stops += cell.stops
                all_users.gone += cell.gone
        return together

    def _cell(self, row: Finished, score_set: int | None) -> _Cell | None:
        stop = row.stop_time
        if stop is None or row.more or stop < row.start_time:
            return None
        key = (stop // MICROS_PER_DAY, row.site, row.user_group, row.user_name, score_set)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        return cell


def changes_of_records(pending: Iterable[PendingRecord]) -> RollupChanges:
    """The changes by new records."""
    changes = RollupChanges()
    for each in pending:
        changes.add(each.row, each.record.components, each.score_set)
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
    return number >> LOW_BITS, number & ((1 << LOW_BITS) - 1)


def label_text(site: str | None, group: str | None, user: str | None) -> str:
    """The labels of a cell as JSON: the meta that all of its records have."""
    values = {"site_id": site, "group_id": group, "user_id": user}
    return msgspec.json.encode({key: (value,) for key, value in values.items() if value is not None}).decode()


def _count(cell: _Cell, sign: int, runtime: int, components: Sequence[Component]) -> None:
    # In one pass and without calls: this is done for every record that comes.
    sums, largest = cell.sums, 0
    for component in components:
        largest = max(largest, component.amount)
    if runtime >= _LONGEST_RUNTIME or largest >= _LARGEST_AMOUNT:
        cell.left_out += sign
        return
    cell.records += sign
    cell.runtime += sign * runtime
    for component in components:
        amount = sign * component.amount
        if (found := sums.get(component.name)) is None:
            sums[component.name] = [sign, amount, amount * runtime]
        else:
            found[0] += sign
            found[1] += amount
            found[2] += amount * runtime


def _without_user(key: _Key) -> _Key:
    day, site, group, _, score_set = key
    return day, site, group, None, score_set


def _change(key: _Key, cell: _Cell, together: _Cell | None) -> CellChange:
    _, site, group, user, score_set = key
    first, last = min(cell.stops, default=None), max(cell.stops, default=None)
    gone = [] if _is_covered(cell) else cell.gone
    sums = ((RECORD, (cell.records, cell.records, cell.runtime)), *cell.sums.items())
    amounts = [AmountChange(name, records, amount, *split(product)) for name, (records, amount, product) in sums]
    return CellChange(
        label_text(site, group, user), score_set or 0,
        first, last, min(gone, default=None), max(gone, default=None), cell.left_out,
        amounts, together is not None and _is_covered(together),
    )  # fmt: skip


def _is_covered(cell: _Cell) -> bool:
    """Return whether the ends of all stop times are known although some are gone: these are those of what is added.

    Records that are gone were there before the transaction, so none of them is among those that it adds.
    """
    return bool(cell.gone and cell.stops) and min(cell.stops) <= min(cell.gone) and max(cell.gone) <= max(cell.stops)
