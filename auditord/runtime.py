"""The parts of a process that owns a state folder, built on its open storage."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import SystemRandom
from typing import Final

from prometheus_client import CollectorRegistry

from auditord import __version__
from auditord.actions import RUN_SECTIONS, Actions, Section
from auditord.audit.site_reports import SiteReports
from auditord.config.model import Configuration
from auditord.contexts.instances import StoreSenderContext
from auditord.contexts.plugins import HostDaemon, Memories, Panels, find_panels
from auditord.errors import HookError
from auditord.health import Health
from auditord.hooks import Hooks
from auditord.ingest import Ingest, StoreSink
from auditord.lake.running import lake_plugins
from auditord.metrics import TaskMetrics
from auditord.storage import Storage
from auditord.store.reading import StoredRecords
from auditord.tasks.audits import Audits
from auditord.tasks.demands import OnDemand, RecordEditor, Retries
from auditord.tasks.instances import Instances
from auditord.tasks.runs import Clock, Listener, RunReporter, log_run
from auditord.tasks.senders import Grace, SendLoop, SendReporter, sending
from auditord_hookspecs import RunReport

RANDOM: Final = SystemRandom()  # jitter spreads many hosts, so it must not come from a shared seed


class Runtime:
    """The parts that act on the storage: ingest, instances, senders, clock, health and metrics."""

    def __init__(
        self, configuration: Configuration, hooks: Hooks, storage: Storage, now: Callable[[], datetime]
    ) -> None:
        self.configuration: Final = configuration
        self.hooks: Final = hooks
        self.storage: Final = storage
        self.now: Final = now
        store, spool = storage.store, storage.spool
        queue_updates = configuration.api.updates_while_away == "queue"
        self.ingest: Final = Ingest(
            store, spool, storage.local_senders, queue_updates=queue_updates, transform=storage.transform
        )
        self.registry: Final = CollectorRegistry()
        self.clock: Final = Clock(RANDOM.random)
        self.health: Final = Health(spool.check, self.clock.next_run)
        self._metrics = TaskMetrics(self.registry)
        self.site_reports: Final = SiteReports()
        own = lake_plugins(storage.store, storage.lake, configuration.lake, self.registry)
        self.instances: Final = Instances(configuration, hooks.kinds, storage, self._metrics, now, own=own)
        self.send_loops: Final[dict[str, SendLoop]] = {}
        self._daemon = HostDaemon(__version__, StoredRecords(store))
        self._reporter = RunReporter(self.health, spool, hooks, self._daemon, now)

    async def listeners(self, write: Callable[[str, RunReport], None]) -> dict[Section, Listener]:
        """Start to watch all instances; return a listener by section. ``write`` gets section and report of a run."""
        watch, instances = self._reporter.watch, self.instances
        return {section: await watch(section, instances.select_enabled(section), write) for section in RUN_SECTIONS}

    async def watch_again(self, section: Section, name: str) -> None:
        """Watch an instance again after a reload replaced it, or stop watching it if it was disabled."""
        self.health.forget(section, name)
        if (entry := self.instances.select_enabled(section).get(name)) is not None:
            await self._reporter.watch(section, {name: entry}, log_run)

    def actions(self, listeners: dict[Section, Listener]) -> Actions:
        editor = RecordEditor(self.storage.store, self.now, self.storage.transform, self.ingest.waiting)
        retries, audits = Retries(self.instances, self.storage), Audits(self.instances, self.storage)
        return OnDemand(self.instances, listeners, editor, retries, audits)

    def sending(self) -> AbstractAsyncContextManager[Grace]:
        """Run the senders within the context. On exit, they drain the queue within ``shutdown.grace``."""
        sink = StoreSink(self.storage.store, self.now, self.configuration.api.duplicates, self.storage.pairing)
        for name, (kind, config) in self.storage.senders.items():
            self.send_loops[name] = SendLoop(
                name,
                kind,
                config,
                StoreSenderContext(name, kind.name, self.now, store=sink),
                spool=self.storage.spool,
                listener=SendReporter(name, kind.name, self.health, self._metrics, self.now),
                now=self.now,
                random=RANDOM.random,
            )
        return sending(self.storage, list(self.send_loops.values()), self.configuration.shutdown.grace)

    def panels(self) -> Panels:
        """Return the panels of hook modules.

        Raises:
            HookError: a module declares an invalid panel, or fails.
        """
        memories = Memories(self.storage.store, self.storage.spool)
        return Panels(find_panels(self.hooks), self.instances.select_enabled, memories)

    def register_hook_metrics(self) -> None:
        """Register the metrics of hook modules.

        Raises:
            HookError: two metrics have the same name.
        """
        for module, instrument in self.hooks.declarations("auditord_metrics", daemon=self._daemon):
            try:
                self.registry.register(instrument)
            except ValueError as error:
                raise HookError(f"{module}: {error}; metrics of two modules must have different names") from error
