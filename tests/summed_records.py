"""Aggregates computed in the plainest way, over all records at once: the answer that every store must give."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from auditord.client.query_string import matches
from auditord_hookspecs import Component, Record, Window, aggregates
from auditord_hookspecs.aggregates import KeyValue, exact_score
from auditord_hookspecs.query import TimeField
from auditord_hookspecs.records import runtime_seconds
from auditord_hookspecs.vocabulary import TOTALS

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class _Counted:
    """A record that counts."""

    record: Record
    stop: datetime
    runtime: int


_Key: TypeAlias = tuple[KeyValue, ...]


def aggregate_records(records: Iterable[Record], query: aggregates.AggregateQuery) -> aggregates.Aggregates:
    """The answer that a store with these records gives."""
    members: defaultdict[_Key, list[_Counted]] = defaultdict(list)
    for record in records:
        counted = _count(record, query) if matches(record, query.where) else None
        if counted is not None:
            members[tuple([_key_value(counted, dimension) for dimension in query.by])].append(counted)
    groups = [_group(key, members[key], query.usage, query.window) for key in sorted(members, key=_in_order)]
    return aggregates.Aggregates(tuple(groups), query.ticks_per_second)


def _count(record: Record, query: aggregates.AggregateQuery) -> _Counted | None:
    start, stop = record.start_time, query.as_of if record.stop_time is None else record.stop_time
    if stop is None or stop < start:
        return None
    if query.window is None:
        return _Counted(record, stop, runtime_seconds(start, stop))
    if query.window.start == query.window.stop:
        return None
    if start >= query.window.stop or (stop <= query.window.start and start < query.window.start):
        return None
    return _Counted(record, stop, (min(stop, query.window.stop) - max(start, query.window.start)) // _MICROSECOND)


def _key_value(counted: _Counted, dimension: aggregates.Dimension) -> KeyValue:  # noqa: PLR0911 one for each type
    record = counted.record
    match dimension:
        case aggregates.MetaValue(keys):
            lists = [values for key in keys if (values := (record.meta or {}).get(key)) is not None]
            return lists[0][0] if lists and lists[0] else None
        case aggregates.ComponentAmount(name):
            amounts = [each.amount for each in _named(record, name)]
            return sum(amounts) if amounts else None
        case aggregates.ComponentPresent(name):
            return bool(_named(record, name) or _named(record, TOTALS.get(name, name)))
        case aggregates.ExceedsRuntime(name, factor, per):
            used, others = _named(record, name), [] if per is None else _named(record, per)
            total = _named(record, TOTALS.get(per or "", ""))
            if used and total and record.runtime is not None:
                return sum(each.amount for each in used) > Fraction(factor) * (sum(each.amount for each in total) + 1)
            if not used or record.runtime is None or (per is not None and not others):
                return False
            most = Fraction(factor) * (record.runtime + 1) * (sum(each.amount for each in others) if others else 1)
            return sum(each.amount for each in used) > most
        case aggregates.ScoreValue(name, score):
            components = _named(record, name) or _named(record, TOTALS.get(name, name))
            return _score(components[0], score) if components else None
        case aggregates.CalendarPeriod(unit, field, zone):
            moment = record.start_time if field is TimeField.START else counted.stop
            return _first_day(moment.astimezone(ZoneInfo(zone)) if 1970 <= moment.year < 2100 else moment, unit)


def _first_day(moment: datetime, unit: aggregates.CalendarUnit) -> date:
    if unit is aggregates.CalendarUnit.DAY:
        return moment.date()
    if unit is aggregates.CalendarUnit.WEEK:
        return date.fromisocalendar(*moment.isocalendar()[:2], 1)
    months = {aggregates.CalendarUnit.MONTH: 1, aggregates.CalendarUnit.QUARTER: 3, aggregates.CalendarUnit.YEAR: 12}[
        unit
    ]
    return moment.date().replace(day=1, month=moment.month - (moment.month - 1) % months)


def _group(
    key: _Key, members: Sequence[_Counted], usage: Sequence[aggregates.ComponentUsage], window: Window | None
) -> aggregates.Group:
    return aggregates.Group(
        key=key,
        records=len(members),
        runtime=sum(each.runtime for each in members),
        first_stop=min(each.stop for each in members),
        last_stop=max(each.stop for each in members),
        usage=tuple([_usage(members, each, window) for each in usage]),
    )


def _usage(
    members: Sequence[_Counted], usage: aggregates.ComponentUsage, window: Window | None
) -> aggregates.UsageSums:
    names, known = {usage.component, TOTALS.get(usage.component)}, False
    sums = aggregates.AmountSums()
    split: dict[str, defaultdict[Decimal | None, aggregates.AmountSums]] = {
        score: defaultdict(aggregates.AmountSums) for score in usage.scores
    }
    for counted in members:
        for component in [each for each in counted.record.components if each.name in names]:
            known = True
            amount = component.amount if component.name == usage.component else 0
            is_total = component.name in TOTALS.values()
            time = _share(component.amount, counted, window) if is_total else amount * counted.runtime
            part = aggregates.AmountSums(amount, time)
            sums += part
            for score, by_value in split.items():
                by_value[_score(component, score)] += part
    scores = {score: aggregates.ScoreSums(by_value) for score, by_value in split.items()}
    return aggregates.UsageSums(sums, scores, known)


def _share(total: int, counted: _Counted, window: Window | None) -> int:
    """The total, or what it had grown to at the window's end less what it had before, each in whole microseconds."""
    if window is None:
        return total
    start, stop = counted.record.start_time, counted.stop
    whole = (stop - start) // _MICROSECOND
    reached = [
        total * 10**6
        if moment >= stop
        else 0
        if moment <= start
        else total * 10**6 * ((moment - start) // _MICROSECOND) // whole
        for moment in (window.start, window.stop)
    ]
    return reached[1] - (0 if window.start <= start else reached[0])


def _named(record: Record, name: str) -> list[Component]:
    return [component for component in record.components if component.name == name]


def _score(component: Component, name: str) -> Decimal | None:
    return next((exact_score(score.value) for score in component.scores if score.name == name), None)


def _in_order(key: _Key) -> list[tuple[bool, object]]:
    return [(value is not None, value) for value in key]
