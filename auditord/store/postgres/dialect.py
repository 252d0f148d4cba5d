"""The SQL of PostgreSQL.

Sums of whole numbers are exact here; only the product of an amount and a runtime may not fit 64 bits. PostgreSQL then
raises an error, and the query runs again with ``numeric`` products. Bytes times microseconds would not fit, so such
amounts are multiplied in two parts from the start, which is faster than ``numeric``.

Lists in the order of stop times need care if very many records share one. The index on stop times finds the newest
records at once, but does not order those with the same stop time. All of them would be read to find the few with the
last ids. If these few are likely to be found soon among the last ids of all records, the answer is assembled from parts
(:func:`find_tied_stop`, :func:`in_parts`), each in the order of one index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, LiteralString

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from auditord.database.instants import MICROS_PER_DAY, from_micros
from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.conditions import compile_condition, compile_query
from auditord.store.dialects import (
    CellSum,
    Columns,
    Key,
    Sql,
    State,
    StoreDialect,
    all_of,
    join,
    literal,
    quote_json,
    repeat,
)
from auditord.store.rollups.cells import CORES_KEY
from auditord.store.rows import SMALL_AMOUNTS
from auditord.store.work import as_json
from auditord_hookspecs import AggregateQuery, CalendarUnit, RecordQuery, Window
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
    IdEquals,
    IsOpen,
    Leaf,
    MetaContains,
    MetaContainsAny,
    PlaceCompares,
    SortField,
    TimeCompares,
    TimeField,
    fold,
)

_TIME_ORDERS: Final = {TimeField.START: SortField.START, TimeField.STOP: SortField.STOP}

_FOUND_BY_INDEX: Final = 10
"""Up to this number of values, an index finds the records faster than a scan of the same days."""

_SECOND: Final = timedelta(seconds=1)
_MICROSECONDS: Final = "extract(epoch FROM {}) * 1000000"

# The runtime is in whole seconds, truncated toward zero. The planner has statistics on it, whereas it assumes that a
# comparison of two time columns is true for a third of the rows.
_NOT_BACKWARDS: Final = Sql("(runtime > 0 OR stop_time >= start_time)")

# Up to this span, the number of microseconds has 50 bits, so that rounding to the nearest whole number is exact.
_EXACT_IN_FLOATS: Final = timedelta(days=13_000)
_MICROSECONDS_IN_FLOATS: Final = "date_part('epoch', {}) * 1000000"


def _sums(column: LiteralString, total: LiteralString = "NULL::bigint") -> Sequence[CellSum]:
    """Return the sums of an amount and of amount times runtime, or of the total that other records have instead."""
    product: LiteralString = f"{column}_runtime"
    return (
        CellSum(column, f"counted * coalesce({column}, {total} * 0)", f"{{0}}.{column} + excluded.{column}"),
        CellSum(
            product,
            f"coalesce((counted * {column})::numeric * runtime, counted * {total})",
            f"{{0}}.{product} + excluded.{product}",
        ),
    )


@dataclass(frozen=True, slots=True)
class PostgresDialect(StoreDialect):
    """The SQL of PostgreSQL.

    By default, products have 64 bits, or are in two parts of 64 bits: fast, and enough for ordinary amounts. Exact
    products are ``numeric``.
    """

    has_one_writer = False
    upserts_repeat = False
    schema = "auditord."
    records = "auditord.records"
    feed = "auditord.records"
    removals = "auditord.removals"
    labels = "meta"
    text_parameter = "%s::text"
    empty_text = "''::text"
    joined_sets = " LEFT JOIN auditord.score_sets ON score_sets.score_set = counted.score_set"
    scores_of_set = "score_sets.scores::text"
    document = "document"
    more = "more"
    no_more = "more IS NOT TRUE"
    # Without it, documents would be part of the sort of all records. It prevents parallel plans, so expressions as
    # cheap as an overlap are not sealed, but computed twice.
    sealed = " OFFSET 0"
    no_text = "NULL::text"
    no_number = "NULL::numeric"
    text_of = "{}::text"
    components = "jsonb_array_elements(document::jsonb -> 'components') AS component"
    name = "component ->> 'name'"
    amount = "(component ->> 'amount')::bigint"
    scores = "(component -> 'scores')::text"
    cell_sums = (
        CellSum("records", "counted", "{0}.records + excluded.records"),
        CellSum("runtime", "counted * runtime", "{0}.runtime + excluded.runtime"),
        *_sums("cores", "core_seconds"),
        *_sums("memory", "memory_seconds"),
        *_sums("gpu", "gpu_seconds"),
        *_sums("total_cpu"),
    )
    component_sums = (CellSum("records", "counted", "{0}.records + excluded.records"), *_sums("amount"))
    counted = "sign"
    present = "({})::smallint"
    digest = "md5(ROW({})::text)::uuid"
    each_value = 'LATERAL (SELECT key, value COLLATE "C" FROM jsonb_each_text(label_values)) AS label'
    day = "(({} AT TIME ZONE 'UTC')::date - '1970-01-01'::date)"
    first_of_month = "(date_trunc('month', ('1970-01-01'::date + ({}))::timestamp)::date - '1970-01-01'::date)"
    earlier = "least({0}, {1})"
    later = "greatest({0}, {1})"
    name_or_none = "{0}"
    no_name = "NULL::text"
    by_no_position = "{}"
    rolled_cells = (
        "SELECT to_timestamp((period + %s)::double precision * 86400) AS stop_time, site, user_group, user_name,"
        " labels AS meta, nullif(score_set, 0) AS score_set, present, {0}"
        " FROM auditord.{1} WHERE level = %s AND {2}"
    )
    rolled_periods_of_users = (
        "period = ANY (ARRAY(SELECT day::integer FROM jsonb_array_elements_text(%s::jsonb) AS day))"
        ' AND user_name = ANY (ARRAY(SELECT name COLLATE "C" FROM jsonb_array_elements_text(%s::jsonb) AS name))'
    )
    rolled_day = "(stop_time + coalesce(({})::integer, 0) * interval '24 hours')"
    runtime_in_index = None
    has_numbers = False
    meta_is_long = False

    @override
    def entries(self, key: str) -> tuple[Sql, Sql]:
        values: LiteralString = (
            "SELECT DISTINCT value FROM jsonb_array_elements_text(version.meta -> %s::text) AS value"
        )
        return Sql(f"LATERAL ({values}) AS entry", (key,)), Sql("TRUE")

    @override
    def label_values(self, keys: Mapping[str, str]) -> Sql:
        cores: LiteralString = "%s::text, CASE WHEN cores IS NOT NULL THEN jsonb_build_array(cores::text) END"
        values = join(
            ", ",
            [
                Sql(cores, (number,)) if key == CORES_KEY else Sql("%s::text, meta -> %s::text", (number, key))
                for number, key in keys.items()
            ],
        )
        return Sql(f"jsonb_build_object({values.sql})", values.parameters)

    @override
    def cell_labels(self, keys: Mapping[str, str], zone_part: str | None) -> Sql:
        members = Sql("%s::jsonb ->> number, value::jsonb", (as_json(keys),))
        if zone_part is not None:
            ahead = Sql("%s::text, CASE WHEN ahead <> 0 THEN jsonb_build_array(ahead::text) END", (zone_part,))
            members = join(", ", [ahead, members])
        return Sql(f"jsonb_strip_nulls(jsonb_build_object({members.sql}))", members.parameters)

    @override
    def cell_counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        stops: Sequence[LiteralString] = ["min(first_stop)", "max(last_stop)", "min(first_gone)", "max(last_gone)"]
        return ["sum(records)::numeric", *[_MICROSECONDS.format(each) for each in stops], "0", "sum(runtime)"], WHOLE

    @override
    def cell_usage(self, column: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        return [f"sum({column})", f"sum({column}_runtime)"], WHOLE, WHOLE

    @override
    def mentions(self, text: str) -> Sql:
        return Sql("strpos(document, %s) > 0", (quote_json(text),))

    @override
    def amounts_of(self, component: str) -> Sql:
        return Sql(
            f"(SELECT sum((component ->> 'amount')::numeric) FROM {self.components} WHERE {self.name} = %s)",  # noqa: S608 literals
            (component,),
        )

    @override
    def first_scores(self, component: str) -> Sql:
        placed = "jsonb_array_elements(document::jsonb -> 'components') WITH ORDINALITY AS placed (component, place)"
        named: LiteralString = f"SELECT {self.scores} FROM {placed} WHERE {self.name} = %s"  # noqa: S608 literals
        return Sql(f"({named} ORDER BY place LIMIT 1)", (component,))

    @override
    def moment(self, moment: datetime) -> object:
        return moment

    @override
    def literal_moment(self, moment: datetime) -> LiteralString:
        return f"'{literal(moment.isoformat())}'::timestamptz"

    @override
    def literal_day(self, day: int) -> LiteralString:
        return self.literal_moment(from_micros(day * MICROS_PER_DAY))

    @override
    def literal_span(self, span: timedelta) -> LiteralString:
        return f"interval '1 second' * {literal(str(span // _SECOND))}"

    @override
    def has_key(self, key: str) -> Sql:
        return Sql("coalesce(meta ? %s, FALSE)", (key,))

    @override
    def first_value(self, key: str) -> Sql:
        return Sql("meta -> %s::text ->> 0", (key,))

    @override
    def contains(self, key: str, values: Sequence[str]) -> Sql:
        """Return the condition that the list under a meta key has one of the values. The index on meta serves it."""
        each = repeat("meta @> %s::jsonb", " OR ", len(values))
        return Sql(f"({each})", tuple([msgspec.json.encode({key: [value]}).decode() for value in values]))

    @override
    def one_of(self, column: LiteralString, values: Sequence[str]) -> Sql:
        return Sql(f"{column} = ANY (%s::text[])", (list(values),))

    @override
    def dimension_contains(self, column: Sql, document: Sql, columns: Columns, *, has_few_values: bool) -> Sql:
        """Return the column alone if it has few values (sites), many values are wanted, or cells are read.

        For a few groups or users, add the condition on meta: its index finds their records, and the column is checked.
        """
        if columns is not Columns.COMPLETE:
            return document
        is_column = self.of_cells or has_few_values or len(document.parameters) > _FOUND_BY_INDEX
        return column if is_column else all_of([column, document])

    @override
    def dimension_lacks(self, column: Sql, document: Sql, columns: Columns) -> Sql:
        """Return the column's condition only if it is complete for all records."""
        return column if columns is Columns.COMPLETE else document

    @override
    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        local = f"{moment.sql} AT TIME ZONE 'UTC'"
        texts: dict[CalendarUnit, LiteralString] = {
            CalendarUnit.DAY: f"({local})::date",
            CalendarUnit.WEEK: f"date_trunc('week', {local})",
            CalendarUnit.MONTH: f"date_trunc('month', {local})",
            CalendarUnit.QUARTER: f"date_trunc('quarter', {local})",
            CalendarUnit.YEAR: f"date_trunc('year', {local})",
        }
        return Key(Sql(texts[unit], moment.parameters), "to_char({}, 'YYYY-MM-DD')")

    @override
    def states(self, query: AggregateQuery, where: Sql) -> Sequence[State]:
        finished = _state(query, Sql("stop_time"), Sql("runtime"), [_NOT_BACKWARDS, where])
        if query.as_of is None:
            return [finished]
        stop = self.literal_moment(query.as_of)
        seconds = Sql(f"trunc(extract(epoch FROM {stop} - start_time))::bigint")
        started = Sql(f"stop_time IS NULL AND start_time <= {stop}")
        return [finished, _state(query, Sql(stop), seconds, [started, where])]

    @override
    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        first, last = _MICROSECONDS.format("min(stopped)"), _MICROSECONDS.format("max(stopped)")
        return ["count(*)::numeric", first, last, "sum(ran)"], WHOLE

    @override
    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        if self.is_exact:
            return [f"sum({amount})", f"sum({amount}::numeric * ran)"], WHOLE, WHOLE
        if self.windowed and component not in SMALL_AMOUNTS:
            pieces: list[LiteralString] = [f"sum(({amount} >> 20) * ran)", f"sum(({amount} & 1048575) * ran)"]
            return [f"sum({amount})", *pieces], WHOLE, (20, 0)
        return [f"sum({amount})", f"sum({amount} * ran)"], WHOLE, WHOLE

    @override
    def total(self, total: LiteralString, window: Window | None) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        if window is None:
            return [f"sum({total})"], WHOLE, ()
        first, end = self.literal_moment(window.start), self.literal_moment(window.stop)
        crosses: LiteralString = f"(started < {first} OR stopped > {end})"
        whole: LiteralString = _MICROSECONDS.format("(stopped - started)")
        until: LiteralString = _MICROSECONDS.format(f"(least({end}, stopped) - started)")
        before: LiteralString = _MICROSECONDS.format(f"(greatest({first}, started) - started)")
        ticks: LiteralString = f"{total}::numeric * 1000000"
        share: LiteralString = f"div({ticks} * {until}, {whole}) - div({ticks} * {before}, {whole})"
        inside: LiteralString = f"sum(CASE WHEN NOT {crosses} THEN {total} END)"
        return [inside, f"sum(CASE WHEN {crosses} THEN {share} END)"], WHOLE, WHOLE


