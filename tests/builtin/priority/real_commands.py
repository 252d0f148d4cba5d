"""A context whose child processes are real."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from auditord.contexts.instances import CommandRunner
from auditord.testing import FakePluginContext
from auditord_hookspecs import CommandResult


@dataclass
class RealCommands(FakePluginContext):
    """Its child processes are real."""

    timeouts: list[timedelta] = field(default_factory=list[timedelta])

    async def run_command(self, argv: Sequence[str], *, timeout: timedelta, **options: Any) -> CommandResult:
        self.timeouts.append(timeout)
        return await CommandRunner().run_command(argv, timeout=timeout, **options)
