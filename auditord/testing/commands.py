"""A stand-in for the context of the commands of hook modules."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click

from auditord.testing.contexts import FakePluginContext
from auditord_hookspecs import InstanceConfig, PluginContext
from auditord_hookspecs.terminal import say_lines

T = TypeVar("T")


@dataclass
class FakeCommandContext:
    """Plugins that a test configures, each over the same records; hand it to click's runner as ``obj``.

    Args:
        plugins: kind and configuration by instance.
        plugin_context: the context of every plugin; its instance and dry run are set when one is opened.
    """

    plugins: dict[str, tuple[str, InstanceConfig]] = field(default_factory=dict[str, tuple[str, InstanceConfig]])
    plugin_context: FakePluginContext = field(default_factory=FakePluginContext)
    opened: list[str] = field(default_factory=list[str])
    state_dir: Path = Path("/nonexistent")
    known_roles: Collection[str] = ("reader", "writer")

    def roles(self) -> Collection[str]:
        """The names of all roles."""
        return self.known_roles

    def now(self) -> datetime:
        """The present instant of the plugins."""
        return self.plugin_context.now()

    def instances(self, kind: str) -> Sequence[str]:
        """The plugins of a kind."""
        return [name for name, (its_kind, _) in self.plugins.items() if its_kind == kind]

    def chosen(self, kind: str, name: str | None) -> str:
        """The named one, or the only one."""
        there = self.instances(kind)
        if name is None and len(there) == 1:
            return there[0]
        if name is None or name not in there:
            raise click.UsageError(f"no plugin {name or ''} of kind {kind}; there are: {', '.join(there)}")
        return name

    @asynccontextmanager
    async def instance(
        self, name: str, *, dry_run: bool = False
    ) -> AsyncGenerator[tuple[Any, PluginContext], None]:  # Any: the kind's own model
        """The plugin's configuration and the context; what it shows is printed when it is left."""
        self.opened.append(name)
        context = self.plugin_context
        context.instance, context.dry_run = name, dry_run
        before = len(context.shown)
        yield self.plugins[name][1], context
        for text in context.shown[before:]:
            say_lines(text)

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function."""
        return anyio.run(main)