def follows_an_index(query: RecordQuery) -> bool:
    """Return whether the answer should be read from the index of its order, against the planner's estimate.

    The planner counts the cost of all rows, and prefers sorting a large answer to looking up rows in order. A stream
    should start soon, without a sort. If another index serves a condition, few rows may be left, which sort quickly.
    """
    order = query.order.field
    return order is not SortField.RUNTIME and not fold(query.where, partial(_is_selective, order), any, all)


def _is_selective(order: SortField, condition: Leaf) -> bool:
    match condition:
        case TimeCompares(field):
            return _TIME_ORDERS[field] is not order
        case PlaceCompares():
            return order is not SortField.START
        case IsOpen():
            return order is not SortField.STOP
        case _:
            return isinstance(condition, IdEquals | MetaContains | MetaContainsAny)


def _state(query: AggregateQuery, stop: Sql, seconds: Sql, conditions: Sequence[Sql]) -> State:
    if query.window is None:
        return State(stop, seconds, conditions, costly=False)
    begin, end = query.window.start, query.window.stop
    exact = _MICROSECONDS if end - begin > _EXACT_IN_FLOATS else _MICROSECONDS_IN_FLOATS
    overlap = exact.format(f"least({stop.sql}, %s) - greatest(start_time, %s)")
    # With `stop > begin OR start >= begin`, the planner would expect too few rows.
    overlaps = Sql(
        f"{stop.sql} >= %s AND start_time < %s AND NOT ({stop.sql} = %s AND start_time < %s)",
        (*stop.parameters, begin, end, *stop.parameters, begin, begin),
    )
    runtime = Sql(f"({overlap})::bigint", (*stop.parameters, end, begin))
    return State(stop, runtime, [overlaps, *conditions], costly=False)


