"""The loops that run instances, and the exchange of instances when the configuration is reloaded."""

import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from auditord.actions import RUN_SECTIONS, Section
from auditord.config.lake import LakeSection
from auditord.config.loading import ConfigurationFiles
from auditord.config.model import Configuration
from auditord.config.shown import Changes, NextRun, compare
from auditord.errors import StoreUnavailable
from auditord.tasks.instances import Instances, jitter, when
from auditord.tasks.runs import Backoff, Clock, Listener, first_tick, run_by_the_clock, run_continuously
from auditord.tasks.senders import SendLoop
from auditord_hookspecs import AuditordError, CollectorKind, InstanceConfig, PluginConfig, PluginKind


class _Loop(msgspec.Struct, frozen=True):
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    ended: anyio.Event = msgspec.field(default_factory=anyio.Event)


class Loops:
    """Runs enabled instances in a task group, by the clock or, for continuous kinds, without pause.

    Args:
        last_success: returns the time of an instance's last success, also from before a restart.
        note_enabled: see :meth:`auditord.spool.spool.Spool.note_enabled`.
        random: returns a number from 0 to 1.
    """

    def __init__(
        self,
        instances: Instances,
        group: TaskGroup,
        clock: Clock,
        listeners: Mapping[Section, Listener],
        *,
        last_success: Callable[[Section, str], datetime | None],
        note_enabled: Callable[[Mapping[str, str]], Awaitable[Mapping[str, datetime]]],
        random: Callable[[], float],
    ) -> None:
        self._instances: Final = instances
        self._group = group
        self._clock = clock
        self._listeners = listeners
        self._last_success = last_success
        self._note_enabled = note_enabled
        self._enabled_since: Mapping[str, datetime] = {}
        self._random = random
        self._loops: dict[str, _Loop] = {}

    async def begin_all(self) -> None:
        """Start the loops of all enabled instances."""
        await self.note_enabled()
        for section in self._listeners:
            for name in self._instances.select_enabled(section):
                self.begin(section, name)

    async def note_enabled(self) -> None:
        """Note which plugins are enabled, before any of their loops is started."""
        plugins = self._instances.select_enabled("plugins")
        with suppress(StoreUnavailable):  # on a full disk, plugins wait from now on
            self._enabled_since = await self._note_enabled({name: kind.name for name, (kind, _) in plugins.items()})

    def due_since(
        self, section: Section, name: str, kind: CollectorKind[Any] | PluginKind[Any], config: InstanceConfig
    ) -> datetime | None:
        """Return the time after which the next tick is due; None: at once.

        A collector with an interval is always due: it continues from its checkpoint, and the sooner the better. A
        plugin may act on the world, so ticks before it was enabled do not count.
        """
        if section == "collectors" and isinstance(when(config, kind.interval), timedelta):
            return None
        success = self._last_success(section, name)
        acts_at_start = isinstance(config, LakeSection) or (isinstance(config, PluginConfig) and config.run_at_start)
        if section == "collectors" or acts_at_start:
            return success
        enabled = self._enabled_since.get(name, self._instances.now())
        return enabled if success is None else max(success, enabled)

    def begin(self, section: Section, name: str) -> None:
        """Start the loop of an instance, which runs at once if it is due."""
        instances, listener = self._instances, self._listeners[section]
        kind, config = instances.select_enabled(section)[name]
        collects = isinstance(kind, CollectorKind)
        runnable = instances.collector(name) if collects else instances.plugin(name, by_clock=True)
        if isinstance(kind, CollectorKind) and kind.continuous:
            work = partial(run_continuously, runnable, Backoff(self._random), listener, instances.now)
        else:
            turn = instances.turns[name]
            skipped = partial(instances.skip_tick, name, kind.name)
            times, since = when(config, kind.interval), self.due_since(section, name, kind, config)
            self._clock.add(name, turn, times, jitter(config), skipped, last_success=since)
            work = partial(run_by_the_clock, runnable, turn, listener, instances.now)
        loop = self._loops[name] = _Loop()

        async def until_ended() -> None:
            with loop.scope:
                await work()
            loop.ended.set()

        self._group.start_soon(until_ended)

    async def end(self, name: str, patience: timedelta) -> None:
        """End the loop of an instance and wait until it has ended.

        The current run, on demand or scheduled, may finish within the patience. After that, a scheduled run is
        cancelled, as when the daemon stops; a collector then continues from its checkpoint.
        """
        if (loop := self._loops.pop(name, None)) is None:
            return
        self._clock.remove(name)
        with anyio.move_on_after(patience.total_seconds()):
            async with self._instances.turns[name].borrow():
                loop.scope.cancel()
        loop.scope.cancel()
        await loop.ended.wait()


