"""Parse answers of ``GET /api/v1/aggregates``, and compute the same sums from single records.

AUDITOR has no such route. For it, the client streams the records and adds them up (:class:`Adder`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import msgspec

from auditord.client.exchange import InvalidAnswer
from auditord.client.query_string import encode_dimension, flatten, matches
from auditord_hookspecs import Component, HttpAnswer, InvalidRecord, Record, RecordQuery, aggregates
from auditord_hookspecs.aggregates import KeyValue
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    MetaContains,
    TimeCompares,
    TimeField,
    Window,
)
from auditord_hookspecs.vocabulary import TOTALS, share_of, total_of
from auditord_hookspecs.wire import parse_time
from auditord_hookspecs.zones import day_of


def read_aggregates(answer: HttpAnswer, query: aggregates.AggregateQuery) -> aggregates.Aggregates:
    """Parse an auditord's answer to a query for sums.

    Raises:
        InvalidAnswer: the answer comes from another program or version, or does not match the query.
    """
    try:
        document = msgspec.json.decode(answer.body)
        groups = tuple([_group(each, query) for each in document["groups"]])
        ticks = int(document["ticks_per_second"])
        snapshot = None
        if (of_lake := document.get("snapshot")) is not None:
            committed_at, is_complete = parse_time(of_lake["committed_at"]), of_lake.get("complete", True)
            snapshot = aggregates.LakeSnapshot(int(of_lake["id"]), committed_at, is_complete)
    except (msgspec.DecodeError, InvalidRecord, InvalidOperation, LookupError, TypeError, ValueError) as error:
        raise InvalidAnswer(f"{answer.request}: no valid sums ({error!r}): is it an auditord?") from error
    if ticks != query.ticks_per_second:
        raise InvalidAnswer(
            f"{answer.request} was answered with {ticks} ticks a second: is the server of another version?"
        )
    return aggregates.Aggregates(groups, ticks, snapshot)


def _group(group: Mapping[str, Any], query: aggregates.AggregateQuery) -> aggregates.Group:  # Any: JSON
    return aggregates.Group(
        key=tuple([_key_value(group["key"][encode_dimension(each)], each) for each in query.by]),
        records=int(group["records"]),
        runtime=int(group["runtime"]),
        first_stop=parse_time(group["first_stop"]),
        last_stop=parse_time(group["last_stop"]),
        usage=tuple([_read_usage(group["usage"][each.component], each.scores) for each in query.usage]),
    )


def _key_value(value: str | int | None, dimension: aggregates.Dimension) -> KeyValue:
    match dimension:
        case aggregates.ScoreValue() if value is not None:
            return Decimal(value)
        case aggregates.CalendarPeriod() if value is not None:
            return date.fromisoformat(str(value))
        case _:
            return value


def _read_usage(used: Mapping[str, Any], scores: Sequence[str]) -> aggregates.UsageSums:  # Any: JSON
    read = dict[str, aggregates.ScoreSums]()
    for score in scores:
        scored, by_value = used["scores"][score], dict[Decimal | None, aggregates.AmountSums]()
        if (unscored := _amounts(scored["unscored"])) != aggregates.AmountSums():
            by_value[None] = unscored
        by_value |= {Decimal(each["value"]): _amounts(each) for each in scored["by_value"]}
        read[score] = aggregates.ScoreSums(by_value)
    return aggregates.UsageSums(_amounts(used), read, used.get("known", True))


def _amounts(sums: Mapping[str, Any]) -> aggregates.AmountSums:  # Any: JSON
    return aggregates.AmountSums(int(sums["amount"]), int(sums["amount_runtime"]))


Key: TypeAlias = tuple[aggregates.KeyValue, ...]

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)


class Adder:
    """Computes the sums of a query over records that are added one by one."""

    def __init__(self, query: aggregates.AggregateQuery) -> None:
        self._query = query
        self._groups: dict[Key, _Sums] = {}

    def add(self, record: Record) -> None:
        """Add a record, if it matches the query."""
        query = self._query
        stop = query.as_of if record.stop_time is None else record.stop_time
        if stop is None or stop < record.start_time or not matches(record, query.where):
            return
        ticks = _ticks(record.start_time, stop, query)
        if ticks is None:
            return
        key = tuple([_key_of(record, stop, dimension) for dimension in query.by])
        if (sums := self._groups.get(key)) is None:
            sums = self._groups[key] = _Sums(query, stop)
        sums.add(record, stop, ticks)

    def answer(self) -> aggregates.Aggregates:
        """Return the sums over the records added so far."""
        keys = sorted(self._groups, key=aggregates.in_order)
        groups = tuple([self._groups[key].as_group(key) for key in keys])
        return aggregates.Aggregates(groups, self._query.ticks_per_second)


def records_for(query: aggregates.AggregateQuery) -> RecordQuery:
    """Return a query for the records to add up, with only those conditions that AUDITOR's server evaluates correctly.

    Its result can contain further records. :class:`Adder` filters them out.
    """
    conditions = [each for each in flatten(query.where) if isinstance(each, TimeCompares | MetaContains)]
    if query.window is not None:
        conditions.append(TimeCompares(TimeField.START, Comparison.LT, query.window.stop))
        if query.as_of is None:  # otherwise open records count, and a condition on the stop time would exclude them
            conditions.append(TimeCompares(TimeField.STOP, Comparison.GTE, query.window.start))
    return RecordQuery(AllOf(tuple(conditions)))


class _Sums:
    """The running sums of one group."""

    def __init__(self, query: aggregates.AggregateQuery, stop: datetime) -> None:
        self._records = 0
        self._ticks = 0
        self._first = self._last = stop
        self._usage = [_Usage(each, query.window) for each in query.usage]

    def add(self, record: Record, stop: datetime, ticks: int) -> None:
        self._records += 1
        self._ticks += ticks
        self._first, self._last = min(self._first, stop), max(self._last, stop)
        for usage in self._usage:
            usage.add(record, stop, ticks)

    def as_group(self, key: Key) -> aggregates.Group:
        usage = tuple([each.as_sums() for each in self._usage])
        return aggregates.Group(key, self._records, self._ticks, self._first, self._last, usage)


class _Usage:
    """The running sums over the components of one name."""

    def __init__(self, usage: aggregates.ComponentUsage, window: Window | None) -> None:
        self._component = usage.component
        self._total = total_of(usage.component)
        self._window = window
        self._known = False
        self._sums = aggregates.AmountSums()
        self._scores: dict[str, defaultdict[Decimal | None, aggregates.AmountSums]] = {
            score: defaultdict(aggregates.AmountSums) for score in usage.scores
        }

    def add(self, record: Record, stop: datetime, ticks: int) -> None:
        for component in record.components:
            if component.name == self._total:
                time, start = component.amount, record.start_time
                if self._window is not None:  # the part within the window, in microseconds
                    moments = [start, stop, self._window.start, self._window.stop]
                    time = share_of(time, *[(moment - start) // _MICROSECOND for moment in moments])
            elif component.name == self._component:
                time = component.amount * ticks
            else:
                continue
            part = aggregates.AmountSums(component.amount if component.name == self._component else 0, time)
            self._sums += part
            self._known = True
            for score, by_value in self._scores.items():
                by_value[_score(component, score)] += part

    def as_sums(self) -> aggregates.UsageSums:
        return aggregates.UsageSums(
            self._sums,
            {score: aggregates.ScoreSums(dict(by_value)) for score, by_value in self._scores.items()},
            self._known,
        )


def _ticks(start: datetime, stop: datetime, query: aggregates.AggregateQuery) -> int | None:
    """Return a record's runtime within the window in microseconds, or without a window its runtime in whole seconds.

    Return None if the record is outside the window.
    """
    if query.window is None:
        return (stop - start) // _SECOND  # stop >= start, so this truncates to whole seconds as the contract does
    window = query.window
    begin, end = max(start, window.start), min(stop, window.stop)
    outside = start >= window.stop or end < begin or (stop == window.start and start < stop)
    outside = outside or window.start == window.stop
    return None if outside else (end - begin) // _MICROSECOND


def _key_of(record: Record, stop: datetime, dimension: aggregates.Dimension) -> aggregates.KeyValue:
    match dimension:
        case aggregates.MetaValue(keys):
            return aggregates.meta_value(record, keys)
        case aggregates.ComponentAmount(name):
            return aggregates.amount_of(record, name)
        case aggregates.ComponentPresent(name):
            return any(each.name in {name, TOTALS.get(name)} for each in record.components)
        case aggregates.ExceedsRuntime(name, _, per):
            names = (name, per, TOTALS.get(per or ""))
            amount, times, total = [aggregates.amount_of(record, each or "") for each in names]
            return dimension.holds(amount, record.runtime, times, total)
        case aggregates.ScoreValue(name, score):
            first = next((each for each in record.components if each.name in {name, TOTALS.get(name)}), None)
            return None if first is None else _score(first, score)
        case aggregates.CalendarPeriod(unit, field, zone):
            moment = record.start_time if field is TimeField.START else stop
            return unit.first_day(day_of(moment, zone))


def _score(component: Component, name: str) -> Decimal | None:
    for score in component.scores:
        if score.name == name:
            return aggregates.exact_score(score.value)
    return None
