"""A :class:`RecordQuery` in the words of ``GET /api/v1/records``."""

from collections.abc import Iterator
from dataclasses import replace

from auditord.client.query_string import encode_query
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import AllOf, Condition, IsOpen


def encode_for_api(query: RecordQuery) -> str:
    """The query string, always with its order, since the API's own is another one than the contract's.

    Raises:
        UnsupportedQuery: there are no words for a condition.
    """
    conditions = list(_flattened(query.where))
    others = tuple(each for each in conditions if not isinstance(each, IsOpen))
    direction = "desc" if query.order.descending else "asc"
    pieces = [
        encode_query(replace(query, where=AllOf(others), order=RecordQuery().order)),
        f"sort_by[{direction}]={query.order.field.value}",
        *(["open=true"] if len(others) < len(conditions) else []),
    ]
    return "&".join(filter(None, pieces))


def _flattened(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, AllOf):
        for inner in condition.conditions:
            yield from _flattened(inner)
    else:
        yield condition