_log: Final = logging.getLogger(__name__)


class Reloading:
    """Exchanges all changed instances or none: nothing changes if the files have a fault or a change needs a restart.

    Queue, checkpoints and memory of instances are stored by name and are not affected.

    Args:
        configuration: the configuration of the start.
        patience: how long the current run of an instance may take to end.
        watch: starts or stops watching the health of an instance.
        exchanged: called with the new configuration, after everything else.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        files: ConfigurationFiles,
        patience: timedelta,
        instances: Instances,
        loops: Loops,
        senders: Mapping[str, SendLoop],
        watch: Callable[[Section, str], Awaitable[None]],
        exchanged: Callable[[Configuration], None],
    ) -> None:
        self._running = configuration
        self._files = files
        self._patience = patience
        self._instances = instances
        self._loops = loops
        self._senders = senders
        self._watch = watch
        self._exchanged = exchanged
        self._lock = anyio.Lock()

    async def reload(self, *, dry_run: bool = False, values: Mapping[str, Any] | None = None) -> Changes:
        """Reload the files, or only compare them, and return the differences.

        Args:
            dry_run: whether to compare only.
            values: the merged values of other files, to compare with.

        Raises:
            ConfigurationError: the files are invalid; nothing changes.
            HookError: a hook module failed to resolve a secret; nothing changes.
        """
        async with self._lock:
            written = await to_thread.run_sync(self._files.read, values)
            changes = compare(self._running, written)
            enabled = {section: self._instances.select_enabled(section) for section in RUN_SECTIONS}
            runs = list[NextRun]()
            for section, name in _select_working(changes):
                config: InstanceConfig | None = getattr(written, section).get(name)
                if config is not None and config.enabled:
                    kind = self._instances.kind_of(section, config)
                    since = self._loops.due_since(section, name, kind, config)
                    effect = kind.effect(config) if isinstance(kind, PluginKind) and kind.effect is not None else None
                    at = first_tick(when(config, kind.interval), since, self._instances.now())
                    runs.append(NextRun(f"{section}.{name}", at, name not in enabled[section], effect))
            changes = replace(changes, runs=runs, files=self._files.names())
            if dry_run or values is not None or changes.restart:
                return changes
            with anyio.CancelScope(shield=True):  # all or nothing, even if the client disconnects
                await self._exchange(written, changes)
            return replace(changes, applied=True)

    async def _exchange(self, written: Configuration, changes: Changes) -> None:
        working = _select_working(changes)
        async with anyio.create_task_group() as ending:
            for _, name in working:
                ending.start_soon(self._loops.end, name, self._patience)
        self._instances.exchange(written, working)
        self._running = written
        await self._loops.note_enabled()
        for section, name in working:
            await self._watch(section, name)
            if name in self._instances.select_enabled(section):
                self._loops.begin(section, name)
        for name in (name for section, name in changes.instances if section == "senders"):
            if name in self._senders:  # only enabled senders are
                self._senders[name].exchange(written.senders[name])
        self._exchanged(written)
        _log.info("reloaded: %s", ", ".join(".".join(each) for each in changes.instances) or "nothing differs")


def _select_working(changes: Changes) -> Sequence[tuple[Section, str]]:
    return [(section, name) for section in RUN_SECTIONS for changed, name in changes.instances if changed == section]


async def reload_on_hangup(reloading: Reloading) -> None:
    """Reload on SIGHUP, except on a terminal, where SIGHUP ends the process as usual."""
    if sys.stdin is not None and sys.stdin.isatty():
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                changes = await reloading.reload()
            except AuditordError as error:  # a hook module may fail to resolve a secret
                _log.error("not reloaded: %s", error)
            else:
                if changes.restart:
                    _log.error("not reloaded, because these need a restart: %s", ", ".join(changes.restart))
