"""Aggregates in PostgreSQL's words.

Sums of whole numbers are exact here; only the product of an amount and a runtime may not fit 64 bits. PostgreSQL then
refuses, and the query is asked again with products of any size (:attr:`Products.LARGE`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, LiteralString

from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.aggregates_sql import Key, Listing, Sql, State, join
from auditord.store.postgres.compiler import as_written, compile_condition
from auditord.store.postgres.dimensions import compile_dimension
from auditord.store.rows import AMOUNT_COLUMNS
from auditord_hookspecs import AggregateQuery, Dimension


class Products(Enum):
    """How amounts are multiplied with runtimes."""

    PLAIN = "plain"
    """In 64 bits: fast, and enough unless amounts are bytes."""
    LARGE = "large"
    """In numbers of any size."""


_MICROSECONDS: Final = "extract(epoch FROM {}) * 1000000"


@dataclass(frozen=True, slots=True)
class PostgresDialect:
    """Implements :class:`auditord.store.aggregates_sql.Dialect`."""

    products: Products
    records: LiteralString = "auditord.records"
    # Otherwise documents, which few groups need, would be carried through the sort of all of them.
    sealed: LiteralString = " OFFSET 0"
    scores_of_set: LiteralString = (
        "(SELECT score_sets.scores::text FROM auditord.score_sets WHERE score_sets.score_set = counted.score_set)"
    )
    no_text: LiteralString = "NULL::text"
    no_number: LiteralString = "NULL::numeric"

    def states(self, query: AggregateQuery) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        compiled = compile_condition(query.where)
        where = Sql(compiled.sql, compiled.parameters)
        finished = _state(query, Sql("stop_time"), Sql("runtime"), [Sql("stop_time >= start_time"), where])
        if query.as_of is None:
            return [finished]
        stop = Sql("%s::timestamptz", (query.as_of,))
        seconds = Sql(f"trunc(extract(epoch FROM {stop.sql} - start_time))::bigint", stop.parameters)
        started = Sql("stop_time IS NULL AND start_time <= %s", stop.parameters)
        return [finished, _state(query, stop, seconds, [started, where])]

    def key(self, dimension: Dimension, stop: Sql) -> Key:
        """What is grouped by."""
        return compile_dimension(dimension, stop)

    def listing(self, component: str) -> Listing:
        """The components of the name in documents."""
        likely = Sql("strpos(document, %s) > 0", (as_written(component),))
        if component in AMOUNT_COLUMNS:
            likely = Sql("more")
        return Listing(
            table="jsonb_array_elements(document::jsonb -> 'components') AS component",
            condition=join(" AND ", [likely, Sql("component ->> 'name' = %s", (component,))]),
            amount="(component ->> 'amount')::bigint",
            scores="(component -> 'scores')::text",
        )

    def looked_up(self, component: str) -> Sql | None:
        """The amounts in the document; whether they fit 64 bits matters as for their products."""
        number = "bigint" if self.products is Products.PLAIN else "numeric"
        return Sql(
            "CASE WHEN strpos(document, %s) > 0 THEN (SELECT sum((each ->> 'amount')::numeric)"  # noqa: S608 literals
            " FROM jsonb_array_elements(document::jsonb -> 'components') AS each WHERE each ->> 'name' = %s)"
            f"::{number} END",
            (as_written(component), component),
        )

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Number of records, first and last stop time, sum of runtimes."""
        first, last = _MICROSECONDS.format("min(stopped)"), _MICROSECONDS.format("max(stopped)")
        return ["count(*)::numeric", first, last, "sum(ran)"], WHOLE

    def usage(self, amount: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Sums of amounts and of products."""
        factor = amount if self.products is Products.PLAIN else f"{amount}::numeric"
        return [f"sum({amount})", f"sum({factor} * ran)"], WHOLE, WHOLE


def _state(query: AggregateQuery, stop: Sql, seconds: Sql, conditions: Sequence[Sql]) -> State:
    if query.window is None:
        return State(stop, seconds, join(" AND ", conditions))
    begin, end = query.window.start, query.window.stop
    overlap = _MICROSECONDS.format(f"least({stop.sql}, %s) - greatest(start_time, %s)")
    overlaps = Sql(
        f"{stop.sql} >= %s AND start_time < %s AND ({stop.sql} > %s OR start_time >= %s)",
        (*stop.parameters, begin, end, *stop.parameters, begin, begin),
    )
    runtime = Sql(f"({overlap})::bigint", (*stop.parameters, end, begin))
    return State(stop, runtime, join(" AND ", [overlaps, *conditions]))
