"""Sender ``remote``: ships the send-queue to another auditord or AUDITOR, over AUDITOR's wire contract.

Plugin ``site_report``: compares the records here with those at another auditord, the hub.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from auditord_hookspecs import Deferred, PluginKind, SenderKind, hookimpl

if TYPE_CHECKING:  # only the daemon has prometheus_client loaded
    from prometheus_client.registry import Collector


@hookimpl
def auditord_senders() -> Iterable[Deferred[SenderKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("remote", "auditord_builtin.remote.delivery:REMOTE")


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    """Declare the kind ``site_report``."""
    yield Deferred.at("site_report", "auditord_builtin.remote.site_report:KIND")


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    """Declare the gauges of ``site_report``."""
    from auditord_builtin.remote.site_report import INSTRUMENTS  # noqa: PLC0415 only the daemon needs it

    return INSTRUMENTS
