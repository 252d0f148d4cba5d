"""The SQL that all engines of the lake share, and the fragments of DuckDB.

Columns are named as in a record store, times are microseconds since 1970, meta is a map of lists, and components are a
list of structures. Only the SQL for these differs from a record store's. A sum that overflows raises.
:mod:`auditord.lake.spark_dialect` and :mod:`auditord.lake.trino_dialect` have the fragments of those engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, LiteralString

from typing_extensions import override

from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.conditions import compile_condition
from auditord.store.dialects import OPERATORS, TRUE, Columns, Dialect, Key, Sql, State, all_of, any_of, repeat
from auditord.store.lake import Released
from auditord.store.rollups.scope import Scope
from auditord_hookspecs import AggregateQuery, CalendarUnit, Window
from auditord_hookspecs.query import AnyOf, Comparison, SortField, TimeField

VIEW: Final = """
CREATE TEMP VIEW records AS
SELECT
    daemon, record_id, epoch_us(start_time) AS start_time, epoch_us(stop_time) AS stop_time, runtime, site, user_group,
    user_name, more, cores, memory, gpu, total_cpu, core_seconds, memory_seconds, gpu_seconds, meta, components,
    document, release,
    list_transform(components, lambda each: struct_pack(name := each.name, scores := each.scores)) AS score_set
