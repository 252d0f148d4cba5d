"""Write the planned amounts of a billing month to Waldur. An error of one resource does not stop the others."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

import anyio
import msgspec

from auditord_builtin.waldur.api import (
    MAX_USERNAME,
    AccessDenied,
    ComponentUsage,
    ComponentUserUsage,
    DateIgnored,
    InvalidAnswer,
    Refused,
    Unreachable,
    UserUsage,
    WaldurError,
    user_usage,
)
from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.planning import (
    NOTHING,
    Amounts,
    MonthPlan,
    Offered,
    PlannedMonth,
    Reported,
    ResourcePlan,
    Rules,
    plan_month,
)
from auditord_builtin.waldur.state import ReportState
from auditord_builtin.waldur.usage import CLOCKS_APART, AccountUsage, BillingMonth


class Probe(msgspec.Struct, frozen=True):
    """An amount that was sent for a past month, and has not been found in that month yet.

    Args:
        backend_id: the resource's account, for messages.
        month: the first day of the month that the amount belongs to.
        present: the first day of the month into which a server that ignores dates would write it.
        written: the amount of each component.
        before: the amounts of ``present`` before the write.
    """

    resource: UUID
    backend_id: str
    month: date
    present: date
    written: dict[str, Decimal]
    before: dict[str, Decimal]


class DateCheck(msgspec.Struct, frozen=True):
    """Checks whether the server honours dates. Amounts in flight are stored in the plugin's state."""

    client: WaldurClient
    state: ReportState
    now: datetime

    async def announce(self, plan: ResourcePlan, month: date, amounts: Amounts) -> None:
        """Store the first amount of a past month before it is sent."""
        before = await self._read_totals(self._present, plan.uuid)
        kept = {name: before.get(name, NOTHING) for name in amounts}
        probe = Probe(plan.uuid, plan.backend_id, month, self._present, dict(amounts), kept)
        await self._keep([*self._probes, probe])

    async def withdraw(self, plan: ResourcePlan) -> None:
        """Delete a stored amount that was refused."""
        await self._keep([each for each in self._probes if each.resource != plan.uuid])

    async def settle(self, *, answered: bool = False) -> None:
        """Check the amounts in flight. If one is in its month, the server honours dates.

        Args:
            answered: the server has confirmed the last amount. Otherwise it may not have arrived.

        Raises:
            DateIgnored: no amount is in its month. Amounts in the current month have been taken back.
            WaldurError: a request failed.
        """
        probes = self._probes
        if not probes:
            return
        for probe in probes:
            reported = await self._read_totals(probe.month, probe.resource)
            if all(reported.get(name) == amount for name, amount in probe.written.items()):
                await self._keep([])
                return
        # An amount in a wrong month is taken back. If that month is over, the message asks to correct it by hand.
        texts: list[str] = []
        for probe in probes:
            reported = await self._read_totals(probe.present, probe.resource)
            wrong = {
                name: probe.before[name]
                for name, amount in probe.written.items()
                if reported.get(name) == amount != probe.before[name]
            }
            if wrong and probe.present != self._present:
                amounts = ", ".join(f"{name} {reported[name]} instead of {before}" for name, before in wrong.items())
                texts.append(
                    f"{probe.backend_id}: {probe.present:%Y-%m} has the usage of {probe.month:%Y-%m}, {amounts}: this"
                    f" Waldur ignores dates, and the month is over: correct it in Waldur by hand"
                )
            elif wrong:
                await self.client.set_usage(probe.resource, self.now - CLOCKS_APART, wrong)
                moved = f"and wrote the amounts into {probe.present:%Y-%m}, where they have been taken back"
                texts.append(f"{_describe_ignored(probe)}, {moved}")
        await self._keep([])
        if texts := texts or [_describe_ignored(probe) for probe in probes[-1:] if answered]:
            raise DateIgnored(
                f"{'; '.join(texts)}. No other amounts of past months were sent; they need a newer Waldur"
            )

    @property
    def _present(self) -> date:
        return (self.now - CLOCKS_APART).astimezone(UTC).date().replace(day=1)

    @property
    def _probes(self) -> Sequence[Probe]:
        try:
            return msgspec.convert(self.state.probes, list[Probe])
        except msgspec.ValidationError as error:
            raise WaldurError(f"the saved state of the reports cannot be read: {error}") from error

    async def _read_totals(self, month: date, resource: UUID) -> Amounts:
        return {row.type: row.usage for row in await self.client.component_usages(month, resource)}

    async def _keep(self, probes: Sequence[Probe]) -> None:
        self.state.probes = [msgspec.to_builtins(probe) for probe in probes]
        await self.state.save()


def _describe_ignored(probe: Probe) -> str:
    accepted = f"{probe.backend_id}: Waldur accepted the usage of {probe.month:%Y-%m} but does not have it there"
    return f"{accepted}: it ignores dates"


