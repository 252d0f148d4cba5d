"""Plugin ``priority``: turns the usage of groups into their priorities in the batch system."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from auditord_hookspecs import Deferred, Panel, PluginKind, hookimpl

if TYPE_CHECKING:  # only the daemon has metrics
    from prometheus_client.registry import Collector


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("priority", "auditord_builtin.priority.running:PRIORITY")


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    from auditord_builtin.priority.metrics import INSTRUMENTS  # noqa: PLC0415 only the daemon needs it

    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    from auditord_builtin.priority.running import show_priorities  # noqa: PLC0415 only the page needs it

    yield Panel("priorities", "Priorities", show_priorities, "priority", whole=True)
