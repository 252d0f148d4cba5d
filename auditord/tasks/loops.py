"""The loops that run instances, each of which can be ended and begun again while the daemon runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from auditord.actions import Section
from auditord.tasks.clock import Clock
from auditord.tasks.instances import Instances, jitter, when
from auditord.tasks.runs import Backoff, Listener, run_by_the_clock, run_continuously
from auditord_hookspecs import CollectorKind


@dataclass(frozen=True, slots=True)
class _Loop:
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class Loops:
    """Runs enabled instances in a task group, by the clock or, where the kind says so, continuously.

    Args:
        random: a number from 0 to 1.
    """

    def __init__(
        self,
        instances: Instances,
        group: TaskGroup,
        clock: Clock,
        listeners: Mapping[Section, Listener],
        random: Callable[[], float],
    ) -> None:
        self._instances: Final = instances
        self._group = group
        self._clock = clock
        self._listeners = listeners
        self._random = random
        self._loops: dict[str, _Loop] = {}

    def begin_all(self) -> None:
        """Begin the loops of all enabled instances."""
        for section in self._listeners:
            for name in self._instances.enabled(section):
                self.begin(section, name)

    def begin(self, section: Section, name: str) -> None:
        """Begin the loop of an instance; its first run is at once."""
        instances, listener = self._instances, self._listeners[section]
        kind, config = instances.enabled(section)[name]
        collects = isinstance(kind, CollectorKind)
        runnable = instances.collector(name) if collects else instances.plugin(name, by_clock=True)
        if isinstance(kind, CollectorKind) and kind.continuous:
            work = partial(run_continuously, runnable, Backoff(self._random), listener, instances.now)
        else:
            turn = instances.turns[name]
            skipped = partial(instances.skip_tick, name, kind.name)
            self._clock.add(name, turn, when(config, kind.interval), jitter(config), skipped)
            work = partial(run_by_the_clock, runnable, turn, listener, instances.now)
        loop = self._loops[name] = _Loop()

        async def until_ended() -> None:
            with loop.scope:
                await work()
            loop.ended.set()

        self._group.start_soon(until_ended)

    async def end(self, name: str, patience: timedelta) -> None:
        """End the loop of an instance; returns once nothing of it runs any more.

        A run that is going on, on demand or by the clock, ends well if it does so within the patience. Else a run of
        the clock is cancelled, as at the daemon's end: a collector goes on from its checkpoint.
        """
        if (loop := self._loops.pop(name, None)) is None:
            return
        self._clock.remove(name)
        with anyio.move_on_after(patience.total_seconds()):
            async with self._instances.turns[name].borrowed():
                loop.scope.cancel()
        loop.scope.cancel()
        await loop.ended.wait()
