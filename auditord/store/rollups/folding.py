"""Changes folded into the cells of the roll-ups, and the cells filled from what was stored before there were any.

Cells are complete up to a day (``rollup_state.filled_to``). Changes of later days wait: the records that they are about
are read when it is their day's turn. The records that are read and the changes that this settles are of one state, so
that a record which comes meanwhile is counted exactly once. Records of the archive are read beside them; if any moved
there or back meanwhile, the days are read again.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from auditord.database.instants import to_micros
from auditord.store.archived import ArchiveState
from auditord.store.rollups.cells import END, CellKey, CellRow, Cells, CellsOfLevels, label_row
from auditord.store.rollups.changes import MICROS_PER_DAY, CellChange, RollupChanges
from auditord.store.rows import make_row
from auditord.store.work import Rows, Work, as_json, ask, for_each
from auditord_hookspecs import Component, Record

AT_ONCE: Final = 16_000
"""Changes of cells that are folded in one transaction: nearly as many cells are written for far fewer of them."""

FORGET_ALL: Final = ("forget_rollups", "forget_all_rollup_changes", "forget_rollup_state")
"""Statements after which the cells are filled anew from the records."""

_ROWS_AT_ONCE: Final = 5_000

_changes: Final = msgspec.json.Decoder(list[CellChange])


class _Columns(msgspec.Struct, gc=False):
    """A finished record with complete columns, as far as the cells need it."""

    start_time: int
    stop_time: int
    site: str | None
    user_group: str | None
    user_name: str | None
    more: None = None


class _Amounts(msgspec.Struct, gc=False):
    """Of a document, what the cells need."""

    components: tuple[Component, ...]


_amounts: Final = msgspec.json.Decoder(_Amounts)


@dataclass(slots=True, eq=False)
class Days:
    """Some days whose records are read for the cells.

    Args:
        begin: the first one, up to which the cells are complete.
        end: the day behind the last one.
    """

    begin: int
    end: int
    settled: list[int] = field(default_factory=list[int])
    """Numbers of changes that what has been read includes."""
    changes: RollupChanges = field(default_factory=RollupChanges)

    async def read(self, pages: AsyncIterator[Sequence[Sequence[Any]]]) -> None:  # Any: columns of all types
        """Take up the rows of ``read_rollup_days``."""
        async for page in pages:
            for number, start, stop, site, group, user, score_set, document in page:
                if number is not None:
                    self.settled.append(number)
                else:
                    columns = _Columns(start, stop, site, group, user)
                    self.changes.add(columns, _amounts.decode(document).components, score_set)

    def add(self, records: Sequence[Record], score_sets: Sequence[int | None]) -> None:
        """Take up archived records, with the numbers of their score sets."""
        for record, score_set in zip(records, score_sets, strict=True):
            self.changes.add(make_row(record), record.components, score_set)


def filled_to() -> Work[int]:
    """The first day that is not in the cells yet."""
    ((day,),) = yield from ask("rollup_state")
    return int(day)


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
    return Days(begin, min(days) + 1 if days else END)


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Changes that wait to be folded.

    Args:
        rows: of each transaction and day the number, the day and the changes as JSON.
    """

    rows: Rows

    def numbers(self) -> str:
        """The numbers as JSON."""
        return as_json([number for number, _, _ in self.rows])

    def cells(self) -> CellsOfLevels:
        """The cells that they change."""
        cells = Cells()
        for _, day, changes in self.rows:
            cells.add(day, _changes.decode(changes))
        return cells.by_level()


def waiting_changes() -> Work[int]:
    """The number of changes of cells that nobody has folded yet; records that fall into one cell together are one."""
    ((changes,),) = yield from ask("size_of_rollup_changes")
    return int(changes)


def next_changes() -> Work[Waiting | None]:
    """The oldest changes, to be folded next; None if there are none."""
    complete = yield from filled_to()
    rows = yield from ask("list_rollup_changes", filled_to=complete, most=AT_ONCE)
    return Waiting(rows) if rows else None


def fold(waiting: Waiting, rows: Sequence[CellRow]) -> Work[None]:
    """Fold changes that have been read, in one transaction, unless another process was faster with any of them.

    Labels that another process has dropped meanwhile, since no cell had them yet, count as such a change.

    Args:
        waiting: the changes.
        rows: what they change, see :func:`rows_of`.
    """
    yield from ask("lock_rollups")
    ((found,),) = yield from ask("count_rollup_changes", numbers=waiting.numbers())
    labels = {row.labels for row in rows}
    ((known,),) = yield from ask("count_rollup_labels", numbers=as_json(sorted(labels)))
    if found == len(waiting.rows) and known == len(labels):
        yield from _write(rows)
        yield from ask("forget_rollup_changes", numbers=waiting.numbers())


def number_labels(levels: CellsOfLevels) -> Work[Mapping[str, int]]:
    """The numbers of the labels of cells; new ones get theirs."""
    labels = {text: label_row(text) for places in levels.values() for _, text, *_ in places}
    ordered = sorted(labels.values(), key=lambda row: row.digest)
    yield from for_each("add_rollup_labels", ordered)
    found = yield from ask("find_rollup_labels", digests=as_json([row.digest for row in ordered]))
    numbers: dict[str, int] = dict(found)
    return {text: numbers[row.digest] for text, row in labels.items()}


def rows_of(levels: CellsOfLevels, numbers: Mapping[str, int]) -> list[CellRow]:
    """The changes of cells as rows."""
    return [
        row
        for level, places in levels.items()
        for place, cell in places.items()
        for row in cell.rows(level, place, numbers[place[1]])
    ]


def fill(days: Days) -> Work[None]:
    """Put days that have been read into the cells, in one transaction, unless another process was faster."""
    ((complete,),) = yield from ask("lock_rollups")
    if complete != days.begin:
        return
    cells = Cells()
    for change in days.changes.by_day():
        cells.add(change.day, change.changes)
    levels = cells.by_level()
    yield from _write(rows_of(levels, (yield from number_labels(levels))))
    yield from ask("forget_rollup_changes", numbers=as_json(days.settled))
    yield from ask("set_rollup_state", filled_to=days.end)


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


def _write(rows: Sequence[CellRow]) -> Work[None]:
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        yield from for_each("add_to_rollups", rows[first : first + _ROWS_AT_ONCE])
    gone = [
        CellKey(row.level, row.period, row.labels, row.score_set, row.component)
        for row in rows
        if row.records < 0 or row.left_out < 0 or row.gone_first is not None
    ]
    yield from for_each("drop_empty_rollups", gone)
