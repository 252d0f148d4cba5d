"""Plugin ``utilisation``: the usage of sites, groups and users, as a CSV file and as mails, once a month or week.

``running`` declares the kind and goes through the periods that are due; ``state`` remembers which were reported and
mailed. ``usage`` asks the store for sums, ``report`` turns them into tables and pages, and ``mail`` sends them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from auditord_hookspecs import Deferred, Panel, PluginKind, hookimpl

if TYPE_CHECKING:  # the daemon alone has metrics
    from prometheus_client.registry import Collector


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    """Declare the kind ``utilisation``."""
    yield Deferred.at("utilisation", "auditord_builtin.utilisation.running:UTILISATION")


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    """``auditord report``."""
    yield Deferred.at(
        "report",
        "auditord_builtin.utilisation.commands:report_group",
        "Show the used resources.",
    )


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    """Declare the outcomes of mails, and the end of the last reported period."""
    from auditord_builtin.utilisation.state import INSTRUMENTS  # noqa: PLC0415 of the daemon alone

    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """Declare the panel of each instance."""
    from auditord_builtin.utilisation.state import show_reports  # noqa: PLC0415 of the page alone

    yield Panel("utilisation_reports", "Utilisation reports", show_reports, "utilisation", whole=True)
