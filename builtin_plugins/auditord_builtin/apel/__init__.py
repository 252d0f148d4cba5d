"""Reports usage to EGI's accounting, APEL."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import click
from prometheus_client.registry import Collector

from auditord_builtin.apel.commands import KIND, apel_command
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.importing import import_config
from auditord_builtin.apel.metrics import INSTRUMENTS
from auditord_builtin.apel.publishing import run_apel
from auditord_hookspecs import Daemon, PluginKind, hookimpl

__all__ = ["APEL", "ApelConfig", "auditord_commands", "auditord_metrics", "auditord_plugins"]

INTERVAL: Final = timedelta(hours=6)
"""A report a day is enough; a run that met a broker that was away is made up for sooner."""

APEL = PluginKind(name=KIND, config=ApelConfig, run=run_apel, interval=INTERVAL, import_config=import_config)


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[ApelConfig]]:
    """Bring the kind ``apel``."""
    yield APEL


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """Bring ``auditord apel``."""
    yield apel_command


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """Bring the instruments."""
    del daemon
    return INSTRUMENTS
