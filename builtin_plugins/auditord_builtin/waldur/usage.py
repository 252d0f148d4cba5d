"""The consumption of accounts and users in a period, summed up by the record store.

``sec = min(stop or T, E, T) - max(start, S)`` for each record that overlaps the period [S, E), running ones up to the
instant T; amount times sec is summed in integers, converted exactly, and rounded once for each amount.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.waldur.components import rounded
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.months import BillingMonth
from auditord_hookspecs import AggregateQuery, ComponentUsage, Group, MetaValue, Records, Window
from auditord_hookspecs.query import AllOf, MetaContainsAny

_TICKS_PER_MINUTE: Final = 60_000_000

Minutes: TypeAlias = Mapping[str, Fraction]
"""Exact resource-minutes (of memory: MiB-minutes) by resource."""

RawUsage: TypeAlias = Mapping[str | None, Mapping[str | None, Minutes]]
"""The consumption of users by account; names are case-folded, None stands for records without a name."""


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """The consumption of an account in a period, in Waldur's units, by the offering's component.

    Args:
        total: of all its users, known or not; rounded by itself, so it may differ from the sum of what is rounded.
        users: of each user that has a name, by the case-folded name.
    """

    total: Mapping[str, Decimal]
    users: Mapping[str, Mapping[str, Decimal]]


async def month_usage(
    config: WaldurConfig, records: Records, month: BillingMonth, *, as_of: datetime
) -> Mapping[str, AccountUsage]:
    """The usage of every account that has any, by the case-folded account; running jobs count up to ``as_of``."""
    return converted(config, await raw_usage(config, records, month.window, as_of=as_of))


async def raw_usage(config: WaldurConfig, records: Records, window: Window, *, as_of: datetime) -> RawUsage:
    """The exact usage within a period, of records of the instance's sites."""
    if as_of <= window.start:
        return {}
    names = list(dict.fromkeys(name for each in config.resources for name in config.recorded[each].component))
    one_key = bool(config.sites) and len(config.site_meta) == 1  # else the language of conditions cannot express it
    query = AggregateQuery(
        where=AllOf((MetaContainsAny(config.site_meta[0], config.sites),)) if one_key else AllOf(),
        by=(MetaValue(*config.site_meta), MetaValue(*config.account_meta), MetaValue(*config.user_meta)),
        usage=tuple([ComponentUsage(name) for name in names]),
        window=Window(window.start, min(window.stop, as_of)),
        as_of=as_of,
    )
    groups = (await records.aggregate(query)).groups
    return added_up(
        _entry(config, names, group) for group in groups if not config.sites or group.key[0] in config.sites
    )


Entry: TypeAlias = tuple[str | None, str | None, Minutes]
"""Account, user, and what was consumed."""


def added_up(entries: Iterable[Entry]) -> RawUsage:
    """Usage by account and user, whatever the case in which they are written."""
    sums: defaultdict[str | None, dict[str | None, Minutes]] = defaultdict(dict)
    for account, user, minutes in entries:
        users, name = sums[folded(account) or None], folded(user) or None
        before = users.get(name, {})
        users[name] = {key: before.get(key, Fraction()) + minutes.get(key, Fraction()) for key in {**before, **minutes}}
    return sums


def converted(config: WaldurConfig, raw: RawUsage) -> Mapping[str, AccountUsage]:
    """The accounts that the instance reports, in Waldur's units."""
    return {
        account: AccountUsage(
            _rounded(config, list(users.values())),
            {user: _rounded(config, [minutes]) for user, minutes in users.items() if user is not None},
        )
        for account, users in raw.items()
        if account is not None and config.selects(account)
    }


def amount(config: WaldurConfig, component: str, minutes: Minutes) -> Fraction:
    """The exact amount of one of the offering's components."""
    factors = config.backend_components[component].factors(component)
    return sum((minutes.get(resource, Fraction()) / factor for resource, factor in factors.items()), Fraction())


def _rounded(config: WaldurConfig, parts: Sequence[Minutes]) -> Mapping[str, Decimal]:
    return {
        component: rounded(sum((amount(config, component, minutes) for minutes in parts), Fraction()))
        for component in config.backend_components
    }


def _entry(config: WaldurConfig, names: Sequence[str], group: Group) -> Entry:
    _, account, user = group.key
    ticks = {name: usage.sums.amount_runtime for name, usage in zip(names, group.usage, strict=True)}
    minutes = {
        resource: sum(ticks[name] for name in recorded.component) * recorded.scale / _TICKS_PER_MINUTE
        for resource, recorded in ((each, config.recorded[each]) for each in config.resources)
    }
    return None if account is None else str(account), None if user is None else str(user), minutes


def folded(name: str | None) -> str:
    """A name as amounts have it, empty if there is none: accounts and users are the same in any case."""
    return (name or "").strip().casefold()
