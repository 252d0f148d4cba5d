"""The configuration of a running daemon, exchanged for what its files say now."""

import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import anyio
from anyio import to_thread

from auditord.actions import Section
from auditord.config.comparing import Changes, compare
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError
from auditord.tasks.instances import Instances
from auditord.tasks.loops import Loops
from auditord.tasks.senders import SendLoop

_SECTIONS: Final[Sequence[Section]] = ("collectors", "plugins")

_log: Final = logging.getLogger(__name__)


class Reloading:
    """Exchanges instances, all or none: nothing changes if the files have a fault, or say what needs a restart.

    Queue, checkpoints and memory of instances are kept by their names and stay as they are.

    Args:
        configuration: of the start.
        read: reads the files again; raises ConfigurationError.
        patience: the time that a run which is going on has to end by itself.
        watch: begins to watch an instance (its health), or ends it.
        exchanged: called with the new configuration, after everything else.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        read: Callable[[], Configuration],
        patience: timedelta,
        instances: Instances,
        loops: Loops,
        senders: Mapping[str, SendLoop],
        watch: Callable[[Section, str], Awaitable[None]],
        exchanged: Callable[[Configuration], None],
    ) -> None:
        self._running = configuration
        self._read = read
        self._patience = patience
        self._instances = instances
        self._loops = loops
        self._senders = senders
        self._watch = watch
        self._exchanged = exchanged
        self._lock = anyio.Lock()

    async def reload(self, *, dry_run: bool = False) -> Changes:
        """Take over what the files say, or only compare; returns what differed.

        Raises:
            ConfigurationError: the files cannot be used; the daemon goes on as it was.
        """
        async with self._lock:
            written = await to_thread.run_sync(self._read)
            changes = compare(self._running, written)
            if dry_run or changes.restart:
                return changes
            with anyio.CancelScope(shield=True):  # whoever asked may leave: all of it or nothing
                await self._exchange(written, changes)
            return replace(changes, applied=True)

    async def _exchange(self, written: Configuration, changes: Changes) -> None:
        working: Sequence[tuple[Section, str]] = [
            (section, name) for section in _SECTIONS for changed, name in changes.instances if changed == section
        ]
        async with anyio.create_task_group() as ending:
            for _, name in working:
                ending.start_soon(self._loops.end, name, self._patience)
        self._instances.exchange(written, working)
        self._running = written
        for section, name in working:
            await self._watch(section, name)
            if name in self._instances.enabled(section):
                self._loops.begin(section, name)
        for name in (name for section, name in changes.instances if section == "senders"):
            if name in self._senders:  # it is enabled
                self._senders[name].exchange(written.senders[name])
        self._exchanged(written)
        _log.info("reloaded: %s", ", ".join(".".join(each) for each in changes.instances) or "nothing differs")


async def reload_on_hangup(reloading: Reloading) -> None:
    """Reload on SIGHUP; on a terminal that is how it ends, so there it stays what it is."""
    if sys.stdin is not None and sys.stdin.isatty():
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                changes = await reloading.reload()
            except ConfigurationError as error:
                _log.error("not reloaded: %s", error)
            else:
                if changes.restart:
                    _log.error("not reloaded, since these take a restart: %s", ", ".join(changes.restart))