AWAY_AFTER: Final = 3
"""Stop after this many consecutive resources without an answer or without permission."""

_MAY_BE_ALL: Final = (Unreachable, InvalidAnswer, AccessDenied)
"""Errors that may concern all resources."""


@dataclass(slots=True)
class ResourceOutcome:
    """The outcome of one resource, filled in while it is written.

    Args:
        tried: writing has started.
        totals: the written totals by component; empty if Waldur had all of them.
        users: the number of written amounts of users.
        problems: the amounts that were not written, and why.
        lost: amounts that Waldur refuses because the month is closed, by component (and user).
    """

    plan: ResourcePlan
    tried: bool = False
    totals: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    users: int = 0
    problems: list[str] = field(default_factory=list[str])
    lost: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])


class MonthOutcome(msgspec.Struct, frozen=True):
    """The outcome of a month: the resources that were tried, and the error that stopped the others."""

    plan: MonthPlan
    resources: Sequence[ResourceOutcome]
    stopped: WaldurError | None

    @property
    def complete(self) -> bool:
        """True if Waldur has all planned amounts."""
        return self.stopped is None and not any(each.problems for each in self.resources)


Write = Callable[[ResourceOutcome], Awaitable[bool]]
"""Writes the amounts of a resource that differ. Returns False without a request if there are none."""


class Isolation:
    """Runs a step for several resources at once, until Waldur is unreachable or refuses everything (``stopped``)."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._in_vain = 0
        self.stopped: WaldurError | None = None

    async def run_all(self, waiting: Iterator[ResourceOutcome], write: Write) -> None:
        async def work() -> None:
            for resource in waiting:
                if self.stopped is not None:
                    return
                await self.run(resource, write)

        async with anyio.create_task_group() as tasks:
            for _ in range(self._concurrency):
                tasks.start_soon(work)

    async def run(self, resource: ResourceOutcome, write: Write) -> None:
        """Run the step for one resource, and record its error in the outcome."""
        resource.tried = True
        try:
            if await write(resource):
                self._in_vain = 0
        except WaldurError as error:
            resource.problems.append(str(error))
            self._in_vain = self._in_vain + 1 if isinstance(error, _MAY_BE_ALL) else 0
            if self._in_vain >= AWAY_AFTER or (isinstance(error, AccessDenied) and error.for_all):
                self.stopped = error


Rows: TypeAlias = Mapping[tuple[UUID, str], Sequence[ComponentUsage]]
"""Totals by resource and component. There can be several after a change of plan in Waldur."""


class _Writing:
    """Writes the amounts of one month: totals, then amounts of users below them."""

    def __init__(self, client: WaldurClient, plan: MonthPlan, dates: DateCheck) -> None:
        self._client, self._plan, self._dates = client, plan, dates
        self._rows: Rows = {}
        self._reported: Mapping[tuple[UUID | str, str], ComponentUserUsage] = {}
        self.isolation = Isolation(client.concurrency)

    async def write_totals(self, resources: Sequence[ResourceOutcome]) -> None:
        """Write the totals that differ.

        Raises:
            DateIgnored: the first total of a past month is in another month.
        """
        client, month, rows = self._client, self._plan.month, self._plan.rows
        self._rows = _group_rows(await client.component_usages(month) if rows is None else rows)
        waiting = iter(resources)
        if self._plan.closed and not client.dry_run:
            # Write resources until one total is written, and check its month before the others follow.
            for resource in waiting:
                await self.isolation.run(resource, self._write_first_total)
                if self.isolation.stopped is not None:
                    break
                if resource.totals:
                    try:
                        await self._dates.settle(answered=True)
                    except DateIgnored:
                        resource.totals = {}
                        raise
                    break
        await self.isolation.run_all(waiting, self._write_total)
        if any(each.totals for each in resources) and not client.dry_run:
            self._rows = _group_rows(await client.component_usages(month))

    async def write_users(self, resources: Sequence[ResourceOutcome]) -> None:
        """Write the amounts of users that differ, for the resources whose totals are right."""
        able = [each for each in resources if each.plan.users and each.tried and not each.problems]
        if not able or self.isolation.stopped is not None:
            return
        rows = self._plan.user_rows
        found = await self._client.user_usages(self._plan.month) if rows is None else rows
        self._reported = {(row.row, row.username): row for row in found}
        await self.isolation.run_all(iter(able), self._write_users)

    async def _write_users(self, resource: ResourceOutcome) -> bool:
        before = resource.users
        by_component: defaultdict[str, dict[str, Decimal]] = defaultdict(dict)
        for name, amounts in resource.plan.users.items():
            for component, amount in amounts.items():
                by_component[component][name] = amount
        for component, by_user in by_component.items():
            if (row := self._find_row(resource, component)) is not None:
                usages: list[UserUsage] = []
                for name, amount in by_user.items():
                    found, link = self._reported.get((row, name)), self._plan.links.get(name)
                    if not 0 < len(name) <= MAX_USERNAME:
                        resource.problems.append(
                            f"user {name!r}: Waldur accepts names of 1 to {MAX_USERNAME} characters"
                        )
                    elif found is None or found.usage != amount or (found.user is None and link is not None):
                        usages.append(user_usage(name, self._plan.moment, amount, link))
                try:
                    reasons = await self._client.set_user_usages(row, usages)
                except Refused as error:
                    if error.about_a_closed_month:
                        resource.lost = {f"{component} of {each.username}": Decimal(each.usage) for each in usages}
                    raise
                resource.users += len(usages) - len(reasons)
                resource.problems += [f"user {name}: {reason}" for name, reason in reasons.items()]
        return resource.users > before

    def _find_row(self, resource: ResourceOutcome, component: str) -> UUID | str | None:
        rows = self._rows.get((resource.plan.uuid, component), ())
        if len(rows) == 1:
            return rows[0].uuid
        if not rows and self._client.dry_run:
            return f"<the new total of {component}>"
        if rows or component in resource.plan.totals:
            many = "several totals" if rows else "no total"
            resource.problems.append(f"{component}: Waldur has {many} of this month, so its users were not reported")
        return None

    async def _write_first_total(self, resource: ResourceOutcome) -> bool:
        if not (amounts := self._select_amounts(resource)):
            return False
        await self._dates.announce(resource.plan, self._plan.month, amounts)
        try:
            await self._set(resource, amounts)
        except Refused:
            await self._dates.withdraw(resource.plan)
            raise
        return True

    async def _write_total(self, resource: ResourceOutcome) -> bool:
        if amounts := self._select_amounts(resource):
            await self._set(resource, amounts)
        return bool(amounts)

    async def _set(self, resource: ResourceOutcome, amounts: Amounts) -> None:
        try:
            await self._client.set_usage(resource.plan.uuid, self._plan.moment, amounts)
        except Refused as error:
            if error.about_a_closed_month:
                resource.lost = amounts
            raise
        resource.totals = amounts

    def _select_amounts(self, resource: ResourceOutcome) -> Amounts:
        """Return the totals that differ from Waldur's."""
        plan = resource.plan
        reported = {name: [row.usage for row in self._rows.get((plan.uuid, name), ())] for name in plan.totals}
        return {name: amount for name, amount in plan.totals.items() if reported[name] != [amount]}


