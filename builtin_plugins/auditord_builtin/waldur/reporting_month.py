"""Writing the figures of one billing month to Waldur.

Amounts are absolute, so writing them again changes nothing, and what is there already is not written. Totals come
first, since the amounts of users hang below them. Faults of one resource or user stay with it.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

import anyio

from auditord_builtin.waldur.client import (
    AccessDenied,
    ComponentUsage,
    ComponentUserUsage,
    DateIgnored,
    InvalidAnswer,
    Refused,
    Unreachable,
    WaldurClient,
    WaldurError,
)
from auditord_builtin.waldur.client.payloads import MAX_USERNAME, UserUsage, user_usage
from auditord_builtin.waldur.months import BillingMonth

CLOCKS_APART: Final = timedelta(minutes=5)
"""So far may the server's clock be behind ours."""

AWAY_AFTER: Final = 3
"""So many resources in a row that were not answered: Waldur is away, and the others are not tried."""


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """What is to be reported of a resource, rounded to two decimals.

    Args:
        uuid: Waldur's name of it.
        backend_id: the account, for messages.
        totals: by component; what is not named stays as it is.
        users: by username and component.
    """

    uuid: UUID
    backend_id: str
    totals: Mapping[str, Decimal]
    users: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict[str, Mapping[str, Decimal]])


@dataclass(frozen=True, slots=True)
class MonthPlan:
    """What is to be reported of a month.

    Args:
        month: its first day.
        moment: the instant that goes with each amount, see :func:`moment_of`.
        closed: the month is over: whether the server knows dates is verified after the first write.
        resources: what is reported, in this order.
        links: the URLs of the offering's users by username; others are reported without.
        rows: the totals that are there, if they have been read.
        user_rows: the amounts of users that are there, if they have been read.
    """

    month: date
    moment: datetime
    closed: bool
    resources: Sequence[ResourcePlan]
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    rows: Sequence[ComponentUsage] | None = None
    user_rows: Sequence[ComponentUserUsage] | None = None


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """What came of a resource.

    Args:
        plan: what was to be reported.
        totals: what was written by component; nothing if all was there already.
        users: how many amounts of users were written.
        problems: what was not, and why; empty if everything is as planned now.
        lost: totals that Waldur does not take because the month is over; nobody will ever be billed for them.
    """

    plan: ResourcePlan
    totals: Mapping[str, Decimal]
    users: int
    problems: Sequence[str]
    lost: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class MonthOutcome:
    """What came of a month.

    Args:
        plan: what was to be reported.
        resources: what came of those that were tried.
        stopped: why the others were not tried.
    """

    plan: MonthPlan
    resources: Sequence[ResourceOutcome]
    stopped: WaldurError | None

    @property
    def complete(self) -> bool:
        """Whether everything is in Waldur as planned."""
        return self.stopped is None and not any(each.problems for each in self.resources)


def moment_of(month: BillingMonth, now: datetime) -> datetime | None:
    """The instant to send with a month's amounts; None while it cannot be told to the server.

    The server finds the month in a zone of its own, and refuses instants that its clock has not reached. Noon of the
    first day is in the same month everywhere. For the month that is going on only the present will do, and for some
    hours of its first or last day that is another month in UTC: a later run will do.
    """
    if now >= month.window.stop:
        return datetime(month.year, month.month, 1, 12, tzinfo=UTC)
    present = (now - CLOCKS_APART).astimezone(UTC)
    return present if (present.year, present.month) == (month.year, month.month) else None


async def report_month(client: WaldurClient, plan: MonthPlan) -> MonthOutcome:
    """Write what differs from what is there; with a client for a dry run, only show it. Faults are in the outcome."""
    writing = _Writing(client, plan)
    try:
        await writing.totals()
        await writing.users()
    except WaldurError as error:
        writing.stopped = writing.stopped or error
    return writing.outcome()


class _Resource:
    """What has come of one resource so far."""

    def __init__(self, plan: ResourcePlan) -> None:
        self.plan = plan
        self.tried = False
        self.written: Mapping[str, Decimal] = {}
        self.users = 0
        self.problems: list[str] = []
        self.lost: Mapping[str, Decimal] = {}

    def outcome(self) -> ResourceOutcome:
        return ResourceOutcome(self.plan, self.written, self.users, tuple(self.problems), self.lost)


Rows = Mapping[tuple[UUID, str], Sequence[ComponentUsage]]
UserRows = Mapping[tuple[UUID, str], ComponentUserUsage]


