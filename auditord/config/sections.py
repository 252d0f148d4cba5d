"""The sections of the configuration for access, pledges, the page, metrics and audits."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from auditord_hookspecs import Duration, Permission, Role, Section
from auditord_hookspecs.schedule import Schedule
from auditord_hookspecs.zones import UTC_NAME, zone_named

if TYPE_CHECKING:
    from auditord.reporting.pledges import Pledge


Value = Annotated[str, Field(min_length=1)]
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]

READY_MADE: Final[Mapping[str, Role]] = {
    "reader": Role(frozenset({Permission.READ})),
    "writer": Role(frozenset({Permission.WRITE, Permission.UPDATE})),
    "monitor": Role(frozenset({Permission.METRICS})),
    "operator": Role(frozenset({Permission.READ, Permission.METRICS, Permission.OPERATE})),
    "administrator": Role(frozenset(Permission)),
}
"""Predefined roles. A configured role replaces the one of the same name."""


class RoleSection(Section):
    """The permissions of a role, and the records to which they apply."""

    permissions: tuple[Permission, ...] = Field(
        min_length=1, description="Any of read, write, update, metrics, operate and administer."
    )
    rows: Mapping[Value, tuple[Value, ...]] | None = Field(
        default=None,
        min_length=1,
        description="The visible records: meta keys, each with its allowed values; a record must have an allowed "
        "value for every key. self is the caller's own user name.",
    )
    sites: tuple[Value, ...] | None = Field(
        default=None, min_length=1, description="The sites (site_id, site) whose records may be written and updated."
    )
    prefixes: tuple[Value, ...] | None = Field(
        default=None, min_length=1, description="The prefixes of the record ids that may be written and updated."
    )

    @model_validator(mode="after")
    def _can_be_limited(self) -> "RoleSection":
        self.role()
        return self

    def role(self) -> Role:
        """Return the role for the host.

        Raises:
            ValueError: the role is limited to some records, but has permissions for the whole daemon.
        """
        return Role(frozenset(self.permissions), self.rows, self.sites, self.prefixes)


class AccessSection(Section):
    """The rights of callers, once an authenticator is configured."""

    roles: Mapping[RoleName, RoleSection] = Field(
        default={},
        description="Roles by name, besides reader, writer, monitor, operator and administrator.",
    )
    session_length: Duration = Field(
        default=timedelta(hours=12),
        gt=timedelta(0),
        description="How long a login to the page lasts. Revoking a token ends its session at once.",
    )

    def known_roles(self) -> Mapping[str, Role]:
        """Return every role by name, including the predefined ones."""
        return {**READY_MADE, **{name: section.role() for name, section in self.roles.items()}}


def _positive(amount: Decimal) -> Decimal:
    if not amount.is_finite() or amount <= 0:
        raise ValueError("a pledge must be larger than 0")
    return amount


class PledgeSection(Section):
    """Capacity pledged for a site or a group over a period."""

    site: str | None = Field(default=None, min_length=1, description="The site; without it, all sites together.")
    group: str | None = Field(default=None, min_length=1, description="The group; without it, all groups together.")
    score: str | None = Field(
        default=None, min_length=1, description="The benchmark whose unit the amount has; without it, cores."
    )
    amount: Annotated[Decimal, AfterValidator(_positive)] = Field(
        description="Constant power: cores, or cores times score (such as HEPscore23)."
    )
    first: date = Field(alias="from", description="The first day.")
    end: date = Field(alias="to", description="The day after the last day.")

    @model_validator(mode="after")
    def _in_order(self) -> "PledgeSection":
        if self.end <= self.first:
            raise ValueError("'to' must be after 'from'")
        return self

    def pledge(self) -> "Pledge":
        """Return the pledge for reports."""
        from auditord.reporting.pledges import Pledge, Scope  # noqa: PLC0415 only for reports

        return Pledge(Scope(self.site, self.group), self.score, Fraction(self.amount), self.first, self.end)


_URL: Final = re.compile(r"https?://[^\s]+|/[^\s]*")
_SOURCE: Final = re.compile(r"'self'|https?://[A-Za-z0-9.*:\[\]-]+")
_ROOT: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_IMAGES: Final = frozenset({".svg", ".png", ".jpg", ".webp"})


def _check_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(f"'{text}' is neither http://…, https://… nor a path")
    return text


def _check_source(text: str) -> str:
    if not _SOURCE.fullmatch(text):
        raise ValueError(f"'{text}' is neither 'self' nor https://host")
    return text


def _check_root(text: str) -> str:
    if not _ROOT.fullmatch(text):
        raise ValueError(f"'{text}' is not a path such as /accounting: it must begin with a slash and not end with one")
    return text


def _check_logo(path: Path | None) -> Path | None:
    if path is not None and (not path.is_absolute() or path.suffix not in _IMAGES):
        raise ValueError(f"'{path}' is not the absolute path of a .svg, .png, .jpg or .webp file")
    return path


def _check_zone(name: str) -> str:
    zone_named(name)
    return name


class LinkSection(Section):
    """A link at the foot of every page."""

    title: str = Field(min_length=1, description="The link's text.")
    url: Annotated[str, AfterValidator(_check_url)] = Field(description="The link's target.")


class UiSection(Section):
    """The page that the daemon serves to browsers."""

    enabled: bool = Field(default=True, description="Serve the page; false removes all its routes.")
    title: str = Field(default="auditord", min_length=1, description="The name of the site, on every page.")
    logo: Annotated[Path | None, AfterValidator(_check_logo)] = Field(
        default=None, description="An image file beside the title; read at start-up."
    )
    labels: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Further meta keys that the Usage page offers for grouping, such as partition. Roll-ups are kept "
        "for these keys, so that sums by them are as fast as by group. Choose keys with few values, and "
        "the same ones in all daemons of one database.",
    )
    links: tuple[LinkSection, ...] = Field(default=(), description="Links in the footer of every page: help, imprint.")
    frame_ancestors: tuple[Annotated[str, AfterValidator(_check_source)], ...] = Field(
        default=(), description="Web sites that may embed this page in a frame, such as https://portal.example.org."
    )
    timezone: Annotated[str, AfterValidator(_check_zone)] = Field(
        default=UTC_NAME,
        description="The time zone of the page and of the command line's reports on this host, such as Europe/Berlin. "
        "Roll-ups over all users are also kept by days of this zone, so that such sums are fast. Use the "
        "same zone in all daemons of one database.",
    )
    co2_per_kwh: Decimal | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="The grid's CO2 intensity in kg per kWh of measured energy, for the measure co2 of the page and "
        "of reports. Multiply it by the PUE (the building's power divided by the computers' power).",
    )
    root_path: Annotated[str, AfterValidator(_check_root)] = Field(
        default="", description="The path prefix under which a reverse proxy serves the page, such as /accounting."
    )


DatabaseMetric: TypeAlias = Literal["RecordCount", "RecordCountPerSite", "RecordCountPerGroup", "RecordCountPerUser"]

DATABASE_METRICS: tuple[DatabaseMetric, ...] = (
    "RecordCount",
    "RecordCountPerSite",
    "RecordCountPerGroup",
)
"""The default gauges. Gauges per user are left out, since they name users and there can be thousands."""


class DatabaseMetricsSection(Section):
    """The gauges about the records, under AUDITOR's names.

    The keys default to what Slurm collectors and TARDIS write (``site_id``); HTCondor records of AUDITOR sites often
    have ``site``, ``group`` and ``user``, which are AUDITOR's own defaults.
    """

    interval: Duration = Field(default=timedelta(seconds=30), description="How often the gauges are refreshed.")
    metrics: tuple[DatabaseMetric, ...] = Field(
        default=DATABASE_METRICS,
        description="The gauges. RecordCountPerUser names users, so it is shown only where API callers are "
        "authenticated.",
    )
    site_key: str = Field(default="site_id", min_length=1, description="The meta key with the site.")
    group_key: str = Field(default="group_id", min_length=1, description="The meta key with the group.")
    most_values: int = Field(
        default=200,
        ge=1,
        description="For each key, how many values (those with the most records) get a gauge of their own; the rest "
        "is counted as other.",
    )
    user_key: str = Field(default="user_id", min_length=1, description="The meta key with the user.")

    @field_validator("interval")
    @classmethod
    def _positive(cls, interval: timedelta) -> timedelta:
        if interval <= timedelta(0):
            raise ValueError("the interval must be longer than 0s")
        return interval

    @property
    def keys(self) -> Mapping[str, str]:
        """The meta key of each configured gauge that has one."""
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
    """The nightly audit of every collector that can list its source; ``auditord audit`` works without it."""

    enabled: bool = Field(default=True, description="Audit every night; if false, only auditord audit compares.")
    schedule: Schedule = Field(default="23 3 * * *", description="Start times: five cron fields in UTC.")
    days: int = Field(default=3, ge=1, le=366, description="How many whole days (UTC) before today to compare.")
