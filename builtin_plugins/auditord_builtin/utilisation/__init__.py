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

from auditord_builtin.utilisation.commands import KIND, report_group
from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.delivery import MAILS
from auditord_builtin.utilisation.importing import import_config
from auditord_builtin.utilisation.running import REPORTED, run_utilisation
from auditord_hookspecs import Daemon, PluginKind, hookimpl

UTILISATION = PluginKind(
    name=KIND,
    config=UtilisationConfig,
    run=run_utilisation,
    interval=timedelta(hours=1),
    timeout=timedelta(hours=4),
    import_config=import_config,
)


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:  # Any: each kind has its own configuration model
    """The kind ``utilisation``."""
    yield UTILISATION


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """``auditord report``."""
    yield report_group


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """The outcomes of mails, and the end of the last reported period."""
    del daemon
    return (MAILS, REPORTED)
