"""The SQL of Trino over rows of the lake: the only place that knows a word of it.

Trino sums whole numbers in 64 bits and raises where one does not fit; so what may be larger is summed in decimals of 38
digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from auditord.lake.dialect import ClusterDialect
from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.dialects import Key
from auditord.store.sql import OPERATORS, Sql, repeated
from auditord_hookspecs import CalendarUnit, Window
from auditord_hookspecs.query import Comparison

_MICROS: Final = (
    "date_diff('millisecond', TIMESTAMP '1970-01-01 00:00:00 UTC', {0}) * 1000 + CASE WHEN"
    " {0} = date_trunc('millisecond', {0}) THEN 0 ELSE CAST(substr(CAST({0} AS VARCHAR), 24, 3) AS BIGINT) END"
)
"""Microseconds since 1970: of its functions, none counts them, and one in floating point rounds those of far years."""

_SCORES: Final = (
    """transform(each.scores, score -> concat("""
    """'{{"name":', json_format(CAST(score.name AS JSON)), ',"value":', CAST(score.value AS VARCHAR), '}}'))"""
)
_SCORE_SET: Final = (
    "concat('[', array_join(transform(components, each -> concat("
    f"'[', json_format(CAST(each.name AS JSON)), ',[', array_join({_SCORES}, ','), ']]')), ','), ']')"
)
"""The text itself: to group by a list of structures takes twice as long."""

RECORDS: Final = f"""
WITH records AS (
    SELECT
        daemon, record_id, {_MICROS.format("start_time")} AS start_time, {_MICROS.format("stop_time")} AS stop_time,
        runtime, site, user_group, user_name, more, cores, memory, gpu, total_cpu, meta, components, document,
        {_SCORE_SET} AS score_set,
        start_time AS started_at, stop_time AS stopped_at
    FROM {{table}} FOR VERSION AS OF {{snapshot}}
)
"""  # noqa: S608 literals
"""The rows as the statements name them, with the table and the number of a snapshot in the places of the braces."""

_NAMED: Final = "filter(components, each -> each.name = %s)"


@dataclass(frozen=True, slots=True)
class TrinoDialect(ClusterDialect):
    """The words of Trino."""

    truncated = "date_trunc('{1}', {0})"
    day = "date_add('day', {} / 86400000000, DATE '0001-01-01')"
    scores_of_set = "score_set"
    no_text = "CAST(NULL AS VARCHAR)"
    text_of = "CAST({} AS VARCHAR)"
    no_number = "CAST(NULL AS DECIMAL(38, 0))"
    components = "UNNEST(components) AS listed (name, amount, scores)"
    name = "listed.name"
    amount = "listed.amount"
    scores = "json_format(CAST(listed.scores AS JSON))"

    def amount_of_one(self, component: str) -> Sql:
        """The amount of a component."""
        return Sql(f"element_at({_NAMED}, 1).amount", (component,))

    def amounts_of(self, component: str) -> Sql:
        """The sum of all amounts."""
        added = "CAST(NULL AS DECIMAL(38, 0)), (sum, each) -> coalesce(sum, 0) + each.amount, sum -> sum"
        return Sql(f"reduce({_NAMED}, {added})", (component,))

    def first_scores(self, component: str) -> Sql:
        """The scores of the first component of a name."""
        return Sql(f"json_format(CAST(element_at({_NAMED}, 1).scores AS JSON))", (component,))

    def lists(self, component: str, comparison: Comparison, amount: int) -> Sql:
        """The condition that a component of this name compares so."""
        return Sql(
            f"any_match(components, each -> each.name = %s AND each.amount {OPERATORS[comparison]} %s)",
            (component, amount),
        )

    def has_key(self, key: str) -> Sql:
        """The condition that a record has a meta key."""
        return Sql("(element_at(meta, %s) IS NOT NULL)", (key,))

    def first_value(self, key: str) -> Sql:
        """The first value under a meta key."""
        return Sql("element_at(element_at(meta, %s), 1)", (key,))

    def contains(self, key: str, values: Sequence[str]) -> Sql:
        """The condition that the list under a meta key has one of the values."""
        return Sql(f"arrays_overlap(element_at(meta, %s), ARRAY[{repeated('%s', ', ', len(values))}])", (key, *values))

    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        """The first day of a calendar period."""
        return Key(super(TrinoDialect, self).first_day(moment, unit).column, self.text_of)

    def seconds(self, micros: LiteralString) -> Sql:
        """Whole seconds."""
        return Sql(f"{micros} / 1000000")

    def finished(self, window: Window | None) -> Sql:
        """By the months of the partitions, and what files say about their columns."""
        if window is None:
            return Sql("stopped_at IS NOT NULL")
        return Sql("stopped_at >= %s AND started_at < %s", (self.moment(window.start), self.moment(window.stop)))

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Number of records, first and last stop time, sum of runtimes."""
        return ["count(*)", "min(stopped)", "max(stopped)", "sum(CAST(ran AS DECIMAL(38, 0)))"], WHOLE

    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Sums of amounts and of products: in two pieces, of which sixty billion fit in any case."""
        del component
        pieces: list[LiteralString] = [
            f"sum(CAST(bitwise_right_shift_arithmetic({amount}, 31) AS DECIMAL(38, 0)) * ran)",
            f"sum(CAST(bitwise_and({amount}, 2147483647) AS DECIMAL(38, 0)) * ran)",
        ]
        return [f"sum(CAST({amount} AS DECIMAL(38, 0)))", *pieces], WHOLE, (31, 0)
