"""The health of the daemon: its ability to keep what it is given, and the state of each instance."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from auditord_hookspecs import AuditordError

ANSWER_WITHIN: Final = 5.0
"""Seconds after which a part that does not answer counts as dead."""


class TaskHealth(msgspec.Struct, frozen=True):
    """The state of an instance.

    Args:
        section: ``collectors``, ``plugins`` or ``senders``.
        running: whether it is running (a sender always is).
        last_success: when something last went well.
        last_error: what went wrong in the last run; None if it went well.
        next_run: the clock's next tick.
    """

    task: str
    kind: str
    section: str
    running: bool = False
    last_started: datetime | None = None
    last_success: datetime | None = None
    last_error: str | None = None
    failures: int = 0
    next_run: datetime | None = None


class Health:
    """The state of the daemon and its instances.

    Args:
        spool: the check of the spool, which raises unless it works.
        next_run: the clock's next tick for an instance.
    """

    def __init__(
        self,
        spool: Callable[[], Awaitable[object]],
        next_run: Callable[[str], datetime | None],
    ) -> None:
        self._spool = spool
        self._next_run = next_run
        self._tasks: dict[tuple[str, str], TaskHealth] = {}
        self.gaps: Mapping[str, datetime] = {}
        """Sites that report nothing for longer than usual, with the end of their last record."""
        self.refused_hosts = set[str]()
        """Names under which clients asked for this host in vain, since it does not know them (``api.hosts``)."""

    async def alive(self) -> bool:
        """Tell if the spool answers at all, be it that its disk is full: only if it does not, a restart may help."""
        try:
            with anyio.fail_after(ANSWER_WITHIN):
                await self._spool()
        except TimeoutError:
            return False
        except AuditordError:
            return True
        return True

    def tasks(self) -> Sequence[TaskHealth]:
        """Every instance, in the order of the configuration."""
        return [replace(task, next_run=self._next_run(task.task)) for task in self._tasks.values()]

    def running(self) -> Sequence[str]:
        """The names of the instances that run at the moment; for any thread."""
        return [task.task for task in [*self._tasks.values()] if task.running and task.section != "senders"]

    def expect(self, task: TaskHealth) -> None:
        """Begin to watch an instance."""
        self._tasks[task.section, task.task] = task

    def forget(self, section: str, task: str) -> None:
        """Watch an instance no more."""
        self._tasks.pop((section, task), None)

    def started(self, section: str, task: str, moment: datetime) -> None:
        """A run began."""
        self._change(section, task, running=True, last_started=moment)

    def succeeded(self, section: str, task: str, moment: datetime, *, running: bool) -> None:
        """A run (of a sender: a batch) went well."""
        self._change(section, task, running=running, last_success=moment, last_error=None, failures=0)

    def failed(self, section: str, task: str, error: str, *, running: bool) -> None:
        """A run (of a sender: a batch) went wrong."""
        known = self._tasks.get((section, task))
        failures = 1 if known is None else known.failures + 1
        self._change(section, task, running=running, last_error=error, failures=failures)

    def _change(self, section: str, task: str, **changes: object) -> None:
        if (known := self._tasks.get((section, task))) is not None:  # of an instance that a reload has taken out
            self._tasks[section, task] = replace(known, **changes)
