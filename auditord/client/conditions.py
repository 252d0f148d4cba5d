"""Conditions evaluated on one record: what a filter of any store means."""

import operator
from collections.abc import Iterator
from typing import Final

from auditord_hookspecs import Record
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    PlaceCompares,
    RuntimeCompares,
    TimeCompares,
    TimeField,
)

_COMPARE: Final = {
    Comparison.GT: operator.gt,
    Comparison.GTE: operator.ge,
    Comparison.LT: operator.lt,
    Comparison.LTE: operator.le,
    Comparison.EQUALS: operator.eq,
}


def flattened(condition: Condition) -> Iterator[Condition]:
    """The conditions that must all be true, without those that only hold others together."""
    if isinstance(condition, AllOf):
        for inner in condition.conditions:
            yield from flattened(inner)
    else:
        yield condition


def matches(record: Record, condition: Condition) -> bool:  # noqa: C901,PLR0911 one branch for each type of node
    """True if a condition holds for a record."""
    match condition:
        case AllOf(conditions):
            return all(matches(record, each) for each in conditions)
        case AnyOf(conditions):
            return any(matches(record, each) for each in conditions)
        case IdEquals(record_id):
            return record.record_id == record_id
        case IsOpen():
            return record.stop_time is None
        case TimeCompares(field, comparison, moment):
            time = record.start_time if field is TimeField.START else record.stop_time
            return time is not None and _COMPARE[comparison](time, moment)
        case RuntimeCompares(comparison, seconds):
            return record.runtime is not None and _COMPARE[comparison](record.runtime, seconds)
        case MetaContains(key, value):
            return value in (record.meta or {}).get(key, ())
        case MetaLacks(key, value):
            values = (record.meta or {}).get(key)
            return values is not None and value not in values
        case MetaContainsAny(key, wanted):
            return not set(wanted).isdisjoint((record.meta or {}).get(key, ()))
        case MetaAbsent(key):
            return key not in (record.meta or {})
        case PlaceCompares(comparison, moment, record_id):
            place = (record.start_time, record.record_id.encode())
            return bool(_COMPARE[comparison](place, (moment, record_id.encode())))
        case ComponentCompares(name, comparison, amount):
            return any(each.name == name and _COMPARE[comparison](each.amount, amount) for each in record.components)
