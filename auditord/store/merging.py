"""Merge answers of the database and the lake: decide whether the lake may have part of a sum, and merge lists."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from auditord_hookspecs import AggregateQuery, Record, RecordQuery
from auditord_hookspecs.query import Comparison, Leaf, Order, SortField, TimeCompares, TimeField, fold
from auditord_hookspecs.wire import decode_record

Pages: TypeAlias = AsyncIterator[Sequence[bytes]]
Place: TypeAlias = tuple[bool, datetime, int, bytes]
"""A sort key for records in ascending order. Descending order is the exact reverse."""

_Placed: TypeAlias = tuple[Place, bytes]

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


def place_of(record: Record, order: Order) -> Place:
    """Return the sort key of a record. Ids break ties, and are compared as bytes in UTF-8."""
    record_id = record.record_id.encode()
    match order.field:
        case SortField.START:
            return False, record.start_time, 0, record_id
        case SortField.STOP:
            return record.stop_time is None, record.stop_time or _NEVER, 0, record_id
        case SortField.RUNTIME:
            return record.runtime is None, _NEVER, record.runtime or 0, record_id
        case SortField.ID:
            return False, _NEVER, 0, record_id


async def merge_pages(answers: Sequence[Pages], query: RecordQuery) -> AsyncGenerator[Sequence[bytes], None]:
    """Merge the pages of several answers to a query. The first page is empty, and shows that all answers have begun."""
    heads, left, descending = [_Head(pages, query.order) for pages in answers], query.limit, query.order.descending
    for head in heads:
        await head.refill()
    yield ()
    while left != 0 and any(head.records for head in heads):
        # Take, in order, all records up to the end of the page that ends first. No later page can precede them.
        ends = [head.records[-1][0] for head in heads if head.records]
        end = max(ends) if descending else min(ends)
        taken: list[_Placed] = []
        for head in heads:
            number = sum(place >= end if descending else place <= end for place, _ in head.records)
            taken += head.records[:number]
            head.records = head.records[number:]
        page = [document for _, document in sorted(taken, reverse=descending)][:left]
        left = None if left is None else left - len(page)
        yield page
        for head in heads:
            await head.refill()


class _Head:
    """The records of an answer that have been read but not merged yet; empty after the end of the answer."""

    def __init__(self, pages: Pages, order: Order) -> None:
        self._pages = pages
        self._order = order
        self.records: Sequence[_Placed] = ()

    async def refill(self) -> None:
        """Read the next page if all records of the last one have been taken."""
        while not self.records and (page := await anext(self._pages, None)) is not None:
            self.records = [(place_of(decode_record(each), self._order), each) for each in page]


_Bounds: TypeAlias = tuple[datetime | None, datetime | None]

_FROM: Final = {Comparison.GT, Comparison.GTE, Comparison.EQUALS}
_TO: Final = {Comparison.LT, Comparison.LTE, Comparison.EQUALS}


def may_be_between(query: AggregateQuery, first: datetime | None, last: datetime | None) -> bool:
    """Return whether sums may include records that stopped from ``first`` to ``last`` (None: no bound)."""
    begin, end = fold(query.where, _of_leaf, _of_all, _of_any)
    window = query.window
    if window is not None:
        begin = window.start if begin is None else max(begin, window.start)
    return not (
        (begin is not None and last is not None and begin > last)
        or (end is not None and first is not None and end < first)
    )


def _of_leaf(leaf: Leaf) -> _Bounds:
    match leaf:
        case TimeCompares(TimeField.STOP, comparison, moment):
            return moment if comparison in _FROM else None, moment if comparison in _TO else None
        case TimeCompares(TimeField.START, comparison, moment) if comparison in _FROM:
            return moment, None  # sums leave out records that stopped before their start
        case _:
            return None, None


def _of_all(parts: Sequence[_Bounds]) -> _Bounds:
    return _outermost(max, [begin for begin, _ in parts]), _outermost(min, [end for _, end in parts])


def _of_any(parts: Sequence[_Bounds]) -> _Bounds:
    begins, ends = [begin for begin, _ in parts], [end for _, end in parts]
    return (
        None if None in begins else _outermost(min, begins),
        None if None in ends else _outermost(max, ends),
    )


def _outermost(choose: Callable[[Sequence[datetime]], datetime], moments: Sequence[datetime | None]) -> datetime | None:
    known = [moment for moment in moments if moment is not None]
    return choose(known) if known else None
