"""Answers in the order of stop times, where very many records have the same one.

The index of stop times finds the newest records at once, but knows no order among those that stopped at one moment: all
of them would be read to find the few with the last ids. Where these few are soon found among the last ids of all, the
answer is put together of parts, each in the order of one index.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString

from msgspec.structs import replace

from auditord.store.conditions import compile_condition, compile_query
from auditord.store.postgres.dialect import PostgresDialect
from auditord.store.sql import Columns, Sql
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import AllOf, Comparison, Condition, IsOpen, SortField, TimeCompares, TimeField

_MANY: Final = 50
"""For each record that is wanted, records of the same stop time that are rather not read all."""

_LOOKED_AT: Final = 10
"""For each record that is wanted, records at that end of the order of ids among which it must be."""

_MOST: Final = 10_000
"""Records that are wanted, up to which this is looked into."""

_FIND: Final[LiteralString] = """(
    SELECT stop_time
    FROM (SELECT stop_time FROM auditord.records ORDER BY stop_time {order} OFFSET %s LIMIT 1) AS place
    WHERE
        EXISTS (SELECT FROM auditord.records WHERE records.stop_time = place.stop_time OFFSET %s)
        AND %s <= (
            SELECT count(*)
            FROM (SELECT * FROM auditord.records ORDER BY record_id {direction} LIMIT %s) AS records
            WHERE records.stop_time = place.stop_time AND {where}
        )
)"""


def tied_stop(query: RecordQuery) -> Sql:
    """An expression for the stop time of very many records among which an answer ends; NULL where parts are no use."""
    wanted = query.limit or 0
    if query.order.field is not SortField.STOP or not 0 < wanted <= _MOST:
        return Sql("NULL::timestamptz")
    where = compile_condition(query.where, PostgresDialect(), Columns.EITHER)
    order, direction = ("DESC NULLS FIRST", "DESC") if query.order.descending else ("ASC NULLS LAST", "ASC")
    numbers = (wanted - 1, _MANY * wanted, wanted, _LOOKED_AT * wanted)
    return Sql(_FIND.format(order=order, direction=direction, where=where.sql), (*numbers, *where.parameters))


def in_parts(query: RecordQuery, stop: datetime) -> Sql:
    """The statement of a query in parts: before, at and after a stop time. Right for any, quick for the tied one."""
    times = [TimeCompares(TimeField.STOP, each, stop) for each in (Comparison.LT, Comparison.EQUALS, Comparison.GT)]
    conditions: Sequence[Condition] = (*times, IsOpen())
    parts = [
        compile_query(replace(query, where=AllOf((query.where, condition))), PostgresDialect())
        for condition in (reversed(conditions) if query.order.descending else conditions)
    ]
    # One after the other, and none once there are enough: no plan in parallel is allowed.
    sql: LiteralString = " UNION ALL ".join([f"({part.sql})" for part in parts])
    return Sql(f"{sql} LIMIT %s", (*[each for part in parts for each in part.parameters], query.limit))
