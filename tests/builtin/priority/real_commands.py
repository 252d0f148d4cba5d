"""A context whose child processes are real."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from auditord.contexts.command import run_command
from auditord.testing import FakePluginContext
from auditord_hookspecs import CommandResult


@dataclass
class RealCommands(FakePluginContext):
    """Its child processes are real."""

    timeouts: list[timedelta] = field(default_factory=list[timedelta])

    async def run_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int = 2**28,
    ) -> CommandResult:
        self.timeouts.append(timeout)
        return await run_command(argv, timeout=timeout, environment=environment, through=through, max_output=max_output)
