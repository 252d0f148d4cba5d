"""A collector's context whose child processes are real, for tests that run programs."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from auditord.contexts.instances import Child, CommandRunner
from auditord.testing import FakeCollectorContext


class RealContext(FakeCollectorContext):
    """Runs child processes as the daemon does; the rest is in memory."""

    @asynccontextmanager
    async def child(
        self, argv: Sequence[str], environment: Mapping[str, str], through: Sequence[str], max_output: int
    ) -> AsyncGenerator[Child, None]:
        """Run the program."""
        self.ran.append((*through, *argv))
        async with CommandRunner.child(self, argv, environment, through, max_output) as child:
            yield child
