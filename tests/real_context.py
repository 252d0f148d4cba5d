"""A collector's context whose child processes are real, for tests that run programs."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from auditord.contexts.command import CommandRunner
from auditord.testing import FakeCollectorContext
from auditord_hookspecs import CommandResult

_RUNNER = CommandRunner()


class RealContext(FakeCollectorContext):
    """Runs child processes as the daemon does; the rest is in memory."""

    async def run_command(self, argv: Sequence[str], *, timeout: timedelta, **options: Any) -> CommandResult:
        """Run the program."""
        self.ran.append((*options.get("through", ()), *argv))
        return await _RUNNER.run_command(argv, timeout=timeout, **options)

    def stream_command(self, argv: Sequence[str], *, timeout: timedelta, **options: Any) -> Any:
        """Run the program."""
        self.ran.append((*options.get("through", ()), *argv))
        return _RUNNER.stream_command(argv, timeout=timeout, **options)
