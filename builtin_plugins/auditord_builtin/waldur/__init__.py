"""Reports usage to Waldur: the consumption of each account and each user in a billing period."""

from collections.abc import Iterable

import click
from prometheus_client.registry import Collector

from auditord_builtin.waldur.commands import KIND, waldur_command
from auditord_builtin.waldur.config import INTERVAL, WaldurConfig
from auditord_builtin.waldur.diagnose_command import diagnose_command
from auditord_builtin.waldur.history_command import load_history_command
from auditord_builtin.waldur.importing import import_config
from auditord_builtin.waldur.metrics import INSTRUMENTS
from auditord_builtin.waldur.reporting import report_usage
from auditord_hookspecs import Daemon, PluginKind, hookimpl
from auditord_hookspecs.proposals import Host, Proposal

__all__ = ["WALDUR", "WaldurConfig", "auditord_commands", "auditord_metrics", "auditord_plugins"]


def detect(host: Host) -> Proposal | None:
    """The configuration of a site agent of Waldur's."""
    files = host.find("/etc/waldur/*.yaml", "/etc/waldur/*.yml")
    return Proposal(f"Waldur site agent, configured in {files[0].parent}", imports=files) if files else None


WALDUR = PluginKind(
    name=KIND,
    config=WaldurConfig,
    run=report_usage,
    interval=INTERVAL,
    import_config=import_config,
    detect=detect,
)


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[WaldurConfig]]:
    """Declare the kind ``waldur``."""
    yield WALDUR


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """Declare ``auditord waldur``."""
    waldur_command.add_command(load_history_command)
    waldur_command.add_command(diagnose_command)
    yield waldur_command


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """Declare the metrics."""
    del daemon
    return INSTRUMENTS
