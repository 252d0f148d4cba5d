"""Plugin ``priority``: turns the usage of groups into their priorities in the batch system."""

from collections.abc import Iterable
from typing import Any

from prometheus_client.registry import Collector

from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.importing import import_config
from auditord_builtin.priority.metrics import INSTRUMENTS
from auditord_builtin.priority.running import set_priorities
from auditord_hookspecs import Daemon, PluginKind, hookimpl


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:  # Any: each kind has its own configuration model
    """Declare the plugin."""
    yield PluginKind(name="priority", config=PriorityConfig, run=set_priorities, import_config=import_config)


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """Declare its metrics."""
    del daemon
    return INSTRUMENTS
