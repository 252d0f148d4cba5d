"""The hooks of auditord. A module in the entry-point group ``auditord.hooks`` implements them with :data:`hookimpl`.

There are two families. *Declarations* describe what a module provides: they are plain functions, called once at
start-up, that yield frozen values. *Events* report that something happened: they are ``async def`` functions, each
awaited with its own error handling and time limit. The loader refuses an implementation of the wrong form.
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

if TYPE_CHECKING:  # only the daemon needs prometheus_client
    from prometheus_client.registry import Collector

PROJECT = "auditord"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a hook module as the implementation of a hook."""


@hookspec
def auditord_collectors() -> Iterable[CollectorKind[Any] | Deferred[CollectorKind[Any]]]:  # Any: its model
    """Declare kinds of collectors. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_collectors():
            yield CollectorKind(name="printers", config=PrintersConfig, collect=collect_pages)
    """
    raise NotImplementedError


@hookspec
def auditord_plugins() -> Iterable[PluginKind[Any] | Deferred[PluginKind[Any]]]:  # Any: its model
    """Declare kinds of plugins. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_plugins():
            yield PluginKind(name="open_records", config=OpenRecordsConfig, run=report_open_records)
    """
    raise NotImplementedError


@hookspec
def auditord_senders() -> Iterable[SenderKind[Any] | Deferred[SenderKind[Any]]]:  # Any: its model
    """Declare kinds of senders. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_senders():
            yield SenderKind(name="local", config=LocalConfig, open=open_store)
    """
    raise NotImplementedError


@hookspec
def auditord_authenticators() -> Iterable[AuthenticatorKind[Any] | Deferred[AuthenticatorKind[Any]]]:  # Any: its model
    """Declare kinds of authenticators, which identify the callers of the API. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_authenticators():
            yield AuthenticatorKind(name="badges", config=BadgesConfig, open=open_badges, roles=badge_roles)
    """
    raise NotImplementedError


@hookspec
def auditord_record_transforms() -> Iterable[TransformKind[Any] | Deferred[TransformKind[Any]]]:  # Any: its model
    """Declare transforms, which change every record before it is stored. Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_record_transforms():
            yield TransformKind(name="renamed_sites", config=RenamedConfig, make=rename_sites)
    """
    raise NotImplementedError


@hookspec
def auditord_importers() -> Iterable[ImporterKind[Any] | Deferred[ImporterKind[Any]]]:  # Any: its model
    """Declare kinds of accounting systems whose records ``auditord import KIND`` imports.

    Called before the configuration is read.

    Example::

        @hookimpl
        def auditord_importers():
            yield ImporterKind(name="ledger", title="Ledger", config=LedgerOptions, open=open_ledger)
    """
    raise NotImplementedError


@hookspec
def auditord_commands() -> Iterable[click.Command | Deferred[click.Command]]:
    """Add commands and groups of commands to ``auditord``. They work with or without a running daemon.

    Called for commands that auditord itself does not have, and for ``auditord --help``. Do not open files or
    connections here; :mod:`auditord_hookspecs.commands` describes the context of a command.

    Example::

        @hookimpl
        def auditord_commands():
            yield pages_command
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def auditord_resolve_secret(reference: str) -> SecretStr | None:
    """Return the secret behind a reference in the configuration, or None if the reference is not yours.

    Called while the configuration is read, for every option of type ``Secret``.

    Args:
        reference: the text in the configuration, such as ``file:/run/secrets/db`` or ``env:DB_PASSWORD``.

    Raises:
        ValueError: the reference is yours but cannot be resolved; the message says why.

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
    """Declare panels for the page. Called after the configuration is read, before the first run, if there is a page.

    Example::

        @hookimpl
        def auditord_panels():
            yield Panel("pages", "Printed pages", show_pages)
    """
    raise NotImplementedError


@hookspec
def auditord_metrics(daemon: Daemon) -> "Iterable[Collector]":
    """Return Prometheus collectors for ``/metrics``. Called after the configuration is read, before the first run.

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
        report: the instance, start, duration and result of the run.

    Example::

        @hookimpl
        async def auditord_run_finished(daemon, report):
            if report.error:
                await page_the_operator(f"{report.task}: {report.error}")
    """
    raise NotImplementedError