_MANY: Final = 50
"""The number of records with the same stop time, for each wanted record, from which on parts are considered."""

_LOOKED_AT: Final = 10
"""The number of records at one end of the order of ids, for each wanted record, that must include the wanted ones."""

_MOST: Final = 10_000
"""The maximum limit of a query for which parts are considered."""

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


def find_tied_stop(query: RecordQuery) -> Sql:
    """Return SQL for the stop time of very many records at which the answer ends; NULL if parts are of no use."""
    wanted = query.limit or 0
    if query.order.field is not SortField.STOP or not 0 < wanted <= _MOST:
        return Sql("NULL::timestamptz")
    where = compile_condition(query.where, PostgresDialect(), Columns.EITHER)
    order, direction = ("DESC NULLS FIRST", "DESC") if query.order.descending else ("ASC NULLS LAST", "ASC")
    numbers = (wanted - 1, _MANY * wanted, wanted, _LOOKED_AT * wanted)
    return Sql(_FIND.format(order=order, direction=direction, where=where.sql), (*numbers, *where.parameters))


def in_parts(query: RecordQuery, stop: datetime) -> Sql:
    """Return the statement of a query in parts: before, at and after the stop time of :func:`find_tied_stop`."""
    times = [TimeCompares(TimeField.STOP, each, stop) for each in (Comparison.LT, Comparison.EQUALS, Comparison.GT)]
    conditions: Sequence[Condition] = (*times, IsOpen())
    parts = [
        compile_query(replace(query, where=AllOf((query.where, condition))), PostgresDialect())
        for condition in (reversed(conditions) if query.order.descending else conditions)
    ]
    # Parallel plans are disabled, so parts run one after the other, and none after the limit has been reached.
    sql: LiteralString = " UNION ALL ".join([f"({part.sql})" for part in parts])
    return Sql(f"{sql} LIMIT %s", (*[each for part in parts for each in part.parameters], query.limit))
