"""Plugin ``utilisation``: reports the usage of sites, groups and users as a CSV file and mails, once a month or week.

``running`` declares the kind and reports the periods that are due. ``state`` records which were reported and mailed.
``usage`` queries the store for sums, ``report`` turns them into tables and pages, and ``mail`` sends them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from auditord_hookspecs import Deferred, Panel, PluginKind, hookimpl

if TYPE_CHECKING:  # only the daemon has metrics
    from prometheus_client.registry import Collector


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("utilisation", "auditord_builtin.utilisation.running:UTILISATION")


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    yield Deferred.at(
        "report",
        "auditord_builtin.utilisation.commands:report_group",
        "Show resource usage.",
    )


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    """Declare the outcomes of mails, and the end of the last reported period."""
    from auditord_builtin.utilisation.state import INSTRUMENTS  # noqa: PLC0415 only the daemon needs it

    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    from auditord_builtin.utilisation.state import show_reports  # noqa: PLC0415 only the page needs it

    yield Panel("utilisation_reports", "Utilisation reports", show_reports, "utilisation", whole=True)
