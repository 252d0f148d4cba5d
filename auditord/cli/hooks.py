"""``auditord hooks``, which lists the hook modules, and the commands that hook modules provide.

Both work even if a module is broken, and report it.
"""

import json
from collections.abc import Collection, Mapping
from functools import partial

import click

from auditord.cli.frame import LONGEST_SUMMARY, Provided
from auditord.cli.installation import readable_disabled_hooks
from auditord.cli.tables import new_table, print_table
from auditord.errors import HookError
from auditord.hooks import HookModule, find_broken_kinds, survey
from auditord.hooks.hooks import HookEntry, collect_declared, implementations
from auditord.hooks.loading import WAY_OUT
from auditord_hookspecs import Deferred
from auditord_hookspecs.contract import CONTRACT, DECLARED_AS
from auditord_hookspecs.terminal import say, write


@click.command("hooks")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def hooks_command(output: str) -> None:
    """List the hook modules: where they come from and which hooks they implement.

    A module that cannot be used is reported on standard error, and the exit code is 1.
    """
    disabled, faults = readable_disabled_hooks()
    found = survey(disabled)
    modules = [*found.hooks.modules, *found.disabled]
    rows = [
        {
            "name": module.name,
            "module": module.module,
            "distribution": module.distribution,
            "version": module.version,
            "hooks": list(module.hooks),
            "contract": module.contract,
            "disabled": module in found.disabled,
        }
        for module in modules
    ]
    if output == "json":
        write(json.dumps(rows, indent=2) + "\n")
    else:
        table = new_table("name", "module", "distribution", "version", "hooks")
        for module in modules:
            hooks = "(disabled)" if module in found.disabled else ", ".join(module.hooks)
            table.add_row(module.name, module.module, module.distribution, module.version, hooks)
        print_table(table)
    for module in found.hooks.modules:
        if module.contract is None and module.distribution != "auditord":
            text = f'declares no {DECLARED_AS}, and counts as written for 1.0: add {DECLARED_AS} = "{CONTRACT}"'
            say(f"remark: {module} {text}, or an earlier version that it needs", err=True)
    if faults := [*faults, *found.faults, *find_broken_kinds(found.hooks.kinds)]:
        raise HookError("\n  ".join(["faults were found:", *faults, f"({WAY_OUT})"]))


_HOOK = "auditord_commands"


def find_commands(taken: Collection[str]) -> Mapping[str, Provided]:
    """Return the commands of hook modules by name. A faulty module is reported on standard error and skipped."""
    disabled, _ = readable_disabled_hooks()  # a faulty configuration must not break --help
    found = survey(disabled)
    commands: dict[str, Provided] = {}
    faults = list(found.faults)
    for module, implementation in implementations(found.hooks.manager, found.hooks.modules, _HOOK):
        try:
            for command in collect_declared(module, implementation, {}):
                if not isinstance(command, (click.Command, Deferred)):
                    faults.append(f"{module} declares {command!r} among its commands: yield click commands")
                elif not command.name:
                    faults.append(f"{module} declares a command without a name")
                elif command.name in {*taken, *commands}:
                    faults.append(f"{module} declares the command '{command.name}', which already exists")
                else:
                    text = command.get_short_help_str(LONGEST_SUMMARY) if isinstance(command, click.Command) else None
                    commands[command.name] = Provided(text or command.help or "", partial(_load, module, command))
        except HookError as error:
            faults.append(str(error))
    for fault in faults:
        say(f"auditord: {fault}", err=True)
    return commands


def _load(module: HookModule, declared: click.Command | Deferred[click.Command]) -> click.Command:
    if isinstance(declared, click.Command):
        return declared
    command = HookEntry(module, declared.load).import_module()
    if not isinstance(command, click.Command):
        raise HookError(f"{module} declares the command '{declared.name}', which loads as {command!r}")
    return command
