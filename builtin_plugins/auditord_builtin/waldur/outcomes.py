"""The outcome of writing a billing month to Waldur; faults stay with their resource."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import anyio

from auditord_builtin.waldur.errors import AccessDenied, InvalidAnswer, Unreachable, WaldurError
from auditord_builtin.waldur.plans import MonthPlan, ResourcePlan

AWAY_AFTER: Final = 3
"""So many resources in a row without an answer, or without permission: the others are not tried."""

_MAY_BE_ALL: Final = (Unreachable, InvalidAnswer, AccessDenied)
"""Faults that are perhaps not about the one resource."""


@dataclass(slots=True)
class ResourceOutcome:
    """The outcome of a resource, as it is written.

    Args:
        tried: whether writing has begun.
        totals: the written ones by component; nothing if all was there already.
        users: how many amounts of users were written.
        problems: what was not, and why; empty if everything is as planned.
        lost: amounts that Waldur does not take because the month is over, by the component (of a user, perhaps).
    """

    plan: ResourcePlan
    tried: bool = False
    totals: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    users: int = 0
    problems: list[str] = field(default_factory=list[str])
    lost: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])


@dataclass(frozen=True, slots=True)
class MonthOutcome:
    """The outcome of a month: that of the resources that were tried, and why others were not."""

    plan: MonthPlan
    resources: Sequence[ResourceOutcome]
    stopped: WaldurError | None

    @property
    def complete(self) -> bool:
        """True if everything is in Waldur as planned."""
        return self.stopped is None and not any(each.problems for each in self.resources)


Write = Callable[[ResourceOutcome], Awaitable[bool]]
"""Writes the differences of a resource; False if there were none, which says nothing about Waldur."""


class Isolation:
    """Runs a step for some resources at a time until Waldur is found to be away or to refuse us (``stopped``)."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._in_vain = 0
        self.stopped: WaldurError | None = None

    async def each(self, waiting: Iterator[ResourceOutcome], write: Write) -> None:
        """Run the step for every resource."""

        async def work() -> None:
            for resource in waiting:
                if self.stopped is not None:
                    return
                await self.one(resource, write)

        async with anyio.create_task_group() as tasks:
            for _ in range(self._concurrency):
                tasks.start_soon(work)

    async def one(self, resource: ResourceOutcome, write: Write) -> None:
        """Run the step for one resource; its fault is noted with it."""
        resource.tried = True
        try:
            if await write(resource):
                self._in_vain = 0
        except WaldurError as error:
            resource.problems.append(str(error))
            self._in_vain = self._in_vain + 1 if isinstance(error, _MAY_BE_ALL) else 0
            if self._in_vain >= AWAY_AFTER or (isinstance(error, AccessDenied) and error.for_all):
                self.stopped = error
