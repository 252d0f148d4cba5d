"""``GET /api/v1/aggregates``: sums over records, made where the records are."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import msgspec
from aiohttp import web

from auditord.web.access.rows import RecordsFor
from auditord.web.answers import JSON, Answer
from auditord.web.api.shapes import Amounts, GroupSums, ScoredAmounts, ScoreValueAmounts, Sums, UsedComponent
from auditord.web.api.sums_query import SumsQuery, read_sums_query
from auditord.web.rationing import place
from auditord.web.shares import Shares
from auditord.web.targets import read_target
from auditord_hookspecs.aggregates import AmountSums, Group, KeyValue, ScoreSums, UsageSums
from auditord_hookspecs.wire import format_time


@dataclass(frozen=True, slots=True)
class SumsDesk:
    """Sums records up.

    Args:
        records: those that the caller may see.
        places: for long work of the store.
    """

    records: RecordsFor
    places: Shares

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The sums over each group."""
        asked = read_sums_query(read_target(request.raw_path).query)
        async with place(self.places, request):
            found = await self.records(request).aggregate(asked.query)
        groups = [_group(asked, group) for group in found.groups]
        return Answer(200, msgspec.json.encode(Sums(found.ticks_per_second, groups)), JSON)


def _group(asked: SumsQuery, group: Group) -> GroupSums:
    names = [usage.component for usage in asked.query.usage]
    return GroupSums(
        key=dict(zip(asked.by, map(_key_value, group.key), strict=True)),
        records=group.records,
        runtime=group.runtime,
        first_stop=format_time(group.first_stop),
        last_stop=format_time(group.last_stop),
        usage=dict(zip(names, map(_usage, group.usage), strict=True)),
    )


def _key_value(value: KeyValue) -> str | int | bool | None:
    match value:
        case Decimal():
            return _written(value)
        case date():
            return value.isoformat()
        case _:
            return value


def _usage(usage: UsageSums) -> UsedComponent:
    scores = {name: _score(sums) for name, sums in usage.scores.items()}
    return UsedComponent(usage.sums.amount, usage.sums.amount_runtime, scores)


def _score(sums: ScoreSums) -> ScoredAmounts:
    unscored = Amounts(sums.unscored.amount, sums.unscored.amount_runtime)
    scored = {value: each for value, each in sums.by_value.items() if value is not None}
    by_value = [_value(value, scored[value]) for value in sorted(scored)]
    return ScoredAmounts(_written(sums.amount), _written(sums.amount_runtime), unscored, by_value)


def _value(value: Decimal, sums: AmountSums) -> ScoreValueAmounts:
    return ScoreValueAmounts(_written(value), sums.amount, sums.amount_runtime)


def _written(number: Decimal) -> str:
    """Without an exponent, and without zeros at its end."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