async def write_month(client: WaldurClient, plan: MonthPlan, dates: DateCheck) -> MonthOutcome:
    """Write the amounts that differ from Waldur's, or show them in a dry run. Errors go into the outcome."""
    resources = [ResourceOutcome(each) for each in plan.resources]
    writing = _Writing(client, plan, dates)
    isolation = writing.isolation
    try:
        await writing.write_totals(resources)
        await writing.write_users(resources)
    except WaldurError as error:
        isolation.stopped = isolation.stopped or error
    return MonthOutcome(plan, tuple(each for each in resources if each.tried), isolation.stopped)


def _group_rows(rows: Iterable[ComponentUsage]) -> Rows:
    found: defaultdict[tuple[UUID, str], list[ComponentUsage]] = defaultdict(list)
    for row in rows:
        found[row.resource_uuid, row.type].append(row)
    return found


class MonthReport:
    """Plans and writes months of one offering, as of one instant."""

    def __init__(self, config: WaldurConfig, client: WaldurClient, state: ReportState, now: datetime) -> None:
        self._config, self._client, self._now = config, client, now
        self._dates = DateCheck(client, state, now)

    async def fetch_offering(self) -> Offered:
        """Fetch the offering, its resources and its users."""
        client = self._client
        return Offered(await client.offering(), await client.resources(), await client.offering_users())

    async def settle(self) -> None:
        """Check the amounts in flight of past months; see :class:`DateCheck`."""
        if not self._client.dry_run:
            await self._dates.settle()

    async def plan(
        self, offered: Offered, month: BillingMonth, usage: Mapping[str, AccountUsage], moment: datetime, rules: Rules
    ) -> PlannedMonth:
        """Compare a month's usage, by account, with Waldur's amounts."""
        rows, users = (
            await self._client.component_usages(month.first_day),
            await self._client.user_usages(month.first_day),
        )
        closed, reported = self._now >= month.window.stop, Reported(rows, users)
        return plan_month(self._config, offered, reported, month, usage, moment=moment, closed=closed, rules=rules)

    async def write(self, plan: MonthPlan) -> MonthOutcome:
        """Write the amounts that differ from Waldur's."""
        return await write_month(self._client, plan, self._dates)