FROM lake
"""
"""The view that statements read."""

_INSTANTS: Final[dict[TimeField, LiteralString]] = {TimeField.START: "started_at", TimeField.STOP: "stopped_at"}


@dataclass(frozen=True, slots=True)
class LakeDialect(Dialect):
    """SQL that all engines understand, with class variables for the fragments that differ.

    The fields are those of :class:`auditord.lake.engines.Chosen`.
    """

    daemon: str | None = None
    released: Released | None = None
    scope: Scope | None = None

    truncated: ClassVar[LiteralString]
    """First day of a period; the braces are replaced by a day and the unit."""
    day: ClassVar[LiteralString]
    """Day of a number of microseconds since 0001-01-01, which replaces the braces."""
    seconds: ClassVar[LiteralString]
    """Microseconds as whole seconds."""
    meta: ClassVar[LiteralString] = "meta[%s]"
    """List under a meta key, or NULL."""
    overlap: ClassVar[LiteralString]
    """Condition that a list has one of some values; both replace the braces."""
    named: ClassVar[LiteralString]
    """Components of a name. A subquery over each record's components takes ten times as long as list functions."""
    any_component: ClassVar[LiteralString]
    """Condition that a component exists for which the text in place of the braces is true."""
    first: ClassVar[LiteralString]
    """First element of a list, or NULL."""
    as_json: ClassVar[LiteralString]
    """A value as JSON text."""
    amounts: ClassVar[LiteralString]
    """Sum of the amounts of components or, where it could overflow, the amounts separated by commas."""
    sum: ClassVar[LiteralString] = "sum({})"
    """Sum of whole numbers."""
    quotient: ClassVar[LiteralString] = "CAST(({0} - mod({0}, {1})) / {1} AS DECIMAL(38, 0))"
    """The quotient of whole numbers, rounded down."""
    wide: ClassVar[LiteralString]
    """A whole number converted to a type with 38 digits."""
    high: ClassVar[LiteralString]
    """A whole number without its last 31 bits."""
    low: ClassVar[LiteralString] = "{} & 2147483647"
    """The last 31 bits."""

    records = "records"
    joined_sets = ""
    document = "record_id, start_time, stop_time, meta, components, document"
    more = "more"
    no_more = "more IS NULL"
    sealed = ""
    no_text = "CAST(NULL AS STRING)"
    text_of = "CAST({} AS STRING)"
    name = "component.name"
    amount = "component.amount"
    runtime_in_index = None
    has_numbers = False
    meta_is_long = False

    @override
    def mentions(self, text: str) -> Sql:
        del text
        return TRUE

    @override
    def has_key(self, key: str) -> Sql:
        return Sql(f"({self.meta} IS NOT NULL)", (key,))

    @override
    def first_value(self, key: str) -> Sql:
        return Sql(self.first.format(self.meta), (key,))

    @override
    def contains(self, key: str, values: Sequence[str]) -> Sql:
        return Sql(self.overlap.format(self.meta, repeat("%s", ", ", len(values))), (key, *values))

    @override
    def amount_of_one(self, component: str) -> Sql:
        return Sql(f"{self.first.format(self.named)}.amount", (component,))

    @override
    def amounts_of(self, component: str) -> Sql:
        return Sql(self.amounts.format(self.named), (component,))

    @override
    def first_scores(self, component: str) -> Sql:
        return Sql(self.as_json.format(f"{self.first.format(self.named)}.scores"), (component,))

    @override
    def lists(self, component: str, comparison: Comparison, amount: int) -> Sql:
        compares = f"each.name = %s AND each.amount {OPERATORS[comparison]} %s"
        return Sql(self.any_component.format(compares), (component, amount))

    @override
    def one_of(self, column: LiteralString, values: Sequence[str]) -> Sql:
        return Sql(f"{column} IN ({repeat('%s', ', ', len(values))})", tuple(values))

    @override
    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        day = self.day.format(f"({moment.sql} + 62135596800000000)")
        units: dict[CalendarUnit, LiteralString] = {
            CalendarUnit.DAY: day,
            CalendarUnit.WEEK: self.truncated.format(day, "week"),
            CalendarUnit.MONTH: self.truncated.format(day, "month"),
            CalendarUnit.QUARTER: self.truncated.format(day, "quarter"),
            CalendarUnit.YEAR: self.truncated.format(day, "year"),
        }
        return Key(Sql(units[unit], moment.parameters), "CAST(CAST({} AS DATE) AS STRING)")

    @override
    def states(self, query: AggregateQuery, where: Sql) -> Sequence[State]:
        """Return the states to sum: finished records, and open ones if the query has a time for them."""
        where = all_of([self.own(), where])
        finished = [self.in_window(query.window), Sql("stop_time >= start_time"), where]
        states = [self._state(query, "stop_time", finished)]
        if query.as_of is not None:
            as_of = self.literal_moment(query.as_of)
            opened = [Sql(f"stop_time IS NULL AND start_time <= {as_of}"), where]
            states.append(self._state(query, f"CAST({as_of} AS BIGINT)", opened))
        return states

    def own(self) -> Sql:
        """Return the condition that selects the chosen rows."""
        conditions = [] if self.daemon is None else [Sql("daemon = %s", (self.daemon,))]
        if self.released is not None:
            conditions.append(Sql("release <= %s", (self.released.state.release,)))
            if recalled := [f"{row.release}:{row.record_id}" for row in self.released.recalled]:
                key: LiteralString = f"concat({self.text_of.format('release')}, ':', record_id)"
                conditions.append(Sql(f"{key} NOT IN ({repeat('%s', ', ', len(recalled))})", tuple(recalled)))
        if self.scope is not None:
            outside = compile_condition(AnyOf(tuple(self.scope.outside())), self, Columns.EITHER)
            conditions.append(any_of([Sql(self.more), outside]))
        return all_of(conditions)

    def _state(self, query: AggregateQuery, stop: LiteralString, conditions: Sequence[Sql]) -> State:
        """Return finished or open records with the part of their runtime that is in the window."""
        if query.window is None:
            return State(Sql(stop), Sql(self.seconds.format(f"({stop} - start_time)")), conditions, costly=False)
        begin, end = self.literal_moment(query.window.start), self.literal_moment(query.window.stop)
        runtime = Sql(f"least({stop}, {end}) - greatest(start_time, {begin})")
        overlaps = Sql(f"{stop} >= {begin} AND start_time < {end} AND ({stop} > {begin} OR start_time >= {begin})")
        return State(Sql(stop), runtime, [overlaps, *conditions], costly=False)

    def in_window(self, window: Window | None) -> Sql:
        """Return a condition true of all finished records in a window, by which an engine can skip files."""
        del window
        return TRUE

    @override
    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        return ["count(*)", "min(stopped)", "max(stopped)", self.sum.format("ran")], WHOLE

    @override
    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Return sums of amounts and, in two parts, of products. The sum of four billion products fits 38 digits."""
        del component
        high, low = self.wide.format(self.high.format(amount)), self.wide.format(self.low.format(amount))
        return [self.sum.format(amount), f"sum({high} * ran)", f"sum({low} * ran)"], WHOLE, (31, 0)

    @override
    def total(self, total: LiteralString, window: Window | None) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        wide = self.wide.format(total)
        if window is None:
            return [f"sum({wide})"], WHOLE, ()
        first, end = self.literal_moment(window.start), self.literal_moment(window.stop)
        crosses: LiteralString = f"(started < {first} OR stopped > {end})"
        before, until = f"(greatest({first}, started) - started)", f"(least({end}, stopped) - started)"
        until, before = (
            self.quotient.format(f"({wide} * 1000000 * {each})", "(stopped - started)") for each in (until, before)
        )
        inside: LiteralString = f"sum(CASE WHEN NOT {crosses} THEN {wide} END)"
        return [inside, f"sum(CASE WHEN {crosses} THEN {until} - {before} END)"], WHOLE, WHOLE


@dataclass(frozen=True, slots=True)
class ClusterDialect(LakeDialect):
    """SQL of clusters. Their views also have the table's own timestamps, by which the cluster skips files."""

    @override
    def time_column(self, field: TimeField, order: SortField | None) -> LiteralString:
        del order
        return _INSTANTS[field]

    @override
    def moment(self, moment: datetime) -> object:
        return moment.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class DuckDbDialect(LakeDialect):
    """SQL of DuckDB, which is given only the relevant files."""

    truncated = "date_trunc('{1}', {0})"
    day = "DATE '0001-01-01' + CAST({} // 86400000000 AS INTEGER)"
    scores_of_set = (
        "CAST(to_json(list_transform(score_set, lambda each: json_array(each.name, each.scores))) AS STRING)"
    )
    no_number = "CAST(NULL AS HUGEINT)"
    components = "unnest(components) AS listed (component)"
    scores = "CAST(to_json(component.scores) AS STRING)"
    seconds = "{} // 1000000"
    overlap = "list_has_any({}, [{}])"
    named = "list_filter(components, lambda each: each.name = %s)"
    any_component = "(len(list_filter(components, lambda each: {})) > 0)"
    first = "{}[1]"
    as_json = "CAST(to_json({}) AS STRING)"
    amounts = "list_sum(list_transform({}, lambda each: CAST(each.amount AS HUGEINT)))"
    wide = "CAST({} AS HUGEINT)"
    high = "{} >> 31"
    quotient = "({0} // {1})"
