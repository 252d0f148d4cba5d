"""The context of commands that hook modules provide (:mod:`auditord_hookspecs.commands`)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import click

from auditord.backup.notes import InstanceBackups
from auditord.cli.collect import Terminal
from auditord.cli.daemons import log_to_terminal
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.config.model import kind_of
from auditord.contexts.instances import InstanceContext, environment_of
from auditord.contexts.plugins import StateStore, open_plugin, remote_source
from auditord.errors import UnknownInstance
from auditord.lake.opening import lake_of
from auditord.spool import Spool
from auditord.spool.spool import FILE as SPOOL_FILE
from auditord.storage import open_for_preview, refuse_to_make_spool
from auditord.store.opening import open_store_for_reading
from auditord.store.reading import StoredRecords
from auditord_hookspecs import AuditordError, InstanceConfig, PluginContext

T = TypeVar("T")


class HostCommandContext:
    """Implements :class:`auditord_hookspecs.CommandContext`.

    Everything is opened beside a daemon that may be running: the records for reading only, and the plugin's state. The
    plugin's turn protects the state, instead of the state folder's lock.
    """

    @property
    def state_dir(self) -> Path:
        return self._installation.configuration.state_dir

    def roles(self) -> Collection[str]:
        return self._installation.configuration.access.known_roles().keys()

    def now(self) -> datetime:
        return utc_now()

    def instances(self, kind: str) -> Sequence[str]:
        plugins = self._installation.configuration.plugins
        return [name for name, config in plugins.items() if kind_of(config) == kind]

    def choose(self, kind: str, name: str | None) -> str:
        """Return the named plugin, or the only one of its kind.

        Raises:
            UsageError: no plugin has this name; or no name is given, and there is not exactly one plugin.
        """
        names = self.instances(kind)
        if name is None and len(names) == 1:
            return names[0]
        if name is not None and name in names:
            return name
        listed = f"there are: {', '.join(names)}" if names else f"none is configured (plugins.<name>.kind: {kind})"
        what = f"no plugin of kind {kind} is called '{name}'" if name else f"which plugin of kind {kind}?"
        raise click.UsageError(f"{what}; {listed}")

    @asynccontextmanager
    async def instance(
        self, name: str, *, dry_run: bool = False
    ) -> AsyncGenerator[tuple[Any, PluginContext], None]:  # Any: the kind's own model
        log_to_terminal()
        configuration = self._installation.configuration
        config = configuration.plugins.get(name)
        if config is None:
            raise UnknownInstance(f"no plugin '{name}' is configured")
        instance = InstanceContext(name, kind_of(config), utc_now, environment_of(config))
        backups = InstanceBackups(name, configuration, utc_now)
        opened = partial(open_plugin, dry_run=dry_run, observer=Terminal())
        async with (
            _open_states(self._installation, config, dry_run=dry_run) as (states, local),
            opened(instance, config, states, local, backups) as context,
        ):
            yield config, context

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function.

        Raises:
            AuditordError: also replaces an OSError, so that it is printed without a traceback.
        """
        try:
            return run_async(main)
        except OSError as error:
            raise AuditordError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _installation(self) -> Installation:
        return load_installation()


@asynccontextmanager
async def _open_states(
    installation: Installation, config: InstanceConfig, *, dry_run: bool
) -> AsyncGenerator[tuple[StateStore, StoredRecords | None], None]:
    """Yield the store of the plugin's state and, without a remote ``source``, the records; read-only for a dry run."""
    configuration, is_local = installation.configuration, remote_source(config) is None
    if dry_run:
        kinds = installation.hooks.kinds
        async with open_for_preview(configuration, kinds, utc_now, reads_store=is_local) as storage:
            yield (storage.store, StoredRecords(storage.store)) if is_local else (storage.spool, None)
    elif is_local:
        async with open_store_for_reading(configuration.store, with_memory=True) as store:
            with lake_of(store, configuration):
                yield store, StoredRecords(store)
    else:
        if not (configuration.state_dir / SPOOL_FILE).exists():
            await refuse_to_make_spool(configuration, utc_now())
        async with Spool.opened_beside(configuration.state_dir, utc_now) as spool:
            yield spool, None
