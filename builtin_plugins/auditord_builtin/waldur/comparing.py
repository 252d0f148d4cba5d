"""The store's amounts beside those of sacct."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.plans import NOTHING
from auditord_builtin.waldur.sacct_usage import SacctQuery, sacct_usage
from auditord_builtin.waldur.usage import AccountUsage, converted, month_usage
from auditord_hookspecs import PluginContext


@dataclass(frozen=True, slots=True)
class Difference:
    """An amount of an account, or of one of its users, that is not the same in the record store and with sacct."""

    account: str
    user: str | None
    component: str
    stored: Decimal
    accounted: Decimal


def differences(
    config: WaldurConfig, stored: Mapping[str, AccountUsage], accounted: Mapping[str, AccountUsage]
) -> Iterator[Difference]:
    """Every amount that differs, account by account, totals first."""
    nothing = AccountUsage({}, {})
    for account in sorted({*stored, *accounted}):
        ours, theirs = stored.get(account, nothing), accounted.get(account, nothing)
        users: Sequence[str | None] = [None, *sorted({*ours.users, *theirs.users})]
        for user in users:
            for component in config.backend_components:
                pair = _amount(ours, user, component), _amount(theirs, user, component)
                if pair[0] != pair[1]:
                    yield Difference(account, user, component, *pair)


async def compare_month(
    config: WaldurConfig, context: PluginContext, month: BillingMonth, query: SacctQuery, *, as_of: datetime
) -> Sequence[Difference]:
    """The differences between the records and an answer of sacct, of the accounts that it was asked for.

    Raises:
        CommandFailed: sacct failed.
    """
    stored = await month_usage(config, context.records, month, as_of=as_of)
    accounted = converted(config, await sacct_usage(config, context, query))
    return list(differences(config, _only(stored, query.accounts), _only(accounted, query.accounts)))


def _only(usage: Mapping[str, AccountUsage], accounts: Sequence[str]) -> Mapping[str, AccountUsage]:
    return {account: usage for account, usage in usage.items() if not accounts or account in accounts}


def _amount(usage: AccountUsage, user: str | None, component: str) -> Decimal:
    amounts = usage.total if user is None else usage.users.get(user, {})
    return amounts.get(component, NOTHING)
