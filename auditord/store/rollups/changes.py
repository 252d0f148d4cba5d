"""Changes of the roll-ups: sums over the finished records that a transaction adds, less those that it removes.

A transaction appends one row per day of stop times (UTC) that it touches; rows are folded into the cells later
(:mod:`auditord.store.rollups.folding`), and read as they are until then. Only records whose columns are complete
(``more`` is not set) and that do not end before they start are in roll-ups: sums read the few others from the records.

**The archive.** A record that moves to the archive, or comes back from there, stays in the roll-ups: who moves it notes
nothing here. The cells must be complete before (:func:`auditord.store.rollups.folding.filled_to`), or the record would
be missing in them. A record in the archive that is corrected or deleted without coming back first::

    changes = RollupChanges((yield from rolled_keys()))
    changes.remove(make_row(before), score_set_before)
    changes.add(make_row(after), score_set_after)  # not for a deletion
    yield from note(changes)  # in the transaction that changes the state of the archive

**Keys.** Cells tell sites, groups and users apart. Each further meta key whose values are rolled up, the number of
cores, and the days of a time zone (:mod:`auditord.store.rollups.zone_keys`) have cells of their own, of all users
together: so the cells of several keys add up instead of multiplying. Where there are days of a zone, the cells of all
other keys tell these apart too. A transaction notes which of them its changes tell apart; a key whose cells would miss
some is filled anew (:mod:`auditord.store.rollups.folding`), so that it does no harm if a process learns late of a key.

The number of a score set is that of :class:`auditord.store.sources.Sources`, None without scores. Sums over a store
with an archive: :mod:`auditord.store.rollups.scope`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from auditord.store.planning import ChangePlan, StoredRow
from auditord.store.rollups.cells import GROUPED_KEYS
from auditord.store.rollups.deltas import (
    CORES_KEY,
    CPU_TIME,
    LOW,
    LOW_BITS,
    MICROS_PER_DAY,
    RECORD,
    AmountChange,
    CellChange,
    DayChange,
    Ends,
    NotedChange,
    widened,
)
from auditord.store.rollups.zone_keys import ZoneDays, is_of_zone, known, parts_of, zone_days, zone_of_key
from auditord.store.rows import PendingRecord, RolledRecord, make_row
from auditord.store.work import RolledKeys, Work, as_json, for_each
from auditord_hookspecs.records import Meta

P = TypeVar("P")

_LARGEST_AMOUNT: Final = 1 << 53
_LONGEST_RUNTIME: Final = 1 << 33
"""Amount and seconds from which on a record is only counted as left out: a few of them might not fit 64 bits."""

_Values: TypeAlias = tuple[tuple[str, ...] | None, ...]
"""The values of a record under each of the keys that are rolled up."""

_Place: TypeAlias = tuple[int, str | None, str | None, str | None, int, bool]
"""Day since 1970, site, group, user, score set, whether there is a CPU time."""

_Key: TypeAlias = tuple[int, str | None, str | None, str | None, int, tuple[str, ...], _Values]
"""The first five, the names of the components, and values: records that have the same ones are counted together."""

_PlaceOfKeys: TypeAlias = tuple[_Place, _Values]

_Cells: TypeAlias = dict[_Key, list[int]]
"""Of each key the first and the last stop time, how many records are left out, how many are counted and their runtime;
and of each component the amount, and the amount times runtime.

