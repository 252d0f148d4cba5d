"""List the records behind an amount in Waldur, and check that they add up to it."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

import msgspec

from auditord_builtin.waldur.config import WaldurConfig, round_amount
from auditord_builtin.waldur.usage import TICKS_PER_MINUTE, AccountUsage, BillingMonth, amount, fold_name, month_usage
from auditord_hookspecs import (
    AggregateQuery,
    AuditordError,
    MetaValue,
    Record,
    RecordQuery,
    Records,
    Window,
    query,
)

_TICK: Final = timedelta(microseconds=1)


class Share(msgspec.Struct, frozen=True):
    """The share of one record in a month: its user as recorded, the overlap in microseconds, exact amounts."""

    record: Record
    user: str
    ticks: int
    amounts: Mapping[str, Fraction]


@dataclass
class Explanation:
    """The running sum of an account's or a user's records."""

    records: int = 0
    running: int = 0
    amounts: defaultdict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))

    def add(self, share: Share) -> None:
        self.records += 1
        self.running += share.record.stop_time is None
        for component, each in share.amounts.items():
            self.amounts[component] += each

    def round_amounts(self, config: WaldurConfig) -> Mapping[str, Decimal]:
        """Return the amounts, rounded as in reports."""
        return {component: round_amount(self.amounts[component]) for component in config.backend_components}


class NotExplained(AuditordError):
    """The sum of the records differs from the reported amount.

    Remedy:
        try again: records were added or changed meanwhile.
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
    """Yield the records behind the amount of an account, or of one of its users. Names match in any case."""
    window = Window(month.window.start, min(month.window.stop, as_of))
    if window.stop <= window.start:
        return
    accounts = AggregateQuery(by=(MetaValue(*config.account_meta),), window=window, as_of=as_of)
    names = {str(group.key[0]) for group in (await records.aggregate(accounts)).groups if group.key[0] is not None}
    spelt = tuple(sorted(name for name in names if fold_name(name) == fold_name(account)))
    began = query.TimeCompares(query.TimeField.START, query.Comparison.LT, window.stop)
    ended = query.TimeCompares(query.TimeField.STOP, query.Comparison.GT, window.start)
    conditions = [  # each with its label key, since a condition tests only one key
        (key, query.AllOf((query.MetaContainsAny(key, spelt), began, phase)))
        for key in config.account_meta
        for phase in (ended, query.IsOpen())
        if spelt
    ]
    for key, where in conditions:
        async with records.stream(RecordQuery(where=where, order=query.Order(query.SortField.STOP))) as found:
            async for record in found:
                stop, name = (
                    as_of if record.stop_time is None else record.stop_time,
                    _first(record, config.user_meta)[1],
                )
                counts_for, counted_as = _first(record, config.account_meta)
                ticks = (min(stop, window.stop) - max(record.start_time, window.start)) // _TICK
                if (
                    ticks <= 0
                    or stop < record.start_time
                    or (counts_for, fold_name(counted_as)) != (key, fold_name(account))
                    or (user is not None and fold_name(name) != fold_name(user))
                    or (config.sites and _first(record, config.site_meta)[1] not in config.sites)
                ):
                    continue
                minutes: dict[str, Fraction] = {}
                for resource in config.resources:
                    recorded = config.recorded[resource]
                    total = sum(each.amount for each in record.components if each.name in recorded.component)
                    minutes[resource] = total * recorded.scale * ticks / TICKS_PER_MINUTE
                amounts = {component: amount(config, component, minutes) for component in config.backend_components}
                yield Share(record, name, ticks, amounts)


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
    """Show each record behind an amount, and check that the records add up to it.

    Raises:
        NotExplained: the sum differs, since records were added or changed meanwhile.
    """
    explanation = Explanation()
    async with aclosing(shares(config, records, account, month, as_of=as_of, user=user)) as found:
        async for share in found:
            explanation.add(share)
            show(share)
    nothing = AccountUsage({}, {})
    usage = (await month_usage(config, records, month, as_of=as_of)).get(fold_name(account), nothing)
    amounts = usage.total if user is None else usage.users.get(fold_name(user), {})
    sums = explanation.round_amounts(config)
    if explanation.records and sums != amounts:
        raise NotExplained(
            f"{account}, {month}: the records add up to {_format_amounts(sums)}, but the store's sum is"
            f" {_format_amounts(amounts)}: records were added or changed meanwhile; try again"
        )
    return explanation


def _format_amounts(amounts: Mapping[str, Decimal]) -> str:
    return ", ".join(f"{component} {each}" for component, each in amounts.items()) or "nothing"


def _first(record: Record, keys: tuple[str, ...]) -> tuple[str, str]:
    """Return the first of ``keys`` that the record has, and its first value."""
    for key in keys:
        if (values := (record.meta or {}).get(key)) is not None:
            return key, values[0] if values else ""
    return "", ""
