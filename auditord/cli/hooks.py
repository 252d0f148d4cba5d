"""``auditord hooks``: which hook modules there are. Works whatever is broken, and says what is."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from auditord.cli.installation import readable_disabled_hooks
from auditord.cli.tables import new_table, print_table
from auditord.errors import HookError
from auditord.hooks import HookModule, broken_kinds, survey
from auditord.hooks.loading import WAY_OUT
from auditord_hookspecs.terminal import write


@click.command("hooks")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def hooks_command(output: str) -> None:
    """List the hook modules: where they come from and which hooks they implement.

    A module that cannot be used is reported on standard error, and the exit code is 1.
    """
    disabled, faults = readable_disabled_hooks()
    found = survey(disabled)
    modules = [*found.hooks.modules, *found.disabled]
    rows = [_row(module, module in found.disabled) for module in modules]
    write(json.dumps(rows, indent=2) + "\n") if output == "json" else _print_table(rows)
    if faults := [*faults, *found.faults, *broken_kinds(found.hooks.kinds)]:
        raise HookError("\n  ".join(["something is wrong:", *faults, f"({WAY_OUT})"]))


def _row(module: HookModule, disabled: bool) -> Mapping[str, Any]:  # noqa: FBT001 a column of the table
    return {
        "name": module.name,
        "module": module.module,
        "distribution": module.distribution,
        "version": module.version,
        "hooks": list(module.hooks),
        "disabled": disabled,
    }


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    table = new_table("name", "module", "distribution", "version", "hooks")
    for row in rows:
        hooks = "(disabled)" if row["disabled"] else ", ".join(row["hooks"])
        table.add_row(row["name"], row["module"], row["distribution"], row["version"], hooks)
    print_table(table)
