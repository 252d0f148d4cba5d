"""Plugin ``utilisation``: the usage of sites, groups and users, as a CSV file and as mails, once a month or week.

``running`` is a run over the ``periods`` that are due, ``state`` what it remembers. ``question`` asks the store for
sums (``usage``; ``energy`` estimates what was not measured), ``report`` makes rows and notes of them, ``tables`` and
``page`` the texts. ``delivery`` sends them, ``mail`` speaks SMTP. ``commands`` is ``auditord report``, ``config`` has
the options, ``importing`` reads AUDITOR's.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click
from prometheus_client.registry import Collector

from auditord_hookspecs import Daemon, Deferred, Panel, PluginKind, hookimpl


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: of each kind's model
    """The kind ``utilisation``."""
    yield Deferred("utilisation", _utilisation)


def _utilisation() -> PluginKind[Any]:
    from auditord_builtin.utilisation.checking import check  # noqa: PLC0415 when it is configured
    from auditord_builtin.utilisation.config import UtilisationConfig  # noqa: PLC0415 the same
    from auditord_builtin.utilisation.importing import import_config  # noqa: PLC0415 the same
    from auditord_builtin.utilisation.running import run_utilisation  # noqa: PLC0415 the same

    return PluginKind(
        name="utilisation",
        config=UtilisationConfig,
        run=run_utilisation,
        interval=timedelta(hours=1),
        timeout=timedelta(hours=4),
        import_config=import_config,
        check=check,
    )


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    """``auditord report``."""
    yield Deferred("report", _command, "Show what was used.")


def _command() -> click.Command:
    from auditord_builtin.utilisation.commands import report_group  # noqa: PLC0415 when it is used

    return report_group


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """The outcomes of mails, and the end of the last reported period."""
    from auditord_builtin.utilisation.state import INSTRUMENTS  # noqa: PLC0415 of the daemon alone

    del daemon
    return INSTRUMENTS


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """The panel of each instance."""
    from auditord_builtin.utilisation.state import show_reports  # noqa: PLC0415 of the page alone

    yield Panel("utilisation_reports", "Utilisation reports", show_reports, "utilisation", whole=True)
