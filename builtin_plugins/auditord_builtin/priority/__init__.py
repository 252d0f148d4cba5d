"""Plugin ``priority``: turns the usage of groups into their priorities in the batch system."""

import shlex
import shutil
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from prometheus_client.registry import Collector

from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.importing import import_config
from auditord_builtin.priority.metrics import INSTRUMENTS
from auditord_builtin.priority.running import set_priorities
from auditord_hookspecs import Context, Daemon, PluginKind, hookimpl
from auditord_hookspecs.checks import Finding, Severity


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:  # Any: each kind has its own configuration model
    """Declare the plugin."""
    yield PluginKind(
        name="priority", config=PriorityConfig, run=set_priorities, import_config=import_config, check=check
    )


async def check(config: PriorityConfig, _: Context) -> AsyncGenerator[Finding, None]:
    """Look for the programs that set priorities; none is run, since only its author knows what it does then."""
    for program in dict.fromkeys(shlex.split(command)[0] for command in config.commands):
        if shutil.which(program) is None:
            yield Finding(Severity.FAILURE, program, "there is no such program", "install it, or name its path")
        else:
            yield Finding(Severity.OK, program, "it is there")


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """Declare its metrics."""
    del daemon
    return INSTRUMENTS
