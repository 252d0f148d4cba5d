"""A collector's context whose child processes are real, for tests that run programs."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from auditord.contexts.command import run_command
from auditord.contexts.streaming import stream_command
from auditord.testing import FakeCollectorContext
from auditord_hookspecs import CommandResult


class RealContext(FakeCollectorContext):
    """Runs child processes as the daemon does; the rest is in memory."""

    async def run_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int = 2**28,
    ) -> CommandResult:
        """Run the program."""
        self.ran.append((*through, *argv))
        return await run_command(argv, timeout=timeout, environment=environment, through=through, max_output=max_output)

    def stream_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int | None = None,
    ) -> Any:  # Any: a context manager, as the fake one's is
        """Run the program."""
        self.ran.append((*through, *argv))
        return stream_command(argv, timeout=timeout, environment=environment, through=through, max_output=max_output)
