"""Conditions evaluated on one record: what a filter of any store means."""

import operator
from collections.abc import Iterator
from functools import partial
from typing import Final

from auditord_hookspecs import Record, query

_COMPARE: Final = {
    query.Comparison.GT: operator.gt,
    query.Comparison.GTE: operator.ge,
    query.Comparison.LT: operator.lt,
    query.Comparison.LTE: operator.le,
    query.Comparison.EQUALS: operator.eq,
}


def flattened(condition: query.Condition) -> Iterator[query.Condition]:
    """The conditions that must all be true, without those that only hold others together."""
    if isinstance(condition, query.AllOf):
        for inner in condition.conditions:
            yield from flattened(inner)
    else:
        yield condition


def matches(record: Record, condition: query.Condition) -> bool:
    """True if a condition holds for a record."""
    return query.fold(condition, partial(_holds, record), all, any)


def _holds(record: Record, condition: query.Leaf) -> bool:  # noqa: C901,PLR0911 one branch for each type of node
    match condition:
        case query.IdEquals(record_id):
            return record.record_id == record_id
        case query.IsOpen():
            return record.stop_time is None
        case query.TimeCompares(field, comparison, moment):
            time = record.start_time if field is query.TimeField.START else record.stop_time
            return time is not None and _COMPARE[comparison](time, moment)
        case query.RuntimeCompares(comparison, seconds):
            return record.runtime is not None and _COMPARE[comparison](record.runtime, seconds)
        case query.MetaContains(key, value):
            return value in (record.meta or {}).get(key, ())
        case query.MetaLacks(key, value):
            values = (record.meta or {}).get(key)
            return values is not None and value not in values
        case query.MetaContainsAny(key, wanted):
            return not set(wanted).isdisjoint((record.meta or {}).get(key, ()))
        case query.MetaAbsent(key):
            return key not in (record.meta or {})
        case query.PlaceCompares(comparison, moment, record_id):
            place = (record.start_time, record.record_id.encode())
            return bool(_COMPARE[comparison](place, (moment, record_id.encode())))
        case query.ComponentCompares(name, comparison, amount):
            return any(each.name == name and _COMPARE[comparison](each.amount, amount) for each in record.components)
