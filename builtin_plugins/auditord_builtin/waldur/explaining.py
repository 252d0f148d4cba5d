"""The records behind an amount, one by one; added up here, they must come to what the store's own sums say."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from auditord_builtin.waldur.components import rounded
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.usage import AccountUsage, amount, folded, month_usage
from auditord_hookspecs import AggregateQuery, AuditordError, MetaValue, Record, RecordQuery, Records, Window, query

_TICK: Final = timedelta(microseconds=1)
_TICKS_PER_MINUTE: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Share:
    """The contribution of a record, of a user as it is written there, to a month.

    ``ticks`` are microseconds of its overlap, ``amounts`` exact ones of the offering's components.
    """

    record: Record
    user: str
    ticks: int
    amounts: Mapping[str, Fraction]


@dataclass
class Explanation:
    """The sum of the records of an account (and user), as they are read."""

    records: int = 0
    running: int = 0
    amounts: defaultdict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))

    def add(self, share: Share) -> None:
        """Count one more."""
        self.records += 1
        self.running += share.record.stop_time is None
        for component, each in share.amounts.items():
            self.amounts[component] += each

    def rounded(self, config: WaldurConfig) -> Mapping[str, Decimal]:
        """Rounded as they are reported."""
        return {component: rounded(self.amounts[component]) for component in config.backend_components}


class NotExplained(AuditordError):
    """The records do not come to the amount.

    Remedy:
        try again: records came or changed meanwhile.
    """


async def shares(
    config: WaldurConfig,
    records: Records,
    account: str,
    month: BillingMonth,
    *,
    as_of: datetime,
    user: str | None = None,
) -> AsyncGenerator[Share, None]:
    """The records that an account's amount (or that of one of its users) is made of; names in any case."""
    window = Window(month.window.start, min(month.window.stop, as_of))
    if window.stop <= window.start:
        return
    for key, where in await _conditions(config, records, account, window, as_of):
        async with records.stream(RecordQuery(where=where, order=query.Order(query.SortField.STOP))) as found:
            async for record in found:
                share = _share(config, record, window, as_of)
                if share.ticks > 0 and _is_of(config, record, (key, account), user):
                    yield share


async def explain(
    config: WaldurConfig,
    records: Records,
    account: str,
    month: BillingMonth,
    *,
    as_of: datetime,
    user: str | None,
    show: Callable[[Share], None],
) -> Explanation:
    """Show each record behind an amount, and check that they come to it.

    Raises:
        NotExplained: they do not; records came or changed meanwhile.
    """
    explanation = Explanation()
    async with aclosing(shares(config, records, account, month, as_of=as_of, user=user)) as found:
        async for share in found:
            explanation.add(share)
            show(share)
    nothing = AccountUsage({}, {})
    usage = (await month_usage(config, records, month, as_of=as_of)).get(folded(account), nothing)
    amounts = usage.total if user is None else usage.users.get(folded(user), {})
    if explanation.records and explanation.rounded(config) != amounts:
        raise NotExplained(
            f"{account}, {month}: the records come to {_written(explanation.rounded(config))} and the store's sums"
            f" to {_written(amounts)}: records came or changed meanwhile; try again"
        )
    return explanation


def _written(amounts: Mapping[str, Decimal]) -> str:
    return ", ".join(f"{component} {each}" for component, each in amounts.items()) or "nothing"


async def _conditions(
    config: WaldurConfig, records: Records, account: str, window: Window, as_of: datetime
) -> list[tuple[str, query.Condition]]:
    """Under each key, queries that find each record of the account; conditions know no other case or alternatives."""
    asked = AggregateQuery(by=(MetaValue(*config.account_meta),), window=window, as_of=as_of)
    names = {str(group.key[0]) for group in (await records.aggregate(asked)).groups if group.key[0] is not None}
    spelt = tuple(sorted(name for name in names if folded(name) == folded(account)))
    began = query.TimeCompares(query.TimeField.START, query.Comparison.LT, window.stop)
    ended = query.TimeCompares(query.TimeField.STOP, query.Comparison.GT, window.start)
    return [
        (key, query.AllOf((query.MetaContainsAny(key, spelt), began, phase)))
        for key in config.account_meta
        for phase in (ended, query.IsOpen())
        if spelt
    ]


def _share(config: WaldurConfig, record: Record, window: Window, as_of: datetime) -> Share:
    stop = as_of if record.stop_time is None else record.stop_time
    ticks = (min(stop, window.stop) - max(record.start_time, window.start)) // _TICK if stop >= record.start_time else 0
    minutes = dict(_minutes(config, record, ticks))
    amounts = {component: amount(config, component, minutes) for component in config.backend_components}
    return Share(record, _first(record, config.user_meta)[1], ticks, amounts)


def _minutes(config: WaldurConfig, record: Record, ticks: int) -> Iterator[tuple[str, Fraction]]:
    for resource in config.resources:
        recorded = config.recorded[resource]
        held = sum(component.amount for component in record.components if component.name in recorded.component)
        yield resource, held * recorded.scale * ticks / _TICKS_PER_MINUTE


def _is_of(config: WaldurConfig, record: Record, account: tuple[str, str], user: str | None) -> bool:
    """True if the record counts for the account, which is under the key, and for the user if there is one."""
    key, name = _first(record, config.account_meta)
    if key != account[0] or folded(name) != folded(account[1]):
        return False
    of_user = user is None or folded(_first(record, config.user_meta)[1]) == folded(user)
    return of_user and (not config.sites or _first(record, config.site_meta)[1] in config.sites)


def _first(record: Record, keys: tuple[str, ...]) -> tuple[str, str]:
    """The first of the keys that the record has, and the first value under it."""
    for key in keys:
        if (values := (record.meta or {}).get(key)) is not None:
            return key, values[0] if values else ""
    return "", ""
