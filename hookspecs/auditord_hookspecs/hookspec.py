"""The hooks of auditord. A module in entry-point group ``auditord.hooks`` implements any of them with :data:`hookimpl`.

There are two families. *Declarations* tell what a module provides: plain functions, called once at start-up, that yield
frozen values. *Events* report that something happened: ``async def`` functions, each awaited with its own error
handling and time limit. The loader refuses an implementation of the wrong form.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
import pluggy
from pydantic import SecretStr

from auditord_hookspecs.access import AuthenticatorKind
from auditord_hookspecs.batches import RunReport
from auditord_hookspecs.contexts import Daemon
from auditord_hookspecs.deferred import Deferred
from auditord_hookspecs.importers import ImporterKind
from auditord_hookspecs.kinds import CollectorKind, PluginKind, SenderKind
from auditord_hookspecs.panels import Panel
from auditord_hookspecs.transforms import TransformKind

if TYPE_CHECKING:  # the daemon alone has metrics
    from prometheus_client.registry import Collector

PROJECT = "auditord"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def auditord_collectors() -> Iterable[CollectorKind[Any] | Deferred[CollectorKind[Any]]]:  # Any: its model
    """Bring kinds of collectors. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_collectors():
            yield CollectorKind(name="printers", config=PrintersConfig, collect=collect_pages)
    """
    raise NotImplementedError


@hookspec
def auditord_plugins() -> Iterable[PluginKind[Any] | Deferred[PluginKind[Any]]]:  # Any: its model
    """Bring kinds of plugins. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_plugins():
            yield PluginKind(name="open_records", config=OpenRecordsConfig, run=report_open_records)
    """
    raise NotImplementedError


@hookspec
def auditord_senders() -> Iterable[SenderKind[Any] | Deferred[SenderKind[Any]]]:  # Any: its model
    """Bring kinds of senders. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_senders():
            yield SenderKind(name="local", config=LocalConfig, open=open_store)
    """
    raise NotImplementedError


@hookspec
def auditord_authenticators() -> Iterable[AuthenticatorKind[Any] | Deferred[AuthenticatorKind[Any]]]:  # Any: its model
    """Bring kinds of authenticators: ways to prove who one is. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_authenticators():
            yield AuthenticatorKind(name="badges", config=BadgesConfig, open=open_badges, roles=badge_roles)
    """
    raise NotImplementedError


@hookspec
def auditord_record_transforms() -> Iterable[TransformKind[Any] | Deferred[TransformKind[Any]]]:  # Any: its model
    """Bring kinds of changes that every record meets before it is kept. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_record_transforms():
            yield TransformKind(name="renamed_sites", config=RenamedConfig, make=rename_sites)
    """
    raise NotImplementedError


@hookspec
def auditord_importers() -> Iterable[ImporterKind[Any] | Deferred[ImporterKind[Any]]]:  # Any: its model
    """Bring kinds of accounting systems whose records ``auditord import KIND`` takes over.

    Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_importers():
            yield ImporterKind(name="ledger", title="Ledger", config=LedgerOptions, open=open_ledger)
    """
    raise NotImplementedError


@hookspec
def auditord_commands() -> Iterable[click.Command | Deferred[click.Command]]:
    """Bring commands and groups of commands for ``auditord``; they work beside a running daemon and without one.

    Called when a command is looked for that auditord itself does not have, and for ``auditord --help``. Open nothing
    here: :mod:`auditord_hookspecs.commands` describes a command's context.

    Example::

        @hookimpl
        def auditord_commands():
            yield pages_command
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def auditord_resolve_secret(reference: str) -> SecretStr | None:
    """Fetch the secret that a reference in the configuration points to, or None if it is not yours.

    Called while the configuration is read, for every secret option.

    Args:
        reference: the text in the configuration, such as ``file:/run/secrets/db`` or ``env:DB_PASSWORD``.

    Raises:
        ValueError: the reference is yours and cannot be resolved; the text says why.

    Example::

        @hookimpl
        def auditord_resolve_secret(reference):
            if reference.startswith("vault:"):
                return SecretStr(read_vault(reference.removeprefix("vault:")))
            return None
    """
    raise NotImplementedError


@hookspec
def auditord_panels() -> Iterable[Panel]:
    """Bring panels for the page. Called after the configuration, before the first run, if there is a page.

    Example::

        @hookimpl
        def auditord_panels():
            yield Panel("pages", "Printed pages", show_pages)
    """
    raise NotImplementedError


@hookspec
def auditord_metrics(daemon: Daemon) -> "Iterable[Collector]":
    """Bring Prometheus collectors for ``/metrics``. Called after the configuration, before the first run.

    Args:
        daemon: the daemon that is starting.

    Example::

        @hookimpl
        def auditord_metrics(daemon):
            yield PAGES_PRINTED
    """
    raise NotImplementedError


@hookspec
async def auditord_run_finished(daemon: Daemon, report: RunReport) -> None:
    """Receive the report of a finished run of a collector or plugin, successful or not.

    Args:
        daemon: the running daemon.
        report: which instance ran, when, for how long, and with which result.

    Example::

        @hookimpl
        async def auditord_run_finished(daemon, report):
            if report.error:
                await page_the_operator(f"{report.task}: {report.error}")
    """
    raise NotImplementedError
