"""The hooks of the plugin ``waldur``, which reports the usage of accounts and users to Waldur.

The implementation is imported only when the plugin is configured or the command is used: ``reporting`` has the runs,
``commands`` the command, ``state`` the panel.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from auditord_hookspecs import Deferred, Panel, PanelContext, PanelPart, Permission, PluginKind, hookimpl

if TYPE_CHECKING:  # only the daemon has metrics
    from prometheus_client.registry import Collector


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("waldur", "auditord_builtin.waldur.reporting:WALDUR")


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    summary = "Report usage to Waldur, and see where its amounts come from."
    yield Deferred.at("waldur", "auditord_builtin.waldur.history:waldur_command", summary)  # history adds load-history


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    from auditord_builtin.waldur.metrics import INSTRUMENTS  # noqa: PLC0415 only the daemon needs it

    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    yield Panel("waldur_resources", "Waldur", _show_resources, "waldur", whole=True, permission=Permission.OPERATE)


async def _show_resources(context: PanelContext) -> Sequence[PanelPart]:
    from auditord_builtin.waldur.state import show_resources  # noqa: PLC0415 2 MB, which few daemons need

    return await show_resources(context)
