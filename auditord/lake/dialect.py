"""The SQL of DuckDB over rows of the lake: the only place that knows a word of it.

Columns are named as in a record store, times are microseconds since 1970, meta is a map of lists and components are a
list of structures; so only words for these differ from what a store is asked. Whole numbers have 128 bits, and a sum
that does not fit raises. What is here exists in Spark and Trino as well, under names that sqlglot knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from auditord.database.instants import MICROSECOND, to_micros
from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.dialects import Dialect, Key, State
from auditord.store.sql import OPERATORS, TRUE, Columns, Sql, all_of, column_or_document, join, literal, repeated
from auditord_hookspecs import AggregateQuery, CalendarUnit
from auditord_hookspecs.query import Comparison, SortField, TimeField

VIEW: Final = """
CREATE TEMP VIEW records AS
SELECT
    daemon, record_id, epoch_us(start_time) AS start_time, epoch_us(stop_time) AS stop_time, runtime, site, user_group,
    user_name, more, cores, memory, gpu, total_cpu, meta, components,
    list_transform(components, lambda each: struct_pack(name := each.name, scores := each.scores)) AS score_set
FROM lake
"""
"""The rows as the statements name them."""

_TIMES: Final[dict[TimeField, LiteralString]] = {TimeField.START: "start_time", TimeField.STOP: "stop_time"}
_NAMED: Final = "list_filter(components, lambda each: each.name = %s)"
_DAY: Final = "DATE '0001-01-01' + CAST(({0} + 62135596800000000) // 86400000000 AS INTEGER)"


@dataclass(frozen=True, slots=True)
class DuckDbDialect(Dialect):
    """The words of DuckDB.

    Args:
        daemon: whose records count; None: those of all.
    """

    daemon: str | None = None

    records = "records"
    joined_sets = ""
    scores_of_set = (
        "CAST(to_json(list_transform(score_set, lambda each: json_array(each.name, each.scores))) AS VARCHAR)"
    )
    document = "document"
    more = "more"
    no_more = "more IS NULL"
    sealed = ""
    no_text = "CAST(NULL AS VARCHAR)"
    no_number = "CAST(NULL AS HUGEINT)"
    text_of = "CAST({} AS VARCHAR)"
    components = "unnest(components) AS listed (component)"
    name = "component.name"
    amount = "component.amount"
    scores = "CAST(to_json(component.scores) AS VARCHAR)"
    rolled_cells = rolled_changes = ""  # the lake has no roll-ups
    sorts_numbers = False
    meta_is_long = False

    def mentions(self, text: str) -> Sql:
        """Always true."""
        del text
        return TRUE

    # A subquery over the components of each record takes ten times as long as a function of lists.

    def amount_of_one(self, component: str) -> Sql:
        """The amount of a component."""
        return Sql(f"{_NAMED}[1].amount", (component,))

    def amounts_of(self, component: str) -> Sql:
        """The sum of all amounts."""
        return Sql(f"list_sum(list_transform({_NAMED}, lambda each: CAST(each.amount AS HUGEINT)))", (component,))

    def first_scores(self, component: str) -> Sql:
        """The scores of the first component of a name."""
        return Sql(f"CAST(to_json({_NAMED}[1].scores) AS VARCHAR)", (component,))

    def lists(self, component: str, comparison: Comparison, amount: int) -> Sql:
        """That one of the name compares so."""
        compares = f"each.name = %s AND each.amount {OPERATORS[comparison]} %s"
        return Sql(f"(len(list_filter(components, lambda each: {compares})) > 0)", (component, amount))

    def time_column(self, field: TimeField, order: SortField | None) -> LiteralString:
        """A time to be compared."""
        del order
        return _TIMES[field]

    def moment(self, moment: datetime) -> object:
        """Microseconds since 1970."""
        return to_micros(moment)

    def literal_moment(self, moment: datetime) -> LiteralString:
        """Microseconds since 1970."""
        return literal(str(to_micros(moment)))

    def literal_span(self, span: timedelta) -> LiteralString:
        """Microseconds."""
        return literal(str(span // MICROSECOND))

    def has_key(self, key: str) -> Sql:
        """That a record has a meta key."""
        return Sql("(meta[%s] IS NOT NULL)", (key,))

    def first_value(self, key: str) -> Sql:
        """The first value under a meta key."""
        return Sql("meta[%s][1]", (key,))

    def contains(self, key: str, values: Sequence[str]) -> Sql:
        """That the list under a meta key has one of the values."""
        return Sql(f"list_has_any(meta[%s], [{repeated('%s', ', ', len(values))}])", (key, *values))

    def one_of(self, column: LiteralString, values: Sequence[str]) -> Sql:
        """That a column has one of the values."""
        return Sql(f"{column} IN ({repeated('%s', ', ', len(values))})", tuple(values))

    def dimension_contains(self, column: Sql, document: Sql, columns: Columns) -> Sql:
        """The column where it is complete."""
        return column_or_document(columns, column, document)

    def dimension_lacks(self, column: Sql, document: Sql, columns: Columns) -> Sql:
        """The column where it is complete."""
        return column_or_document(columns, column, document)

    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        """The first day of a calendar period."""
        day = Sql(_DAY.format(moment.sql), moment.parameters)
        units: dict[CalendarUnit, LiteralString] = {
            CalendarUnit.DAY: day.sql,
            CalendarUnit.WEEK: f"date_trunc('week', {day.sql})",
            CalendarUnit.MONTH: f"date_trunc('month', {day.sql})",
            CalendarUnit.QUARTER: f"date_trunc('quarter', {day.sql})",
            CalendarUnit.YEAR: f"date_trunc('year', {day.sql})",
        }
        return Key(Sql(units[unit], day.parameters), "CAST(CAST({} AS DATE) AS VARCHAR)")

    def states(self, query: AggregateQuery, where: Sql) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        if self.daemon is not None:
            where = all_of([Sql("daemon = %s", (self.daemon,)), where])
        finished = self._state(query, "stop_time", Sql("stop_time >= start_time"), where)
        if query.as_of is None:
            return [finished]
        as_of = self.literal_moment(query.as_of)
        opened = Sql(f"stop_time IS NULL AND start_time <= {as_of}")
        return [finished, self._state(query, f"CAST({as_of} AS BIGINT)", opened, where)]

    def _state(self, query: AggregateQuery, stop: LiteralString, of: Sql, where: Sql) -> State:
        if query.window is None:
            runtime = Sql(f"({stop} - start_time) // 1000000")
            return State(Sql(stop), runtime, join(" AND ", [of, where]), costly=False)
        begin, end = self.literal_moment(query.window.start), self.literal_moment(query.window.stop)
        runtime = Sql(f"least({stop}, {end}) - greatest(start_time, {begin})")
        overlaps = Sql(
            f"{stop} >= {begin} AND start_time < {end} AND ({stop} > {begin} OR start_time >= {begin})",
        )
        return State(Sql(stop), runtime, join(" AND ", [overlaps, of, where]), costly=False)

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Number of records, first and last stop time, sum of runtimes."""
        return ["count(*)", "min(stopped)", "max(stopped)", "sum(ran)"], WHOLE

    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Sums of amounts and of products: in two pieces, of which four billion fit 128 bits in any case."""
        del component
        pieces: list[LiteralString] = [
            f"sum(CAST({amount} >> 31 AS HUGEINT) * ran)",
            f"sum(CAST({amount} & 2147483647 AS HUGEINT) * ran)",
        ]
        return [f"sum({amount})", *pieces], WHOLE, (31, 0)

    def rolled_sum(self, number: LiteralString) -> tuple[Sequence[LiteralString], Limbs]:
        """Columns for the sum of a number of the cells."""
        return [f"sum({number})"], WHOLE
