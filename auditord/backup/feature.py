"""The daemon's metric of the last backups."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from auditord.backup.notes import last_backups
from auditord.config.model import Configuration
from auditord.metrics import gauge
from auditord_hookspecs import hookimpl


@hookimpl
def feature_work(configuration: Configuration, registry: CollectorRegistry) -> None:
    registry.register(_BackupMetrics(configuration.state_dir))


@dataclass(frozen=True)
class _BackupMetrics(Collector):
    state_dir: Path

    def collect(self) -> Iterable[Metric]:
        """Return the metric family, which is empty before the first backup."""
        made = {(task,): backup.made_at.timestamp() for task, backup in last_backups(self.state_dir).items()}
        return [
            gauge(
                "auditord_backup_last_success_timestamp_seconds",
                "Time of the state that the last backup contains.",
                ["task"],
                made.items(),
            )
        ]
