"""The options of what watches over records: gauges at ``/metrics``, and the nightly audit."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias

from pydantic import Field, field_validator

from auditord_hookspecs import Duration, Section
from auditord_hookspecs.schedule import Schedule

DatabaseMetric: TypeAlias = Literal["RecordCount", "RecordCountPerSite", "RecordCountPerGroup", "RecordCountPerUser"]

DATABASE_METRICS: tuple[DatabaseMetric, ...] = (
    "RecordCount",
    "RecordCountPerSite",
    "RecordCountPerGroup",
)
"""The gauges that there are by default; those by user name users, and there may be thousands."""


class DatabaseMetricsSection(Section):
    """The gauges about the records, under AUDITOR's names.

    The keys default to what Slurm collectors and TARDIS write (``site_id``); HTCondor records of AUDITOR sites often
    say ``site``, ``group`` and ``user``, which is AUDITOR's own default.
    """

    interval: Duration = Field(default=timedelta(seconds=30), description="How often the gauges are refreshed.")
    metrics: tuple[DatabaseMetric, ...] = Field(
        default=DATABASE_METRICS,
        description="Which gauges there are. RecordCountPerUser names users, so it is only shown where callers of the "
        "API prove who they are (authenticators).",
    )
    site_key: str = Field(default="site_id", min_length=1, description="The meta key that names the site.")
    group_key: str = Field(default="group_id", min_length=1, description="The meta key that names the group.")
    most_values: int = Field(
        default=200,
        ge=1,
        description="How many values of a key are told apart, those with the most records; the rest "
        "count under the value other.",
    )
    user_key: str = Field(default="user_id", min_length=1, description="The meta key that names the user.")

    @field_validator("interval")
    @classmethod
    def _positive(cls, interval: timedelta) -> timedelta:
        if interval <= timedelta(0):
            raise ValueError("the interval must be longer than 0s")
        return interval

    @property
    def keys(self) -> Mapping[str, str]:
        """The meta keys of the gauges by value that there are."""
        keys = {
            "RecordCountPerSite": self.site_key,
            "RecordCountPerGroup": self.group_key,
            "RecordCountPerUser": self.user_key,
        }
        return {metric: key for metric, key in keys.items() if metric in self.metrics}

    @property
    def label_keys(self) -> tuple[str, str, str]:
        """The meta keys that name the site, the group and the user."""
        return self.site_key, self.group_key, self.user_key

    @property
    def counted_keys(self) -> Sequence[str]:
        """The meta keys whose values the store counts."""
        return sorted(set(self.keys.values()))


class MetricsSection(Section):
    """The contents of ``/metrics`` beside the daemon's own metrics."""

    database: DatabaseMetricsSection = Field(default_factory=DatabaseMetricsSection)


class AuditSection(Section):
    """The nightly audit of every collector that can list its source; ``auditord audit`` needs none of it."""

    enabled: bool = Field(default=True, description="False: only auditord audit compares.")
    schedule: Schedule = Field(default="23 3 * * *", description="When: five fields as in cron, in UTC.")
    days: int = Field(default=3, ge=1, le=366, description="How many whole days of UTC before the present one.")
