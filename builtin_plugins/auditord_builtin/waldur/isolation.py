"""Several resources at a time, so that the faults of one stay with it and a server that is away is left alone."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio

from auditord_builtin.waldur.client import AccessDenied, InvalidAnswer, Unreachable, WaldurError
from auditord_builtin.waldur.outcomes import ResourceProgress

AWAY_AFTER: Final = 3
"""So many resources in a row that were not answered: Waldur is away, and the others are not tried."""

Write = Callable[[ResourceProgress], Awaitable[None]]


class Isolation:
    """Runs a step for each resource until Waldur is found to be away or to refuse us.

    Args:
        concurrency: how many resources at a time.

    Attributes:
        stopped: why no other resource is tried.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._silent = 0
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
            await write(resource)
        except WaldurError as error:
            resource.problems.append(str(error))
            self._silent = self._silent + 1 if isinstance(error, Unreachable | InvalidAnswer) else 0
            if isinstance(error, AccessDenied) or self._silent >= AWAY_AFTER:
                self.stopped = error
        else:
            self._silent = 0