class _Writing:
    """The state of a month that is being written."""

    def __init__(self, client: WaldurClient, plan: MonthPlan) -> None:
        self._client = client
        self._plan = plan
        self._resources = [_Resource(each) for each in plan.resources]
        self._rows: Rows = {}
        self._silent = 0
        self.stopped: WaldurError | None = None

    def outcome(self) -> MonthOutcome:
        return MonthOutcome(self._plan, tuple(each.outcome() for each in self._resources if each.tried), self.stopped)

    # -- totals -------------------------------------------------------------------------------------------------------

    async def totals(self) -> None:
        """Write the totals that differ."""
        self._rows = _by_component(await self._read_rows() if self._plan.rows is None else self._plan.rows)
        waiting = iter(self._resources)
        if self._plan.closed and not self._client.dry_run:
            await self._first_of_a_closed_month(waiting)
        await self._each(waiting, self._total)
        if any(each.written for each in self._resources) and not self._client.dry_run:
            self._rows = _by_component(await self._read_rows())

    async def _read_rows(self) -> Sequence[ComponentUsage]:
        return await self._client.component_usages(self._plan.month)

    async def _first_of_a_closed_month(self, waiting: Iterator[_Resource]) -> None:
        """Go on until one has been written, and see that it is where it belongs before the others follow.

        Raises:
            DateIgnored: it is not.
        """
        for resource in waiting:
            await self._isolated(resource, self._total)
            if self.stopped is not None:
                return
            if resource.written:
                await self._verify(resource)
                return

    async def _verify(self, resource: _Resource) -> None:
        # The amount and not just a row: the month may have had one before, and an old server would not have touched it.
        rows = await self._client.component_usages(self._plan.month, resource.plan.uuid)
        there = {(row.type, row.usage) for row in rows if row.billing_period in {None, self._plan.month}}
        if not there.issuperset(resource.written.items()):
            raise DateIgnored(
                f"{resource.plan.backend_id}: Waldur took the usage of {self._plan.month:%Y-%m} and does not have it"
                f" there: it does not know dates, and has it in the present month now, until that is reported again."
                f" Nothing else of months that are over was sent; they need a newer Waldur"
            )

    async def _total(self, resource: _Resource) -> None:
        amounts = {
            name: amount for name, amount in resource.plan.totals.items() if self._differs(resource, name, amount)
        }
        if not amounts:
            return
        try:
            await self._client.set_usage(resource.plan.uuid, self._plan.moment, amounts)
        except Refused as error:
            if error.about_a_closed_month:
                resource.lost = amounts
            raise
        resource.written = amounts

    def _differs(self, resource: _Resource, component: str, amount: Decimal) -> bool:
        return [row.usage for row in self._rows.get((resource.plan.uuid, component), ())] != [amount]

    # -- users --------------------------------------------------------------------------------------------------------

    async def users(self) -> None:
        """Write the amounts of users that differ, below the totals that are there."""
        able = [each for each in self._resources if each.plan.users and each.tried and not each.problems]
        if not able or self.stopped is not None:
            return
        rows = self._plan.user_rows
        found = await self._client.user_usages(self._plan.month) if rows is None else rows
        there = {(row.row, row.username): row for row in found}
        await self._each(iter(able), lambda resource: self._users(resource, there))

    async def _users(self, resource: _Resource, there: UserRows) -> None:
        for component, amounts in _by_component_then_user(resource.plan.users).items():
            row = self._row(resource, component)
            if row is not None:
                await self._users_below(resource, row, [
                    user_usage(name, self._plan.moment, amount, self._plan.links.get(name))
                    for name, amount in self._acceptable(resource, amounts)
                    if self._user_differs(there, row, name, amount)
                ])  # fmt: skip

    async def _users_below(self, resource: _Resource, row: UUID | str, usages: Sequence[UserUsage]) -> None:
        reasons = await self._client.set_user_usages(row, usages)
        resource.users += len(usages) - len(reasons)
        resource.problems += [f"user {name}: {reason}" for name, reason in reasons.items()]

    def _row(self, resource: _Resource, component: str) -> UUID | str | None:
        rows = self._rows.get((resource.plan.uuid, component), ())
        if len(rows) == 1:
            return rows[0].uuid
        if not rows and self._client.dry_run:
            return f"<the new total of {component}>"
        if rows or component in resource.plan.totals:
            many = "several totals" if rows else "no total"
            resource.problems.append(f"{component}: Waldur has {many} of this month, so its users were not reported")
        return None

    def _acceptable(self, resource: _Resource, amounts: Mapping[str, Decimal]) -> Iterator[tuple[str, Decimal]]:
        for name, amount in amounts.items():
            if 0 < len(name) <= MAX_USERNAME:
                yield name, amount
            else:
                resource.problems.append(f"user {name!r}: Waldur takes names of 1 to {MAX_USERNAME} characters")

    def _user_differs(self, there: UserRows, row: UUID | str, name: str, amount: Decimal) -> bool:
        found = there.get((row, name)) if isinstance(row, UUID) else None
        return found is None or found.usage != amount or (found.user is None and name in self._plan.links)

    # -- isolation ----------------------------------------------------------------------------------------------------

    async def _each(self, waiting: Iterator[_Resource], write: Callable[[_Resource], Awaitable[None]]) -> None:
        async def work() -> None:
            for resource in waiting:
                if self.stopped is not None:
                    return
                await self._isolated(resource, write)

        async with anyio.create_task_group() as tasks:
            for _ in range(self._client.concurrency):
                tasks.start_soon(work)

    async def _isolated(self, resource: _Resource, write: Callable[[_Resource], Awaitable[None]]) -> None:
        resource.tried = True
        try:
            await write(resource)
        except WaldurError as error:
            resource.problems.append(str(error))
            self._silent = self._silent + 1 if isinstance(error, Unreachable | InvalidAnswer) else 0
            if isinstance(error, AccessDenied) or self._silent >= AWAY_AFTER:
                self.stopped = error
        else:
            self._silent = 0


def _by_component(rows: Iterable[ComponentUsage]) -> Rows:
    found: defaultdict[tuple[UUID, str], list[ComponentUsage]] = defaultdict(list)
    for row in rows:
        found[row.resource_uuid, row.type].append(row)
    return found


def _by_component_then_user(users: Mapping[str, Mapping[str, Decimal]]) -> Mapping[str, Mapping[str, Decimal]]:
    turned: defaultdict[str, dict[str, Decimal]] = defaultdict(dict)
    for name, amounts in users.items():
        for component, amount in amounts.items():
            turned[component][name] = amount
    return turned
