"""Commands that hook modules bring; whatever is wrong with a module is told, and costs nobody else's commands."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import click

from auditord.cli.command_context import HostCommandContext
from auditord.cli.frame import config_paths
from auditord.config.loading import disabled_hooks
from auditord.errors import ConfigurationError, HookError
from auditord.hooks import Hooks, survey
from auditord.hooks.entries import HookModule
from auditord.hooks.hooks import declared_by, implementations
from auditord_hookspecs.terminal import say

_HOOK = "auditord_commands"


def brought_commands(taken: Collection[str]) -> Mapping[str, click.Command]:
    """The commands by name; faults of modules go to standard error.

    Args:
        taken: the names of the host's own commands.
    """
    found = survey(_disabled())
    commands: dict[str, click.Command] = {}
    faults = list(found.faults)
    for module, command in _declared(found.hooks, faults):
        if reason := _unusable(command, {*taken, *commands}):
            faults.append(f"{module} {reason}")
        else:
            commands[command.name] = command
    for fault in faults:
        say(f"auditord: {fault}", err=True)
    return commands


def new_context() -> HostCommandContext:
    """What the commands are lent."""
    return HostCommandContext()


def _disabled() -> Sequence[str]:
    try:
        return disabled_hooks(config_paths(), os.environ)
    except ConfigurationError:  # the command itself says so as soon as it needs the configuration; --help does not
        return ()


def _declared(hooks: Hooks, faults: list[str]) -> Iterator[tuple[HookModule, Any]]:
    for module, implementation in implementations(hooks.manager, hooks.modules, _HOOK):
        try:
            yield from ((module, command) for command in declared_by(module, implementation, {}))
        except HookError as error:
            faults.append(str(error))


def _unusable(command: Any, taken: Collection[str]) -> str | None:  # Any: what a hook module yielded
    if not isinstance(command, click.Command):
        return f"declares {command!r} among its commands: yield click commands"
    if not command.name:
        return "declares a command without a name"
    return f"brings the command '{command.name}', which is there already" if command.name in taken else None
