"""The plan of a month, by its rules: nothing falls that may not fall, and nothing is said that is not known."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from auditord_builtin.waldur.api import (
    ComponentUsage,
    ComponentUserUsage,
    Offering,
    OfferingComponent,
    OfferingUser,
    Resource,
)
from auditord_builtin.waldur.planning import NOTHING, Offered, PlannedMonth, Reported, ResourcePlan, Rules, plan_month
from auditord_builtin.waldur.usage import AccountUsage, BillingMonth
from tests.waldur_server import OFFERING, uuid_of
from tests.waldur_settings import waldur_config

MARCH: Final = BillingMonth(2026, 3, ZoneInfo("UTC"))
COMPONENTS: Final = ("cpu", "mem")
ACCOUNTS: Final = ("one", "two", "three")
USERS: Final = ("alice", "bob")

Amounts = Mapping[str, Decimal]


@dataclass(frozen=True)
class Case:
    """The consumption of each account, and Waldur's amounts."""

    figures: Mapping[str, AccountUsage]
    there: Mapping[str, AccountUsage]
    rules: Rules
    closed: bool

    def plan(self) -> PlannedMonth:
        components = tuple(OfferingComponent(name, billing_type="usage") for name in COMPONENTS)
        resources = [Resource(uuid_of(name), name, name, "OK") for name in ACCOUNTS]
        users = [OfferingUser(uuid_of(name), f"https://waldur/{name}/", name) for name in USERS]
        return plan_month(
            waldur_config(),
            Offered(Offering(OFFERING, components=components), resources, users),
            Reported(self._totals(), self._users()),
            MARCH,
            self.figures,
            moment=datetime(2026, 3, 15, tzinfo=UTC),
            closed=self.closed,
            rules=self.rules,
        )

    def _totals(self) -> list[ComponentUsage]:
        return [
            ComponentUsage(uuid_of(f"{account} {name}"), name, amount, uuid_of(account), MARCH.first_day)
            for account, usage in self.there.items()
            for name, amount in usage.total.items()
        ]

    def _users(self) -> list[ComponentUserUsage]:
        return [
            ComponentUserUsage(user, name, amount, f"https://waldur/{uuid_of(f'{account} {name}')}/")
            for account, usage in self.there.items()
            for user, amounts in usage.users.items()
            for name, amount in amounts.items()
            if name in usage.total
        ]


AMOUNT: Final = st.integers(0, 3).map(lambda units: units * Decimal("0.50"))
USER_AMOUNTS: Final = st.dictionaries(st.sampled_from(USERS), st.fixed_dictionaries(dict.fromkeys(COMPONENTS, AMOUNT)))
FIGURES: Final = st.dictionaries(
    st.sampled_from(ACCOUNTS),
    st.builds(AccountUsage, st.fixed_dictionaries(dict.fromkeys(COMPONENTS, AMOUNT)), USER_AMOUNTS),
)
THERE: Final = st.dictionaries(
    st.sampled_from(ACCOUNTS),
    st.builds(AccountUsage, st.dictionaries(st.sampled_from(COMPONENTS), AMOUNT), USER_AMOUNTS),
)
RULES: Final = st.builds(
    Rules, st.sampled_from([None, "no record"]), st.booleans(), st.booleans(), st.booleans(), st.booleans()
)
CASES: Final = st.builds(Case, FIGURES, THERE, RULES, st.booleans())
NOBODY: Final = AccountUsage({}, {})


def fallen(case: Case, plan: ResourcePlan) -> set[tuple[str, str]]:
    """The components that would be less, of all (an empty name) or of a user."""
    there = case.there.get(plan.backend_id, NOBODY)
    totals = {("", name) for name, amount in plan.totals.items() if amount < there.total.get(name, NOTHING)}
    users = {
        (user, name)
        for user, amounts in plan.users.items()
        for name, amount in amounts.items()
        if name in there.total and amount < there.users.get(user, {}).get(name, NOTHING)
    }
    return totals | users


