"""Runs that somebody asks for on the page: they go on while the page is looked at, and while it is left."""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from auditord.actions import Actions, RunRequest
from auditord_hookspecs import AuditordError, Batch, Produced, RunReport

log: Final = logging.getLogger(__name__)

_KEPT: Final = 50
_MOST_LINES: Final = 1_000

StartSoon: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]  # Any: of a coroutine's type
"""Runs a function as long as the daemon works."""


@dataclass
class BackgroundRun:
    """One run, and an observer of it.

    Args:
        number: says which one it is.
        request: what was asked for.
        by: who asked.
        lines: what it said, the first of them.
        records: how many records a dry run would have kept.
        fraction: how much of it is done.
        report: of its end.
        error: why there was no run.
    """

    number: int
    request: RunRequest
    by: str
    lines: list[str] = field(default_factory=list[str])
    records: int = 0
    fraction: float = 0.0
    report: RunReport | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """True once it has ended."""
        return self.report is not None or self.error is not None

    def progressed(self, fraction: float) -> None:
        """Keep how far it is."""
        self.fraction = fraction

    async def shown(self, batch: Batch) -> None:
        """Keep what a dry run would have kept: ids, and jobs that it would have put into quarantine."""
        self.records += len(batch.records)
        for item in batch.records:
            self.said((item.record if isinstance(item, Produced) else item).record_id)
        for job in batch.quarantined:
            self.said(f"{job.source_id}: {job.reason}")

    def said(self, line: str) -> None:
        """Keep a line."""
        if len(self.lines) < _MOST_LINES:
            self.lines.append(line)

    def printed(self, text: str) -> None:
        """Keep each line of a text."""
        for line in text.splitlines():
            self.said(line)


class BackgroundRuns:
    """The latest runs that were asked for on the page.

    Args:
        actions: run instances.
        start_soon: has a run go on behind the answer.
    """

    def __init__(self, actions: Actions, start_soon: StartSoon) -> None:
        self._actions = actions
        self._start_soon = start_soon
        self._runs: dict[int, BackgroundRun] = {}
        self._last = 0

    def get(self, number: int) -> BackgroundRun | None:
        """A run by its number; None if it is too long ago."""
        return self._runs.get(number)

    def start(self, request: RunRequest, by: str) -> BackgroundRun:
        """Begin a run; of those that are over, the oldest are forgotten."""
        self._last += 1
        run = self._runs[self._last] = BackgroundRun(self._last, request, by)
        for number in [each.number for each in self._runs.values() if each.is_over][:-_KEPT]:
            del self._runs[number]

        async def go() -> None:
            try:
                run.report = await self._actions.run(request, run)
            except AuditordError as error:
                run.error = str(error)
            except Exception:  # the boundary of a run that nobody waits for
                log.exception("a run of %s, which %s asked for, failed", request.instance, by)
                run.error = "the run failed; the log says why"

        self._start_soon(go)
        return run
