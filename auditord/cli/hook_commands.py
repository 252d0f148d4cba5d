"""Commands that hook modules provide, listed without importing those that are deferred."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import click

from auditord.cli.frame import Provided
from auditord.cli.installation import readable_disabled_hooks
from auditord.errors import HookError
from auditord.hooks import Hooks, survey
from auditord.hooks.entries import HookEntry, HookModule
from auditord.hooks.hooks import declared_by, implementations
from auditord_hookspecs import Deferred
from auditord_hookspecs.terminal import say

_HOOK = "auditord_commands"
_HELP_LENGTH = 80


def provided_commands(taken: Collection[str]) -> Mapping[str, Provided]:
    """The commands by name; a fault of a module goes to standard error, and costs no other module's commands.

    Args:
        taken: the names of the host's own commands.
    """
    disabled, _ = readable_disabled_hooks()  # a command says so as soon as it needs the configuration; --help does not
    found = survey(disabled)
    commands: dict[str, Provided] = {}
    faults = list(found.faults)
    for module, command in _declared(found.hooks, faults):
        if reason := _unusable(command, {*taken, *commands}):
            faults.append(f"{module} {reason}")
        else:
            commands[command.name] = _from_module(module, command)
    for fault in faults:
        say(f"auditord: {fault}", err=True)
    return commands


def _declared(hooks: Hooks, faults: list[str]) -> Iterator[tuple[HookModule, Any]]:
    for module, implementation in implementations(hooks.manager, hooks.modules, _HOOK):
        try:
            yield from ((module, command) for command in declared_by(module, implementation, {}))
        except HookError as error:
            faults.append(str(error))


def _from_module(module: HookModule, command: click.Command | Deferred[click.Command]) -> Provided:
    if isinstance(command, Deferred):
        return Provided(command.help, partial(_loaded, module, command))
    return Provided(command.get_short_help_str(_HELP_LENGTH), lambda: command)


def _loaded(module: HookModule, deferred: Deferred[click.Command]) -> click.Command:
    command = HookEntry(module, deferred.load).import_module()
    if not isinstance(command, click.Command):
        raise HookError(f"{module} declares the command '{deferred.name}', which loads as {command!r}")
    return command


def _unusable(command: Any, taken: Collection[str]) -> str | None:  # Any: what a hook module yielded
    if not isinstance(command, (click.Command, Deferred)):
        return f"declares {command!r} among its commands: yield click commands"
    if not command.name:
        return "declares a command without a name"
    return f"brings the command '{command.name}', which is there already" if command.name in taken else None
