"""Commands that hook modules add to ``auditord``, and their context.

::

    @click.command("pages")
    @click.argument("instance", required=False)
    @pass_context
    def pages_command(context: CommandContext, instance: str | None) -> None:
        \"\"\"Show what a run would report.\"\"\"
        run_instance(context, "pages", instance, report_pages, dry_run=True)
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import click

from auditord_hookspecs.contexts import PluginContext

P = ParamSpec("P")
T = TypeVar("T")


class CommandContext(Protocol):
    """The context of a command. It reads and opens things only on first use, so that ``--help`` always works."""

    @property
    def state_dir(self) -> Path:
        """The daemon's folder, for the hook module's own files."""
        ...

    def roles(self) -> Collection[str]:
        """Return the names of all roles: those of ``access.roles`` and the predefined ones."""
        ...

    def now(self) -> datetime:
        """Return the current time (aware)."""
        ...

    def instances(self, kind: str) -> Sequence[str]:
        """Return the names of a kind's configured plugins, including disabled ones."""
        ...

    def choose(self, kind: str, name: str | None) -> str:
        """Return the named plugin, or the only one of its kind.

        Raises:
            click.UsageError: the kind has no such plugin, or none or several if no name is given. The text lists them.
        """
        ...

    def instance(self, name: str, *, dry_run: bool = False) -> AbstractAsyncContextManager[tuple[Any, PluginContext]]:
        """Open a plugin: its configuration, and a context with its records and state.

        A current run of the plugin is awaited first, and no other run begins until the block is left, here or in a
        daemon. A dry run saves no state, so it neither waits nor excludes other runs.
        """
        ...

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the same kind of event loop as the daemon's, and return its result.

        An :class:`auditord_hookspecs.AuditordError` ends the command with its text and its ``exit_status``.
        """
        ...


def pass_context(command: Callable[Concatenate[CommandContext, P], T]) -> Callable[P, T]:
    """Pass the :class:`CommandContext` to a click command as its first argument.

    Tests pass their own as ``obj``: ``CliRunner().invoke(pages_command, ["office"], obj=command_context)``.
    """

    @wraps(command)
    def with_context(*args: P.args, **kwargs: P.kwargs) -> T:
        return command(click.get_current_context().find_root().obj, *args, **kwargs)

    return with_context


def run_instance(
    context: CommandContext,
    kind: str,
    name: str | None,
    act: Callable[[Any, PluginContext], Awaitable[T]],  # Any: the kind's own model
    *,
    dry_run: bool = False,
) -> T:
    """Call ``act`` with the options and the context of the named plugin, or of the only one of its kind."""
    chosen = context.choose(kind, name)

    async def main() -> T:
        async with context.instance(chosen, dry_run=dry_run) as (config, plugin_context):
            return await act(config, plugin_context)

    return context.run(main)
