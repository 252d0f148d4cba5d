"""Aggregates in PostgreSQL's words.

Sums of whole numbers are exact here; only the product of an amount and a runtime may not fit 64 bits. PostgreSQL then
refuses, and the query is asked again with products of any size (:attr:`Products.LARGE`). Bytes times microseconds would
not fit: such amounts are multiplied in two pieces from the beginning, which takes less time than numbers of any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final, LiteralString

from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.dialects import Key, Listing, State
from auditord.store.postgres.compiler import as_written, compile_condition
from auditord.store.postgres.dimensions import amount_of_one, compile_dimension, key_of_amount
from auditord.store.rows import SMALL_AMOUNTS
from auditord.store.sql import Columns, Sql, join
from auditord_hookspecs import AggregateQuery, ComponentAmount, ComponentPresent, Dimension


class Products(Enum):
    """How amounts are multiplied with runtimes."""

    LIKELY = "likely"
    """In 64 bits, or in two pieces of as much: fast, and enough unless amounts are out of the ordinary."""
    LARGE = "large"
    """In numbers of any size."""


_MICROSECONDS: Final = "extract(epoch FROM {}) * 1000000"

# The runtime is in whole seconds, toward zero. The planner knows how these are spread; of the two times it would expect
# that a third is in order, and choose a plan for so many.
_NOT_BACKWARDS: Final = Sql("(runtime > 0 OR stop_time >= start_time)")

# Of spans up to this one, the number of microseconds has 50 bits, so that the nearest whole number is the right one.
_EXACT_IN_FLOATS: Final = timedelta(days=13_000)
_MICROSECONDS_IN_FLOATS: Final = "date_part('epoch', {}) * 1000000"


@dataclass(frozen=True, slots=True)
class PostgresDialect:
    """Implements :class:`auditord.store.aggregates_sql.Dialect`."""

    products: Products
    windowed: bool
    records: LiteralString = "auditord.records"
    score_sets: LiteralString = "auditord.score_sets"
    scores_of_set: LiteralString = "score_sets.scores::text"
    more: LiteralString = "more"
    no_more: LiteralString = "more IS NOT TRUE"
    # Otherwise documents, which few groups need, would go through the sort of all of them. It costs the plan in
    # parallel, so what takes as little time as an overlap is rather computed twice.
    sealed: LiteralString = " OFFSET 0"
    no_text: LiteralString = "NULL::text"
    no_number: LiteralString = "NULL::numeric"

    def states(self, query: AggregateQuery, columns: Columns) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        where = compile_condition(query.where, columns)
        finished = _state(query, Sql("stop_time"), Sql("runtime"), [_NOT_BACKWARDS, where])
        if query.as_of is None:
            return [finished]
        stop = Sql("%s::timestamptz", (query.as_of,))
        seconds = Sql(f"trunc(extract(epoch FROM {stop.sql} - start_time))::bigint", stop.parameters)
        started = Sql("stop_time IS NULL AND start_time <= %s", stop.parameters)
        return [finished, _state(query, stop, seconds, [started, where])]

    def key(self, dimension: Dimension, stop: Sql, columns: Columns) -> Key:
        """What is grouped by."""
        return compile_dimension(dimension, stop, columns)

    def key_of_amount(self, dimension: ComponentAmount | ComponentPresent, amount: LiteralString) -> Key:
        """The same from the name of an amount."""
        return key_of_amount(dimension, amount)

    def amount(self, component: str) -> Sql:
        """The amount of a component, from the document."""
        return amount_of_one(component)

    def listing(self, component: str) -> Listing:
        """The components of the name in documents."""
        likely = Sql("strpos(document, %s) > 0", (as_written(component),))
        return Listing(
            table="jsonb_array_elements(document::jsonb -> 'components') AS component",
            condition=join(" AND ", [likely, Sql("component ->> 'name' = %s", (component,))]),
            amount="(component ->> 'amount')::bigint",
            scores="(component -> 'scores')::text",
        )

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Number of records, first and last stop time, sum of runtimes."""
        first, last = _MICROSECONDS.format("min(stopped)"), _MICROSECONDS.format("max(stopped)")
        return ["count(*)::numeric", first, last, "sum(ran)"], WHOLE

    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Sums of amounts and of products."""
        if self.products is Products.LARGE:
            return [f"sum({amount})", f"sum({amount}::numeric * ran)"], WHOLE, WHOLE
        if self.windowed and component not in SMALL_AMOUNTS:
            pieces: list[LiteralString] = [f"sum(({amount} >> 20) * ran)", f"sum(({amount} & 1048575) * ran)"]
            return [f"sum({amount})", *pieces], WHOLE, (20, 0)
        return [f"sum({amount})", f"sum({amount} * ran)"], WHOLE, WHOLE


def _state(query: AggregateQuery, stop: Sql, seconds: Sql, conditions: Sequence[Sql]) -> State:
    if query.window is None:
        return State(stop, seconds, join(" AND ", conditions), costly=False)
    begin, end = query.window.start, query.window.stop
    exact = _MICROSECONDS if end - begin > _EXACT_IN_FLOATS else _MICROSECONDS_IN_FLOATS
    overlap = exact.format(f"least({stop.sql}, %s) - greatest(start_time, %s)")
    # The planner would take `>` or else `>=` for a rarer thing than it is.
    overlaps = Sql(
        f"{stop.sql} >= %s AND start_time < %s AND NOT ({stop.sql} = %s AND start_time < %s)",
        (*stop.parameters, begin, end, *stop.parameters, begin, begin),
    )
    runtime = Sql(f"({overlap})::bigint", (*stop.parameters, end, begin))
    return State(stop, runtime, join(" AND ", [overlaps, *conditions]), costly=False)
