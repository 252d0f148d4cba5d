"""The health of the daemon: the state of its spool and of each instance."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from auditord_hookspecs import AuditordError

ANSWER_WITHIN: Final = 5.0
"""Seconds after which a part of the daemon that does not answer counts as dead."""


class TaskHealth(msgspec.Struct, frozen=True):
    """The state of an instance.

    Args:
        section: ``collectors``, ``plugins`` or ``senders``.
        running: whether it is running (a sender always is).
        last_success: time of the last successful run or batch.
        last_error: the error of the last run; None if it succeeded.
        next_run: time of the next scheduled run.
        remarks: those of the last successful run since the start of the daemon.
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
    remarks: Sequence[str] = ()


class Health:
    """The state of the daemon and its instances.

    Args:
        spool: checks the spool; raises unless it works.
        next_run: returns the time of an instance's next scheduled run.
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
        """Sites that have been silent for longer than usual, with the end of their last record."""
        self.refused_hosts = set[str]()
        """Host names of refused requests, because ``api.hosts`` does not contain them."""

    async def alive(self) -> bool:
        """Return whether the spool answers. An error (its disk is full) is an answer, since no restart would help."""
        try:
            with anyio.fail_after(ANSWER_WITHIN):
                await self._spool()
        except TimeoutError:
            return False
        except AuditordError:
            return True
        return True

    def tasks(self) -> Sequence[TaskHealth]:
        """Return the state of every instance, in the order of the configuration."""
        return [replace(task, next_run=self._next_run(task.task)) for task in self._tasks.values()]

    def last_success(self, section: str, task: str) -> datetime | None:
        """Return the time of an instance's last success; None if there was none or it is not watched."""
        known = self._tasks.get((section, task))
        return None if known is None else known.last_success

    def running(self) -> Sequence[str]:
        """Return the names of the collectors and plugins that are running. Any thread may call this."""
        return [task.task for task in [*self._tasks.values()] if task.running and task.section != "senders"]

    def expect(self, task: TaskHealth) -> None:
        """Start to watch an instance."""
        self._tasks[task.section, task.task] = task

    def forget(self, section: str, task: str) -> None:
        """Stop watching an instance."""
        self._tasks.pop((section, task), None)

    def note_start(self, section: str, task: str, moment: datetime) -> None:
        self._change(section, task, running=True, last_started=moment)

    def note_success(
        self, section: str, task: str, moment: datetime, *, running: bool, remarks: Sequence[str] = ()
    ) -> None:
        """Note a successful run or, for a sender, a delivered batch."""
        self._change(section, task, running=running, last_success=moment, last_error=None, failures=0, remarks=remarks)

    def note_wait(self, section: str, task: str) -> None:
        """Note a run that did nothing, since it has to wait for another instance."""
        self._change(section, task, running=False)

    def note_failure(self, section: str, task: str, error: str, *, running: bool) -> None:
        """Note a failed run or, for a sender, a failed batch."""
        known = self._tasks.get((section, task))
        failures = 1 if known is None else known.failures + 1
        self._change(section, task, running=running, last_error=error, failures=failures)

    def _change(self, section: str, task: str, **changes: object) -> None:
        if (known := self._tasks.get((section, task))) is not None:  # a reload may have removed the instance
            self._tasks[section, task] = replace(known, **changes)