One flat list, since this is made for nearly every record that comes.
"""


class _Keys(NamedTuple):
    """Keys by what their values are read from: the names of all, their parts, then those of each kind in this order."""

    names: tuple[str, ...]
    parts: tuple[str, ...]
    meta: tuple[str, ...]
    has_cores: bool
    zones: tuple[ZoneDays, ...]


class RollupChanges:
    """The changes of the roll-ups by one transaction.

    Args:
        keys: what they tell apart beside site, group and user.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = _sorted_keys(tuple(keys))
        self._added: _Cells = {}
        self._removed: _Cells = {}

    @property
    def keys(self) -> Sequence[str]:
        """The keys that they tell apart beside site, group and user."""
        return self._keys.names

    def add(self, record: RolledRecord, score_set: int | None) -> None:
        """A record is there."""
        _count(self._added, self._keys, record, score_set)

    def add_new(self, pending: Iterable[PendingRecord]) -> None:
        """Records are there."""
        cells, keys = self._added, self._keys
        for each in pending:
            _count(cells, keys, each.row, each.score_set)

    def remove(self, record: RolledRecord, score_set: int | None) -> None:
        """A record is there no more."""
        _count(self._removed, self._keys, record, score_set)

    def remove_stored(self, before: StoredRow) -> None:
        """A stored record is there no more."""
        if before.identity.stop is not None:
            self.remove(make_row(before.record), before.score_set)

    def by_day(self) -> list[DayChange]:
        """The changes of cells."""
        days: dict[int, list[CellChange]] = {}
        parts = self._keys.parts
        for key, cell in self._added.items():
            day, site, group, user, score_set, names, values = key
            labels, ends = label_text(site, group, user, parts, values), (cell[0], cell[1], None, None)
            sums = (cell[2], _amounts(1, names, cell), False, CPU_TIME in names)
            days.setdefault(day, []).append(CellChange(labels, score_set, *ends, *sums))
        for day, removal in self._removals():
            days.setdefault(day, []).append(removal)
        return [DayChange(day, days[day]) for day in sorted(days)]

    def noted(self) -> list[NotedChange]:
        """The rows to be appended."""
        keys = _keys_text(self._keys.names)
        return [NotedChange(each.day, len(each.changes), as_json(each.changes), keys) for each in self.by_day()]

    def _removals(self) -> Iterator[tuple[int, CellChange]]:
        if not self._removed:
            return
        of_user, of_all = _covered(self._added, self._removed, _place), _covered(self._added, self._removed, _together)
        of_key = _covered(self._added, self._removed, _place_of_keys)
        for key, cell in self._removed.items():
            first, last = (None, None) if _place(key) in of_user else (cell[0], cell[1])
            of_key_first, of_key_last = (None, None) if _place_of_keys(key) in of_key else (cell[0], cell[1])
            ends = (None, None, first, last)
            amounts, is_of_user = _amounts(-1, key[5], cell), _together(key) in of_all
            sums = (-cell[2], amounts, is_of_user, CPU_TIME in key[5])
            yield key[0], CellChange(self._labels(key), key[4], *ends, *sums, of_key_first, of_key_last)

    def _labels(self, key: _Key) -> str:
        return label_text(key[1], key[2], key[3], self._keys.parts, key[6])


def rolled_keys() -> Work[Sequence[str]]:
    """The keys that changes have to tell apart, as far as this process knows."""
    keys: Sequence[str] = yield RolledKeys()
    return keys


def changes_of_records(pending: Iterable[PendingRecord], keys: Sequence[str]) -> RollupChanges:
    """The changes by new records."""
    changes = RollupChanges(keys)
    changes.add_new(pending)
    return changes


def changes_of_plan(plan: ChangePlan, keys: Sequence[str]) -> RollupChanges:
    """The changes by a plan."""
    changes = changes_of_records(plan.new, keys)
    for pending in plan.overwritten:
        changes.remove_stored(plan.before[pending.record_id])
        changes.add(pending.row, pending.score_set)
    for pending in plan.moved:
        before = plan.before[pending.record_id]
        changes.remove_stored(before)
        changes.add(pending.row, before.score_set)
    for record_id in plan.removed:
        changes.remove_stored(plan.before[record_id])
    return changes


def note(changes: RollupChanges) -> Work[None]:
    """Append changes, in the transaction of the records that they are about."""
    yield from for_each("note_rollup_changes", changes.noted())


@lru_cache(50_000)
def label_text(
    site: str | None, group: str | None, user: str | None, keys: tuple[str, ...] = (), values: _Values = ()
) -> str:
    """The labels of a cell as JSON: the meta that all of its records have."""
    columns = {"site_id": site, "group_id": group, "user_id": user}
    meta = {key: (value,) for key, value in columns.items() if value is not None}
    more = {key: found for key, found in zip(keys, values, strict=True) if found is not None}
    return msgspec.json.encode({**meta, **more}).decode()