@given(CASES)
def test_nothing_falls_that_may_not_fall(case: Case) -> None:
    for plan in case.plan().plan.resources:
        usage = case.figures.get(plan.backend_id)
        for user, _ in fallen(case, plan):
            absent = usage is None or (user and user not in usage.users)
            assert case.rules.stale is None
            assert case.rules.allow_decrease or (case.rules.reconcile_stale and absent)


@given(CASES)
def test_what_is_written_is_what_was_consumed(case: Case) -> None:
    for plan in case.plan().plan.resources:
        usage = case.figures.get(plan.backend_id, NOBODY)
        assert plan.totals
        assert all(amount == usage.total.get(name, NOTHING) for name, amount in plan.totals.items())
        for user, amounts in plan.users.items():
            assert case.rules.users
            assert amounts.keys() <= plan.totals.keys()
            assert all(each == usage.users.get(user, {}).get(name, NOTHING) for name, each in amounts.items())


@given(CASES)
def test_every_account_with_usage_is_written_or_reported(case: Case) -> None:
    planned = case.plan()
    written = {plan.backend_id for plan in planned.plan.resources}
    held_back = {held.account for held in planned.held_back}
    known = case.rules.stale is None
    spoken_of = {account for account, usage in case.figures.items() if known or _any(usage.total)}
    assert spoken_of <= written | held_back
    assert planned.reported == len(ACCOUNTS)
    assert planned.held_back_whole == len(held_back - written)
    if not case.rules.omit_anomalous:
        assert not written & held_back


@given(CASES)
def test_a_month_that_is_over_or_not_known_is_not_made_zero_unasked(case: Case) -> None:
    if not (case.closed or case.rules.stale):
        return
    for plan in case.plan().plan.resources:
        there = case.there.get(plan.backend_id, NOBODY)
        known = plan.backend_id in case.figures or any(there.total.values()) or any(map(_any, there.users.values()))
        assert known


def amounts_of(cpu: int, users: int) -> AccountUsage:
    each = {f"user{number}": {"cpu": Decimal(cpu)} for number in range(users)}
    return AccountUsage({"cpu": Decimal(cpu * users)}, each)


def test_of_many_users_whose_amounts_would_fall_five_are_named() -> None:
    for users, others in ((5, ")"), (7, ", 2 more users)")):
        case = Case({"one": amounts_of(1, users)}, {"one": amounts_of(2, users)}, Rules(users=True), closed=False)
        [held] = case.plan().held_back
        assert (held.account, held.anomaly) == ("one", "decrease")
        assert f"cpu would go from {2 * users} to {users} (user0 from 2 to 1, " in held.text
        assert f"user4 from 2 to 1{others}" in held.text


class TwoTotals(Case):
    def _totals(self) -> list[ComponentUsage]:
        return [*super()._totals(), *super()._totals()]


def test_a_resource_with_two_totals_is_held_back_by_its_name() -> None:
    [held] = TwoTotals({"one": amounts_of(2, 1)}, {"one": amounts_of(2, 1)}, Rules(), closed=False).plan().held_back
    assert (held.account, held.anomaly) == ("one", "ambiguous")
    assert held.text == "one, 2026-03: held back: Waldur has several totals of cpu; was the plan changed?"


def test_a_decrease_stays_one_beside_a_component_with_two_totals() -> None:
    less, more = (AccountUsage(dict.fromkeys(COMPONENTS, Decimal(each)), {}) for each in (1, 2))
    case = OnlyCpuTwice({"one": less}, {"one": more}, Rules(), closed=False)
    [held] = case.plan().held_back
    assert held.anomaly == "decrease"
    assert "Waldur has several totals of cpu" in held.text
    assert "mem would go from 2 to 1" in held.text


class OnlyCpuTwice(Case):
    def _totals(self) -> list[ComponentUsage]:
        totals = super()._totals()
        return [*totals, *(each for each in totals if each.type == "cpu")]


def test_a_users_name_does_not_decide_why_a_resource_is_held_back() -> None:
    less, more = (AccountUsage({"cpu": Decimal(each)}, {"several totals": {"cpu": Decimal(each)}}) for each in (1, 2))
    [held] = Case({"one": less}, {"one": more}, Rules(), closed=False).plan().held_back
    assert held.anomaly == "decrease"


def _any(amounts: Amounts) -> bool:
    return any(amounts.values())
