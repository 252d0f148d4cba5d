"""Aggregates in SQLite's words: sums of 64-bit integers over the index on stop times, as far as it tells.

No sum is ever wrong by overflow. A query is asked first with sums that are likely to fit 64 bits. If one does not,
SQLite raises, or gives a floating point number, which :func:`take_rows` notices; the query is asked again with every
number split (:mod:`auditord.store.sqlite.sums`).
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from auditord.store.aggregates import Limbs, Row
from auditord.store.dialects import Key, Listing, State
from auditord.store.rows import SMALL_AMOUNTS, to_micros
from auditord.store.sql import Columns, Sql, join
from auditord.store.sqlite.compiler import compile_condition, encoded
from auditord.store.sqlite.dimensions import amount_of_one, compile_dimension, key_of_amount
from auditord.store.sqlite.sums import Arithmetic, Overflow, pieces, product_sum, split_product_sum, sum_of, whole
from auditord_hookspecs import AggregateQuery, ComponentAmount, ComponentPresent, Dimension

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
    windowed: bool
    records: LiteralString = "records"
    score_sets: LiteralString = "score_sets"
    scores_of_set: LiteralString = "score_sets.scores"
    more: LiteralString = "more IS NOT NULL"
    no_more: LiteralString = "more IS NULL"
    # Without a limit the subquery's expressions would move outside, where each is computed as often as it is used.
    sealed: LiteralString = " LIMIT -1"
    no_text: LiteralString = "NULL"
    no_number: LiteralString = "NULL"

    def states(self, query: AggregateQuery, columns: Columns) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        where = compile_condition(query.where, columns)
        finished = _state(query, Sql("stop_time"), [Sql("stop_time >= start_time"), where])
        if query.as_of is None:
            return [finished]
        as_of = to_micros(query.as_of)
        return [
            finished,
            _state(query, Sql("?", (as_of,)), [Sql("stop_time IS NULL AND start_time <= ?", (as_of,)), where]),
        ]

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
        likely = Sql("instr(document, ?) > 0", (encoded(component),))
        return Listing(
            table="json_each(document, '$.components') AS component",
            condition=join(" AND ", [likely, Sql("json_extract(component.value, '$.name') = ?", (component,))]),
            amount="json_extract(component.value, '$.amount')",
            scores="json_extract(component.value, '$.scores')",
        )

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Number of records, first and last stop time, sum of runtimes."""
        columns, limbs = sum_of("ran", self.arithmetic)
        return ["count(*)", "min(stopped)", "max(stopped)", *columns], limbs

    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Sums of amounts and of products."""
        amounts, amount_limbs = sum_of(amount, self.arithmetic)
        products, product_limbs = self._products(amount, component)
        return [*amounts, *products], amount_limbs, product_limbs

    def _products(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs]:
        if self.arithmetic is Arithmetic.SPLIT:
            return split_product_sum(amount, "ran")
        runtime = pieces("ran") if self.windowed else whole("ran")  # seconds, or microseconds of a window
        return product_sum(whole(amount) if component in SMALL_AMOUNTS else pieces(amount), runtime)


def _state(query: AggregateQuery, stop: Sql, conditions: Sequence[Sql]) -> State:
    if query.window is None:
        runtime = Sql(f"({stop.sql} - start_time) / 1000000", stop.parameters)
        return State(stop, runtime, join(" AND ", conditions), costly=False)
    begin, end = to_micros(query.window.start), to_micros(query.window.stop)
    runtime = Sql(f"min({stop.sql}, ?) - max(start_time, ?)", (*stop.parameters, end, begin))
    # The plus sign keeps this away from the index on start times: few jobs are long, so what stopped after the window's
    # begin is nearer to what is asked for than all that started before its end.
    overlaps = Sql(
        f"{stop.sql} >= ? AND +start_time < ? AND ({stop.sql} > ? OR +start_time >= ?)",
        (*stop.parameters, begin, end, *stop.parameters, begin, begin),
    )
    return State(stop, runtime, join(" AND ", [overlaps, *conditions]), costly=True)
