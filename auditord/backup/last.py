"""The last backup of each instance: noted in the state folder, for metrics, status, and the age of a backup."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

FILE: Final = "backups.json"


class LastBackup(msgspec.Struct, frozen=True):
    """The last backup of an instance: the moment whose state it has, and its folder."""

    made_at: datetime
    folder: str


def last_backups(state_dir: Path) -> Mapping[str, LastBackup]:
    """The last backups by instance; none where the note cannot be read: an alarm is then about a real lack."""
    try:
        return msgspec.json.decode((state_dir / FILE).read_bytes(), type=dict[str, LastBackup])
    except (OSError, msgspec.DecodeError):
        return {}


class BackupMetrics(Collector):
    """The times of the last backups, as noted."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def collect(self) -> Iterator[Metric]:
        """The family; without a sample before the first backup."""
        family = GaugeMetricFamily(
            "auditord_backup_last_success_timestamp_seconds",
            "The moment whose state the last backup has.",
            labels=("task",),
        )
        for task, backup in last_backups(self._state_dir).items():
            family.add_metric((task,), backup.made_at.timestamp())
        yield family
