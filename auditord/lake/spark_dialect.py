"""All SQL that is specific to Spark.

Spark sums whole numbers in 64 bits. Numbers that may overflow are summed in pieces of 31 bits, which fit for two
billion rows. Products that are too large themselves are summed in decimals of 38 digits, which takes some twenty times
as long. The engine sets ANSI mode, in which a sum that overflows nevertheless raises.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from typing_extensions import override

from auditord.lake.dialect import ClusterDialect
from auditord.store.aggregates import Limbs
from auditord.store.dialects import Sql
from auditord_hookspecs import Window

VIEW: Final = """
CREATE TEMPORARY VIEW records AS
SELECT
    daemon, record_id, unix_micros(start_time) AS start_time, unix_micros(stop_time) AS stop_time, runtime, site,
    user_group, user_name, more, cores, memory, gpu, total_cpu, core_seconds, memory_seconds, gpu_seconds, meta,
    components, document, release,
    named_struct('names', components.name, 'scores', components.scores) AS score_set,
    start_time AS started_at, stop_time AS stopped_at
FROM lake
"""
"""The view that statements read. Conditions on the table's own timestamps skip files and parts of them. Grouping by a
list that a function makes from another list takes five times as long as grouping by the lists here."""

_PIECES: Final[Limbs] = (31, 0)


@dataclass(frozen=True, slots=True)
class SparkDialect(ClusterDialect):
    """SQL of Spark 4.0 and later."""

    truncated = "trunc({0}, '{1}')"
    day = "date_from_unix_date(CAST({} div 86400000000 - 719162 AS INT))"
    scores_of_set = (
        "concat('[', array_join(zip_with(score_set.names, score_set.scores, (name, scores) ->"
        " concat('[', regexp_replace(to_json(array(name)), '^.|.$', ''), ',', to_json(scores), ']')"
        "), ','), ']')"
    )
    no_number = "CAST(NULL AS DECIMAL(38, 0))"
    components = "LATERAL explode(components) AS listed (component)"
    scores = "to_json(component.scores)"
    seconds = "{} div 1000000"
    overlap = "arrays_overlap({}, array({}))"
    named = "filter(components, each -> each.name = %s)"
    any_component = "exists(components, each -> {})"
    first = "get({}, 0)"
    as_json = "to_json({})"
    wide = "CAST({} AS DECIMAL(38, 0))"
    amounts = "nullif(array_join(transform({}, each -> CAST(each.amount AS STRING)), ','), '')"

    @override
    def in_window(self, window: Window | None) -> Sql:
        """Return a condition by which Spark skips files, using partition months and column statistics."""
        if window is None:
            return Sql("stopped_at IS NOT NULL")
        begin, end = self.literal_moment(window.start), self.literal_moment(window.stop)
        return Sql(f"stopped_at >= timestamp_micros({begin}) AND started_at < timestamp_micros({end})")

    @override
    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        return ["count(*)", "min(stopped)", "max(stopped)", *_pieces("ran")], _PIECES

    @override
    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        del component
        fits: LiteralString = f"CAST({amount} AS DOUBLE) * ran < 9.0E18"
        product = _pieces(f"CASE WHEN {fits} THEN {amount} * ran END")
        large: list[LiteralString] = [
            f"sum(CASE WHEN NOT {fits} THEN CAST(shiftright({amount}, 31) AS DECIMAL(38, 0)) * ran END)",
            f"sum(CASE WHEN NOT {fits} THEN CAST({amount} & 2147483647 AS DECIMAL(38, 0)) * ran END)",
        ]
        return [*_pieces(amount), *product, *large], _PIECES, (*_PIECES, *_PIECES)


def _pieces(number: LiteralString) -> Sequence[LiteralString]:
    return [f"sum(shiftright({number}, 31))", f"sum(({number}) & 2147483647)"]
