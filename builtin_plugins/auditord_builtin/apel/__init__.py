"""Reports usage to EGI's accounting, APEL.

From a tick to a message, file by file:

1. :mod:`publishing` runs: site by site, month by month (or day by day), keeping one fault from another.
2. :mod:`summary_reporting` or :mod:`job_reporting` say what is due (:mod:`reporting` is what both share), by comparing
   the store with the saved :mod:`state`.
3. :mod:`questions` asks the store and reads configured :mod:`fields` in its answer; :mod:`summaries` and
   :mod:`accelerators` add up :mod:`rows`, :mod:`jobs` makes a row of each record.
4. :mod:`messages` writes rows as text (:mod:`text` has the rules of values), :mod:`validation` finds what APEL would
   refuse by its :mod:`rules`.
5. :mod:`sending` signs with the host's :mod:`certificate` and publishes through the :mod:`broker`.

Beside them: :mod:`config`, :mod:`importing` and :mod:`client_files`, :mod:`months`, :mod:`infrastructure`,
:mod:`metrics`, and :mod:`commands` with :mod:`showing`.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from auditord_hookspecs import Deferred, Panel, PanelContext, PanelPart, PluginKind, hookimpl

if TYPE_CHECKING:  # the daemon alone has metrics
    from prometheus_client.registry import Collector


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    """The kind ``apel``."""
    yield Deferred("apel", partial(resolve_name, "auditord_builtin.apel.publishing:APEL"))


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    """``auditord apel``."""
    yield Deferred(
        "apel",
        partial(resolve_name, "auditord_builtin.apel.commands:apel_command"),
        "Report usage to EGI's accounting, APEL.",
    )


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    """The metrics."""
    from auditord_builtin.apel.metrics import INSTRUMENTS  # noqa: PLC0415 of the daemon alone

    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """The panel of each instance."""
    yield Panel("apel_months", "Months at APEL", _show_months, "apel", whole=True)


async def _show_months(context: PanelContext) -> Sequence[PanelPart]:
    from auditord_builtin.apel.showing import show_months  # noqa: PLC0415 5 MB, which few daemons need

    return await show_months(context)
