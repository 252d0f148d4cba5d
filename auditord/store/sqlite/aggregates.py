"""Aggregates in SQLite's words: sums of 64-bit integers over the index on stop times, as far as it tells.

No sum is ever wrong by overflow. A query is asked with plain sums first. If one does not fit 64 bits, SQLite raises, or
gives a floating point number, which :func:`take_rows` notices; the query is asked again with every number split
(:mod:`auditord.store.sqlite.sums`).
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from auditord.store.aggregates import Limbs, Row
from auditord.store.aggregates_sql import Key, Listing, Sql, State, join
from auditord.store.rows import AMOUNT_COLUMNS, to_micros
from auditord.store.sqlite.compiler import compile_condition, encoded
from auditord.store.sqlite.dimensions import compile_dimension
from auditord.store.sqlite.sums import Arithmetic, Overflow, product_sum, sum_of
from auditord_hookspecs import AggregateQuery, Dimension

_ROWS_AT_ONCE: Final = 1_000


def take_rows(cursor: sqlite3.Cursor) -> list[Row]:
    """The next rows of a statement.

    Raises:
        Overflow: a sum did not fit.
    """
    rows: list[Row] = cursor.fetchmany(_ROWS_AT_ONCE)
    if any(isinstance(value, float) for row in rows for value in row):
        raise Overflow
    return rows


@dataclass(frozen=True, slots=True)
class SqliteDialect:
    """Implements :class:`auditord.store.aggregates_sql.Dialect`."""

    arithmetic: Arithmetic
    records: LiteralString = "records"
    # Without a limit the subquery's expressions would move outside, where each is computed as often as it is used.
    sealed: LiteralString = " LIMIT -1"
    scores_of_set: LiteralString = (
        "(SELECT score_sets.scores FROM score_sets WHERE score_sets.score_set = counted.score_set)"
    )
    no_text: LiteralString = "NULL"
    no_number: LiteralString = "NULL"

    def states(self, query: AggregateQuery) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        compiled = compile_condition(query.where)
        where = Sql(compiled.sql, compiled.parameters)
        finished = _state(query, Sql("stop_time"), [Sql("stop_time >= start_time"), where])
        if query.as_of is None:
            return [finished]
        as_of = to_micros(query.as_of)
        return [
            finished,
            _state(query, Sql("?", (as_of,)), [Sql("stop_time IS NULL AND start_time <= ?", (as_of,)), where]),
        ]

    def key(self, dimension: Dimension, stop: Sql) -> Key:
        """What is grouped by."""
        return Key(compile_dimension(dimension, stop))

    def listing(self, component: str) -> Listing:
        """The components of the name in documents."""
        likely = Sql("instr(document, ?) > 0", (encoded(component),))
        if component in AMOUNT_COLUMNS:
            likely = Sql("more IS NOT NULL")
        return Listing(
            table="json_each(document, '$.components') AS component",
            condition=join(" AND ", [likely, Sql("json_extract(component.value, '$.name') = ?", (component,))]),
            amount="json_extract(component.value, '$.amount')",
            scores="json_extract(component.value, '$.scores')",
        )

    def looked_up(self, component: str) -> Sql | None:
        """The amounts in the document; an amount of several components may not fit if numbers are split."""
        if self.arithmetic is Arithmetic.SPLIT:
            return None
        return Sql(
            "CASE WHEN instr(document, ?) > 0 THEN (SELECT sum(json_extract(each.value, '$.amount'))"
            " FROM json_each(document, '$.components') AS each WHERE json_extract(each.value, '$.name') = ?) END",
            (encoded(component), component),
        )

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Number of records, first and last stop time, sum of runtimes."""
        columns, limbs = sum_of("ran", self.arithmetic)
        return ["count(*)", "min(stopped)", "max(stopped)", *columns], limbs

    def usage(self, amount: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Sums of amounts and of products."""
        amounts, amount_limbs = sum_of(amount, self.arithmetic)
        products, product_limbs = product_sum(amount, "ran", self.arithmetic)
        return [*amounts, *products], amount_limbs, product_limbs


def _state(query: AggregateQuery, stop: Sql, conditions: Sequence[Sql]) -> State:
    if query.window is None:
        runtime = Sql(f"({stop.sql} - start_time) / 1000000", stop.parameters)
        return State(stop, runtime, join(" AND ", conditions))
    begin, end = to_micros(query.window.start), to_micros(query.window.stop)
    runtime = Sql(f"min({stop.sql}, ?) - max(start_time, ?)", (*stop.parameters, end, begin))
    # The plus sign keeps this away from the index on start times: few jobs are long, so what stopped after the window's
    # begin is nearer to what is asked for than all that started before its end.
    overlaps = Sql(
        f"{stop.sql} >= ? AND +start_time < ? AND ({stop.sql} > ? OR +start_time >= ?)",
        (*stop.parameters, begin, end, *stop.parameters, begin, begin),
    )
    return State(stop, runtime, join(" AND ", [overlaps, *conditions]))
