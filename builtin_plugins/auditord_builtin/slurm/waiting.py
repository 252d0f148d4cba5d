"""Runs that are over, but whose end the database does not know: they wait for it.

After an outage of slurmdbd, slurmctld delivers all starts before the ends; for a while sacct says COMPLETED and names
no end (seen with Slurm 22.05). A run whose end never comes is a runaway job, for the administrator.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from auditord_builtin.slurm.classifying import Found
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import source_id


class Waiting:
    """Which runs have been waited for, and since when.

    Args:
        config: how long, and how far a run is looked back for.
        now: the present instant.
        known: what earlier batches carried: the first sighting of each, as ISO text.
    """

    def __init__(self, config: SlurmConfig, now: datetime, known: Mapping[str, Any]) -> None:  # Any: JSON
        self._config = config
        self._now = now
        self._since = {key: datetime.fromisoformat(since) for key, since in known.items()}

    def settle(self, found: Found) -> Found:
        """What is to be classified now: also runs without an end that have been waited for long enough."""
        due = {
            key: run
            for key, run in found.endless.items()
            if self._now - self._since.get(source_id(run), self._now) >= self._config.patience
        }
        return replace(
            found, runs={**found.runs, **due}, endless={key: found.endless[key] for key in found.endless.keys() - due}
        )

    def of(self, found: Found) -> Mapping[str, str | None]:
        """What is to be carried: new sightings; those are forgotten that are too old to be found again."""
        gone = self._now - self._config.memory - self._config.patience
        old = {key: None for key, since in self._since.items() if since < gone}
        new = {source_id(run) for run in found.endless.values()} - self._since.keys()
        return {**old, **dict.fromkeys(new, self._now.isoformat())}
