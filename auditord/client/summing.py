"""Sums over records as they pass: what a server that has no sums is asked for is added up here.

Memory is bounded by the groups and the values of their scores, not by the records.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias

from auditord.client.query_string import flattened, matches
from auditord_hookspecs import Component, Record, RecordQuery, aggregates
from auditord_hookspecs.query import AllOf, Comparison, MetaContains, TimeCompares, TimeField
from auditord_hookspecs.zones import day_of

Key: TypeAlias = tuple[aggregates.KeyValue, ...]

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)


class Adder:
    """Adds records up, one after the other.

    Args:
        query: which records count, and which sums to compute.
    """

    def __init__(self, query: aggregates.AggregateQuery) -> None:
        self._query = query
        self._groups: dict[Key, _Sums] = {}

    def add(self, record: Record) -> None:
        """Take a record into account, if it counts."""
        query = self._query
        stop = query.as_of if record.stop_time is None else record.stop_time
        if stop is None or stop < record.start_time or not matches(record, query.where):
            return
        ticks = _ticks(record.start_time, stop, query)
        if ticks is None:
            return
        key = tuple([_key_value(record, stop, dimension) for dimension in query.by])
        if (sums := self._groups.get(key)) is None:
            sums = self._groups[key] = _Sums(query, stop)
        sums.add(record, stop, ticks)

    def answer(self) -> aggregates.Aggregates:
        """Return the sums over the records added so far."""
        keys = sorted(self._groups, key=aggregates.in_order)
        groups = tuple([self._groups[key].as_group(key) for key in keys])
        return aggregates.Aggregates(groups, self._query.ticks_per_second)


def records_for(query: aggregates.AggregateQuery) -> RecordQuery:
    """Return a query for all records that may count, which AUDITOR's own server answers correctly.

    More than those may come: :class:`Adder` looks at each.
    """
    conditions = [each for each in flattened(query.where) if isinstance(each, TimeCompares | MetaContains)]
    if query.window is not None:
        conditions.append(TimeCompares(TimeField.START, Comparison.LT, query.window.stop))
        if query.as_of is None:  # or a condition on the stop time would leave open records out
            conditions.append(TimeCompares(TimeField.STOP, Comparison.GTE, query.window.start))
    return RecordQuery(AllOf(tuple(conditions)))


class _Sums:
    """The sums over one group, so far."""

    def __init__(self, query: aggregates.AggregateQuery, stop: datetime) -> None:
        self._records = 0
        self._ticks = 0
        self._first = self._last = stop
        self._usage = [_Usage(each) for each in query.usage]

    def add(self, record: Record, stop: datetime, ticks: int) -> None:
        self._records += 1
        self._ticks += ticks
        self._first, self._last = min(self._first, stop), max(self._last, stop)
        for usage in self._usage:
            usage.add(record, ticks)

    def as_group(self, key: Key) -> aggregates.Group:
        usage = tuple([each.as_sums() for each in self._usage])
        return aggregates.Group(key, self._records, self._ticks, self._first, self._last, usage)


class _Usage:
    """The sums over the components of one name, so far."""

    def __init__(self, wanted: aggregates.ComponentUsage) -> None:
        self._component = wanted.component
        self._sums = aggregates.AmountSums()
        self._scores: dict[str, defaultdict[Decimal | None, aggregates.AmountSums]] = {
            score: defaultdict(aggregates.AmountSums) for score in wanted.scores
        }

    def add(self, record: Record, ticks: int) -> None:
        for component in record.components:
            if component.name == self._component:
                part = aggregates.AmountSums(component.amount, component.amount * ticks)
                self._sums += part
                for score, by_value in self._scores.items():
                    by_value[_score(component, score)] += part

    def as_sums(self) -> aggregates.UsageSums:
        return aggregates.UsageSums(
            self._sums, {score: aggregates.ScoreSums(dict(by_value)) for score, by_value in self._scores.items()}
        )


def _ticks(start: datetime, stop: datetime, query: aggregates.AggregateQuery) -> int | None:
    """Return the ticks of a record that count; None if it lies outside the window."""
    if query.window is None:
        return (stop - start) // _SECOND  # neither is negative here, so this truncates as the contract does
    window = query.window
    begin, end = max(start, window.start), min(stop, window.stop)
    outside = start >= window.stop or end < begin or (stop == window.start and start < stop)
    return None if outside else (end - begin) // _MICROSECOND


def _key_value(record: Record, stop: datetime, dimension: aggregates.Dimension) -> aggregates.KeyValue:
    match dimension:
        case aggregates.MetaValue(keys):
            return aggregates.meta_value(record, keys)
        case aggregates.ComponentAmount(name):
            return aggregates.amount_of(record, name)
        case aggregates.ComponentPresent(name):
            return any(each.name == name for each in record.components)
        case aggregates.ExceedsRuntime(name, _, per):
            amounts = [aggregates.amount_of(record, each or "") for each in (name, per)]
            return dimension.holds(amounts[0], record.runtime, amounts[1])
        case aggregates.ScoreValue(name, score):
            first = next((each for each in record.components if each.name == name), None)
            return None if first is None else _score(first, score)
        case aggregates.CalendarPeriod(unit, field, zone):
            moment = record.start_time if field is TimeField.START else stop
            return unit.first_day(day_of(moment, zone))


def _score(component: Component, name: str) -> Decimal | None:
    for score in component.scores:
        if score.name == name:
            return aggregates.exact_score(score.value)
    return None
