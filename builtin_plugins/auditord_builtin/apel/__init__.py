"""Reports usage to EGI's accounting, APEL.

The path from a scheduled run to a message:

1. :mod:`publishing` declares the kind and runs it: site by site, then month by month (or day by day).
2. :mod:`reporting` (summaries) and :mod:`jobs` (individual jobs) compare the store with the saved :mod:`state` and
report the differences.
3. :mod:`questions` queries the store for sums, and :mod:`summaries` turns them into rows (:mod:`accelerators`: into
messages).
4. :mod:`messages` writes rows as text, and :mod:`validation` finds what APEL would refuse.
5. :mod:`sending` signs messages with the host's certificate and publishes them to the broker.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from auditord_hookspecs import Deferred, Panel, PanelContext, PanelPart, PluginKind, hookimpl

if TYPE_CHECKING:  # only the daemon has metrics
    from prometheus_client.registry import Collector


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("apel", "auditord_builtin.apel.publishing:APEL")


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    yield Deferred.at(
        "apel",
        "auditord_builtin.apel.commands:apel_command",
        "Report usage to EGI's accounting, APEL.",
    )


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    from auditord_builtin.apel.metrics import INSTRUMENTS  # noqa: PLC0415 only the daemon needs it

    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    yield Panel("apel_months", "Months at APEL", _show_months, "apel", whole=True)


async def _show_months(context: PanelContext) -> Sequence[PanelPart]:
    from auditord_builtin.apel.state import show_months  # noqa: PLC0415 5 MB, which few daemons need

    return await show_months(context)
