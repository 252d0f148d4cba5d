"""The declaration of the kind ``priority``."""

import shlex
import shutil
from collections.abc import AsyncGenerator
from typing import Final

from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.importing import import_config
from auditord_builtin.priority.running import set_priorities
from auditord_hookspecs import Context, PluginKind
from auditord_hookspecs.checks import Finding, Severity


async def check(config: PriorityConfig, _: Context) -> AsyncGenerator[Finding, None]:
    """Look for the programs that set priorities; none is run, since only its author knows what it does then."""
    for program in dict.fromkeys(shlex.split(command)[0] for command in config.commands):
        if shutil.which(program) is None:
            yield Finding(Severity.FAILURE, program, "there is no such program", "install it, or name its path")
        else:
            yield Finding(Severity.OK, program, "it is there")


PRIORITY: Final = PluginKind(
    name="priority",
    config=PriorityConfig,
    run=set_priorities,
    import_config=import_config,
    check=check,
)
