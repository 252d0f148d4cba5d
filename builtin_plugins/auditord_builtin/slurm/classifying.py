"""From one piece of accounting to a batch: runs that ended in its period and are not known yet, and stray output."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from anyio import to_thread

from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.conversion import convert_run
from auditord_builtin.slurm.query import Table
from auditord_builtin.slurm.runs import Run, group_runs, may_have_ended_between, source_id
from auditord_hookspecs import Batch, CollectorContext, Quarantined, Window
from auditord_hookspecs.outcomes import Outcomes, stray


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of a piece of accounting.

    Args:
        runs: the runs to account for, by key.
        unfinished: how many runs are not over.
        quarantined: rows and lines that are no part of a run, by key.
        endless: runs that are over by their state, but have no end (yet), by key.
    """

    runs: Mapping[str, Run]
    unfinished: int = 0
    quarantined: Mapping[str, Quarantined] = field(default_factory=dict[str, Quarantined])
    endless: Mapping[str, Run] = field(default_factory=dict[str, Run])


def find_runs(table: Table, window: Window | None) -> Found:
    """Sort the rows: runs that ended within the window (without one: that are not over), and what is left.

    sacct includes both ends of a window, and without states also prints jobs that ended later; these belong to other
    periods.
    """
    runs: dict[str, Run] = {}
    endless: dict[str, Run] = {}
    lines = [stray({"line": line}, "sacct printed a line that belongs to no job") for line in table.unreadable]
    broken = {each.source_id: each for each in lines}
    unfinished = 0
    for item in group_runs(table.rows):
        if not isinstance(item, Run):
            reason = "sacct printed a step that follows no row of its job"
            broken[stray(item, reason).source_id] = Quarantined(source_id(item), {"step": dict(item)}, reason)
        elif item.is_over is (window is None):
            unfinished += window is not None
        elif window is not None and item.has_no_end:
            endless[item.key] = item
        elif window is None or may_have_ended_between(item, window.start, window.stop):
            runs[item.key] = item
    return Found(runs, unfinished, broken, endless)


async def classify_new(config: JobsConfig, context: CollectorContext, found: Found, remember: datetime) -> Batch:
    """A batch of what no earlier one of this instance has dealt with; see :func:`classify`."""
    known = await context.seen([*found.runs, *found.quarantined])
    return await classify(config, context, found, remember, known)


async def classify(
    config: JobsConfig, context: CollectorContext, found: Found, remember: datetime, known: Collection[str] = ()
) -> Batch:
    """A batch without a checkpoint, of all whose keys are not ``known``; keys are remembered until ``remember``.

    Labels that were left out go to the log.
    """
    # In a thread: a page of a large cluster takes seconds, in which the daemon has requests to answer.
    outcomes = await to_thread.run_sync(convert_all, config, found, known)
    outcomes.log_left_out(context.log)
    return outcomes.batch(seen=dict.fromkeys({*found.runs, *found.quarantined}.difference(known), remember))


def convert_all(config: JobsConfig, found: Found, known: Collection[str]) -> Outcomes:
    """The outcomes of all whose keys are not ``known``; this takes time."""
    outcomes = Outcomes()
    for key, run in found.runs.items():
        if key not in known:
            outcomes.add(convert_run(config, run))
    outcomes.quarantined += [each for key, each in found.quarantined.items() if key not in known]
    outcomes.skipped["not over yet"] += found.unfinished
    outcomes.skipped["over, but its end is not known yet"] += len(found.endless)
    return outcomes


class Waiting:
    """Runs that are over, but whose end the database does not know: they wait for it.

    After an outage of slurmdbd, slurmctld delivers all starts before the ends; for a while sacct says COMPLETED and
    names no end (seen with Slurm 22.05). A run whose end never comes is a runaway job, for the administrator. ``known``
    has the first sighting of each, as ISO text (``context.pending``).
    """

    def __init__(self, config: SlurmConfig, now: datetime, known: Mapping[str, Any]) -> None:  # Any: JSON
        self._config = config
        self._now = now
        self._since = {key: datetime.fromisoformat(since) for key, since in known.items()}

    def settle(self, found: Found) -> Found:
        """The classification with the waiting runs among those to account for that have waited for long enough."""
        due = {
            key: run
            for key, run in found.endless.items()
            if self._now - self._since.get(run.source_id, self._now) >= self._config.patience
        }
        endless = {key: run for key, run in found.endless.items() if key not in due}
        return replace(found, runs={**found.runs, **due}, endless=endless)

    def pending(self, found: Found) -> Mapping[str, str | None]:
        """The changes of ``context.pending``: new sightings; those too old to be found again are forgotten."""
        gone = self._now - self._config.memory - self._config.patience
        old = {key: None for key, since in self._since.items() if since < gone}
        new = {run.source_id for run in found.endless.values()} - self._since.keys()
        return {**old, **dict.fromkeys(new, self._now.isoformat())}
