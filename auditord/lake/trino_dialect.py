"""All SQL that is specific to Trino.

Trino sums whole numbers in 64 bits and raises on overflow. Numbers that may be larger are summed in decimals of 38
digits.
"""

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from auditord.lake.dialect import ClusterDialect
from auditord.store.dialects import Key, Sql
from auditord_hookspecs import CalendarUnit, Window

_MICROS: Final = (
    "date_diff('millisecond', TIMESTAMP '1970-01-01 00:00:00 UTC', {0}) * 1000 + CASE WHEN"
    " {0} = date_trunc('millisecond', {0}) THEN 0 ELSE CAST(substr(CAST({0} AS VARCHAR), 24, 3) AS BIGINT) END"
)
"""Microseconds since 1970. Trino has no function for them, except one in floating point that rounds distant years."""

_SCORES: Final = (
    """transform(each.scores, score -> concat("""
    """'{{"name":', json_format(CAST(score.name AS JSON)), ',"value":', CAST(score.value AS VARCHAR), '}}'))"""
)
_SCORE_SET: Final = (
    "concat('[', array_join(transform(components, each -> concat("
    f"'[', json_format(CAST(each.name AS JSON)), ',[', array_join({_SCORES}, ','), ']]')), ','), ']')"
)
"""The scores as text. Grouping by a list of structures takes twice as long."""

RECORDS: Final = f"""
WITH records AS (
    SELECT
        daemon, record_id, {_MICROS.format("start_time")} AS start_time, {_MICROS.format("stop_time")} AS stop_time,
        runtime, site, user_group, user_name, more, cores, memory, gpu, total_cpu, core_seconds, memory_seconds,
        gpu_seconds, meta, components, document, release,
        {_SCORE_SET} AS score_set,
        start_time AS started_at, stop_time AS stopped_at
    FROM {{table}} FOR VERSION AS OF {{snapshot}}
)
"""  # noqa: S608 literals
"""The rows that statements read; the braces are replaced by the table and the id of a snapshot."""


@dataclass(frozen=True, slots=True)
class TrinoDialect(ClusterDialect):
    """SQL of Trino."""

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
    seconds = "{} / 1000000"
    meta = "element_at(meta, %s)"
    overlap = "arrays_overlap({}, ARRAY[{}])"
    named = "filter(components, each -> each.name = %s)"
    any_component = "any_match(components, each -> {})"
    first = "element_at({}, 1)"
    as_json = "json_format(CAST({} AS JSON))"
    amounts = "reduce({}, CAST(NULL AS DECIMAL(38, 0)), (sum, each) -> coalesce(sum, 0) + each.amount, sum -> sum)"
    sum = "sum(CAST({} AS DECIMAL(38, 0)))"
    wide = "CAST({} AS DECIMAL(38, 0))"
    high = "bitwise_right_shift_arithmetic({}, 31)"
    low = "bitwise_and({}, 2147483647)"

    @override
    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        return Key(super(TrinoDialect, self).first_day(moment, unit).column, self.text_of)

    @override
    def in_window(self, window: Window | None) -> Sql:
        """Return a condition by which Trino skips files, using partition months and column statistics."""
        if window is None:
            return Sql("stopped_at IS NOT NULL")
        return Sql("stopped_at >= %s AND started_at < %s", (self.moment(window.start), self.moment(window.stop)))
