"""The last backup of each instance: noted in the state folder, for metrics, status, and the age of a backup."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.backup.making import BackupOptions, Made, make_backup
from auditord.backup.manifest import write_durably
from auditord.config.model import StoreSection

FILE: Final = "backups.json"
BY_COMMAND: Final = "command"
"""The name under which backups of ``auditord backup`` are noted."""


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


def note_backup(state_dir: Path, task: str, made: Made) -> None:
    """Note that a backup was made."""
    noted = {**last_backups(state_dir), task: LastBackup(made.manifest.made_at, str(made.folder))}
    write_durably(state_dir / FILE, msgspec.json.encode(noted))


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


@dataclass(frozen=True, slots=True)
class InstanceBackups:
    """Implements :class:`auditord_hookspecs.Backups` for an instance."""

    task: str
    state_dir: Path
    store: StoreSection
    now: Callable[[], datetime]

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Make a backup, and note it."""
        made = await make_backup(self.state_dir, self.store, BackupOptions(folder, keep, rate, dump), self.now, self)
        note_backup(self.state_dir, self.task, made)
        return made.folder

    def progressed(self, phase: str, done: int, total: int) -> None:
        """Nobody watches."""
