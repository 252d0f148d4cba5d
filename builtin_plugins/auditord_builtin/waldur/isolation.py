"""Several resources at a time, so that the faults of one stay with it and a server that is away is left alone."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio

from auditord_builtin.waldur.client import AccessDenied, InvalidAnswer, Unreachable, WaldurError
from auditord_builtin.waldur.outcomes import ResourceProgress

AWAY_AFTER: Final = 3
"""So many resources in a row without an answer, or without permission: the others are not tried."""

_MAY_BE_ALL: Final = (Unreachable, InvalidAnswer, AccessDenied)
"""Faults that are perhaps not about the one resource."""

Write = Callable[[ResourceProgress], Awaitable[bool]]
"""Writes what differs of a resource; False if nothing did, which says nothing about Waldur."""


class Isolation:
    """Runs a step for each resource until Waldur is found to be away or to refuse us.

    Args:
        concurrency: how many resources at a time.

    Attributes:
        stopped: why no other resource is tried.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._in_vain = 0
        self.stopped: WaldurError | None = None

    async def each(self, waiting: Iterator[ResourceProgress], write: Write) -> None:
        """Run the step for every resource."""

        async def work() -> None:
            for resource in waiting:
                if self.stopped is not None:
                    return
                await self.one(resource, write)

        async with anyio.create_task_group() as tasks:
            for _ in range(self._concurrency):
                tasks.start_soon(work)

    async def one(self, resource: ResourceProgress, write: Write) -> None:
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