@lru_cache(100)
def _sorted_keys(keys: tuple[str, ...]) -> _Keys:
    names = tuple(known(keys))
    parts = dict.fromkeys([part for key in names for part in parts_of(key) if part not in GROUPED_KEYS])
    zones = [key for key in parts if is_of_zone(key)]
    meta = tuple([key for key in parts if key != CORES_KEY and not is_of_zone(key)])
    has_cores = CORES_KEY in parts
    days = [zone_days(zone) for key in zones if (zone := zone_of_key(key)) is not None]
    return _Keys(names, (*meta, *([CORES_KEY] if has_cores else []), *zones), meta, has_cores, tuple(days))


@lru_cache(100)
def _keys_text(keys: tuple[str, ...]) -> str:
    return msgspec.json.encode(keys).decode()


def _count(cells: _Cells, keys: _Keys, record: RolledRecord, score_set: int | None) -> None:
    # In one pass and with few objects: this is done for every record that comes.
    start, stop = record.start_time, record.stop_time
    if stop is None or record.more or stop < start:
        return
    labels, amounts = record.labels, record.amounts
    names, numbers = amounts.names, amounts.numbers
    values = _values(keys, labels.meta, amounts.cores, stop) if keys.parts else ()
    runtime, records, left_out = (stop - start) // 1_000_000, 1, 0
    if runtime >= _LONGEST_RUNTIME or amounts.largest >= _LARGEST_AMOUNT:
        runtime, records, left_out, names, numbers = 0, 0, 1, (), ()
    day = stop // MICROS_PER_DAY
    key = (day, labels.site, labels.user_group, labels.user_name, score_set or 0, names, values)
    if (cell := cells.get(key)) is None:
        cells[key] = cell = [stop, stop, left_out, records, runtime]
        for number in numbers:
            cell += (number, number * runtime)
        return
    if stop < cell[0]:
        cell[0] = stop
    elif stop > cell[1]:
        cell[1] = stop
    cell[2] += left_out
    cell[3] += records
    cell[4] += runtime
    at = 5
    for number in numbers:
        cell[at] += number
        cell[at + 1] += number * runtime
        at += 2


def _values(keys: _Keys, meta: Meta | None, cores: int | None, stop: int) -> _Values:
    of_cores = _of_cores(cores) if keys.has_cores else ()
    if not keys.meta and not keys.zones:
        return of_cores
    texts = [None if meta is None else meta.get(key) for key in keys.meta]
    of_meta = [None if each is None else tuple(each) for each in texts]
    return (*of_meta, *of_cores, *[days.values(stop) for days in keys.zones])


@lru_cache(1_000)
def _of_cores(cores: int | None) -> _Values:
    return (None if cores is None else (str(cores),),)


def _amounts(sign: int, names: Iterable[str], cell: list[int]) -> list[AmountChange]:
    records, runtime = sign * cell[3], sign * cell[4]
    amounts = [(RECORD, records, records, runtime >> LOW_BITS, runtime & LOW)]
    at = 5
    for name in names:
        product = sign * cell[at + 1]
        amounts.append((name, records, sign * cell[at], product >> LOW_BITS, product & LOW))
        at += 2
    return amounts


def _place(key: _Key) -> _Place:
    return *key[:5], CPU_TIME in key[5]


def _together(key: _Key) -> _Place:
    day, site, group, _, score_set, names, _ = key
    return day, site, group, None, score_set, CPU_TIME in names


def _place_of_keys(key: _Key) -> _PlaceOfKeys:
    return _together(key), key[6]


def _covered(added: _Cells, removed: _Cells, place_of: Callable[[_Key], P]) -> set[P]:
    """The places where the ends of all stop times are known although some are gone: these are those of what is added.

    Records that are gone were there before the transaction, so none of them is among those that it adds.
    """
    gone = _ends(removed, place_of)
    stops = _ends({key: cell for key, cell in added.items() if place_of(key) in gone}, place_of)
    return {place for place, (first, last) in stops.items() if first <= gone[place][0] and gone[place][1] <= last}


def _ends(cells: _Cells, place_of: Callable[[_Key], P]) -> dict[P, Ends]:
    ends: dict[P, Ends] = {}
    for key, (first, last, *_) in cells.items():
        place = place_of(key)
        ends[place] = widened(ends.get(place), first, last)
    return ends
