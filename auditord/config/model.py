"""Models of the host's configuration sections. Their docstrings are the reference that users read.

Each kind brings the model of its instances, and :mod:`auditord.config.kinds` joins these models to this one.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from auditord.config.documents import is_section
from auditord.config.lake import LakeSection
from auditord.config.listen import DEFAULT_LISTEN, Listen, to_list
from auditord.config.page import UiSection
from auditord.config.sizes import Size
from auditord.config.store_url import is_postgresql, records_url, sqlite_path
from auditord.duplicates import Duplicates
from auditord_hookspecs import Duration, InstanceConfig, Permission, Role, Secret, Section
from auditord_hookspecs.config import AbsolutePath
from auditord_hookspecs.schedule import Schedule
from auditord_hookspecs.vocabulary import OUTCOME

if TYPE_CHECKING:
    from auditord.reporting import LabelKeys
    from auditord.reporting.pledges import Pledge

SenderSource: TypeAlias = Literal["collectors", "api", "all"]
"""Values of the option ``from`` of every sender."""

INSTANCE_NAME = r"^[a-z][a-z0-9_]*$"

InstanceName = Annotated[str, Field(pattern=INSTANCE_NAME)]

INSTANCE_SECTIONS = ("collectors", "plugins", "senders", "authenticators", "transforms")

WORKING_SECTIONS = ("collectors", "plugins", "senders")
"""Sections whose instances run on their own."""


SslMode: TypeAlias = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]

_PASSWORD = re.compile(r"(?P<before>postgres(?:ql)?://[^:@/?#]*):(?P<password>[^@/?#]*)(?P<after>@.*)", re.DOTALL)

_PASSWORD_PARAMETER = re.compile(
    r"(?P<before>postgres(?:ql)?://[^?#]*\?(?:[^#]*&)?)password=(?P<password>[^&#]*)&?(?P<after>.*)", re.DOTALL
)


ProxyHeaders: TypeAlias = Literal["x-forwarded", "forwarded"]
"""Form of the headers in which a reverse proxy names its client."""


def _check_proxy(text: str) -> str:
    if text == "unix":
        return text
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}: write an address, a network such as 10.0.0.0/8, or unix") from error
    if network.prefixlen == 0:
        raise ValueError(f"'{text}' covers every address, so any client could pose as another: list only the proxies")
    return str(network)


class ApiSection(Section):
    """The REST interface."""

    enabled: bool = Field(default=True, description="Serve HTTP.")
    listen: Annotated[tuple[Listen, ...], BeforeValidator(to_list)] = Field(
        default=DEFAULT_LISTEN,
        json_schema_extra={"default": [str(address) for address in DEFAULT_LISTEN]},
        description="Addresses: host:port, [IPv6 address]:port or unix:/path, or a section with address, tls and "
        "mode; or only a port, for this host alone. The default skips [::1] on a host without IPv6; every "
        "address that you list yourself must work.",
    )
    allow_insecure: bool = Field(
        default=False,
        description="Allow addresses that other hosts can reach without TLS or without an authenticator, and plain "
        "TCP addresses beside addresses with TLS. By default both are refused.",
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names with a dot, besides this host's own, that clients may use in requests without TLS. * "
        "allows all names, so that a web page can make a user's browser query this API (DNS rebinding).",
    )
    proxies: tuple[Annotated[str, AfterValidator(_check_proxy)], ...] = Field(
        default=(),
        description="Trusted reverse proxies: addresses, networks, and unix for all clients of a unix socket. Their "
        "headers name the client's address, the host, and HTTP or HTTPS.",
    )
    proxy_headers: ProxyHeaders = Field(
        default="x-forwarded",
        description="The headers to read from proxies: x-forwarded (X-Forwarded-For, -Proto and -Host), or forwarded "
        "(RFC 7239).",
    )
    duplicates: Duplicates = Field(
        default=Duplicates.SAME_RUN,
        description="The answer to a record whose id is already stored: same-run (success if the start time is the "
        "same, else refused), refuse (always refused, as in AUDITOR) or ignore (always success). The stored record "
        "never changes.",
    )
    updates_while_away: Literal["queue", "refuse"] = Field(
        default="queue",
        description="The answer to an update (PUT /record) while the record store is unavailable and the record is "
        "not in the spool. queue answers 200 and keeps the update; if the record turns out not to exist, the update "
        "goes to quarantine. refuse answers 500.",
    )
    max_body: Size = Field(
        default=64 << 20,
        gt=0,
        description="The largest request body. AUDITOR's clients never split a bulk of records.",
    )
    max_uploads: Size = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Memory for all in-flight request bodies; each principal gets at most half. Further requests wait.",
    )
    max_long_reads: int = Field(
        default=8,
        ge=2,
        description="How many long answers (records, sums) may read the store at once; each principal gets at most "
        "half. Further ones wait. With PostgreSQL at most store.pool_size minus two.",
    )
    max_unread: Size = Field(
        default=1 << 30,
        description="Disk space in state_dir for answers to slow clients; each principal gets at most half. Buffering "
        "there keeps slow clients from blocking other requests.",
    )
    max_connections: int = Field(
        default=1_000,
        ge=16,
        description="The maximum number of open client connections; an address other than a proxy's gets at most "
        "half. Above the maximum, the connections that have been idle longest are closed. The process's limit of "
        "open files, minus a few hundred, applies as well.",
    )
    requests_per_second: float | None = Field(
        default=None, gt=0, description="Requests per second for each principal, on average; further ones wait."
    )

    @field_validator("listen")
    @classmethod
    def _somewhere(cls, listen: tuple[Listen, ...]) -> tuple[Listen, ...]:
        if not listen:  # a constraint of the field would also report lists with invalid members
            raise ValueError("list at least one address, or set enabled: false")
        return listen


class StoreSection(Section):
    """The record store. All options except the URL are for PostgreSQL."""

    url: str = Field(
        min_length=1,
        description="sqlite:///<absolute path>, by default records.db in state_dir; or "
        "postgresql://user@host:port/database, after `auditord database migrate`.",
    )
    password: Secret | None = Field(
        default=None, min_length=1, description="The user's password, best as a reference such as file:/path."
    )
    sslmode: SslMode | None = Field(
        default=None,
        description="libpq's TLS mode; set verify-full for a server on another host. The default, prefer, verifies "
        "nothing.",
    )
    sslrootcert: Path | None = Field(
        default=None,
        description="PEM file of the CAs that may sign the server's certificate; or system.",
    )
    sslcert: Path | None = Field(default=None, description="The client certificate for the login.")
    sslkey: Path | None = Field(
        default=None, description="The client certificate's key; no other user may be able to read the file."
    )
    pool_size: int = Field(
        default=10,
        ge=2,
        le=1_000,
        description="The maximum number of connections for short statements; long answers use up to the same number "
        "again.",
    )
    replica: str | None = Field(
        default=None,
        pattern=r"^postgres(ql)?://",
        description="A streaming replica of the database, postgresql://user@host:port/database, for lists, sums and "
        "the page; the other options apply to it, too. Senders, plugins and single records use url.",
    )
    replica_max_lag: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(seconds=2),
        description="The largest lag of the replica; beyond it, queries go to url.",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_password_out(cls, values: Any) -> Any:  # Any: not validated yet
        """Move a password from the URL to ``password``, since messages contain URLs."""
        if not is_section(values) or not isinstance(values.get("url"), str):
            return values
        found = _PASSWORD.fullmatch(values["url"])
        if found is not None:
            return {"password": unquote(found["password"]), **values, "url": found["before"] + found["after"]}
        found = _PASSWORD_PARAMETER.fullmatch(values["url"])
        if found is None:
            return values
        url = (found["before"] + found["after"]).rstrip("?&")
        return {"password": unquote(found["password"]), **values, "url": url}

    @model_validator(mode="after")
    def _only_for_postgresql(self) -> "StoreSection":
        fields = type(self).model_fields
        given = [name for name in fields if name != "url" and getattr(self, name) != fields[name].default]
        if given and not is_postgresql(self.url):
            raise ValueError(f"{given[0]} is for PostgreSQL only: remove it, or set url to postgresql://…")
        return self

    @field_validator("replica")
    @classmethod
    def _without_password(cls, url: str | None) -> str | None:
        if url is not None and (_PASSWORD.fullmatch(url) or _PASSWORD_PARAMETER.fullmatch(url)):
            raise ValueError("remove the password: the replica uses store.password")
        return url

    @field_validator("url")
    @classmethod
    def _can_be_opened(cls, url: str) -> str:
        if not is_postgresql(url):
            sqlite_path(url)
        return url


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

    totals: bool = Field(default=False, description="With rows: also show sums over all records, as shares of these.")

    @model_validator(mode="after")
    def _can_be_limited(self) -> "RoleSection":
        self.role()
        return self

    def role(self) -> Role:
        """Return the role for the host.

        Raises:
            ValueError: the role is limited to some records, but has permissions for the whole daemon.
        """
        return Role(frozenset(self.permissions), self.rows, self.sites, self.prefixes, self.totals)


class AccessSection(Section):
    """The rights of callers, once an authenticator is configured."""

    roles: Mapping[RoleName, RoleSection] = Field(
        default={},
        description="Roles by name, besides reader, writer, monitor, operator and administrator.",
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


class LabelsSection(Section):
    """The labels of records that the page, reports, gauges and plugins call user, group and site."""

    user: str = Field(default="user_id", min_length=1, description="The label that names the user.")
    group: str = Field(
        default="group_id",
        min_length=1,
        description="The label that names the group: group_id is what the collector takes for one (Slurm: the Unix "
        "group); account is the Slurm account, if it is recorded.",
    )
    site: str = Field(default="site_id", min_length=1, description="The label that names the site.")

    def keys(self) -> "LabelKeys":
        """Return the labels for reports."""
        from auditord.reporting import LabelKeys  # noqa: PLC0415 only for reports

        return LabelKeys(self.site, self.group, self.user)


DatabaseMetric: TypeAlias = Literal["RecordCount", "RecordCountPerSite", "RecordCountPerGroup", "RecordCountPerUser"]

DATABASE_METRICS: tuple[DatabaseMetric, ...] = (
    "RecordCount",
    "RecordCountPerSite",
    "RecordCountPerGroup",
)
"""The default gauges. Gauges per user are left out, since they name users and there can be thousands."""


class DatabaseMetricsSection(Section):
    """The gauges about the records, under AUDITOR's names; ``labels`` says what a site, a group and a user is."""

    interval: Duration = Field(default=timedelta(seconds=30), description="How often the gauges are refreshed.")
    metrics: tuple[DatabaseMetric, ...] = Field(
        default=DATABASE_METRICS,
        description="The gauges. RecordCountPerUser names users, so it is shown only where API callers are "
        "authenticated.",
    )

    @field_validator("interval")
    @classmethod
    def _positive(cls, interval: timedelta) -> timedelta:
        if interval <= timedelta(0):
            raise ValueError("the interval must be longer than 0s")
        return interval


class MetricsSection(Section):
    """The contents of ``/metrics`` beside the daemon's own metrics."""

    database: DatabaseMetricsSection = Field(default_factory=DatabaseMetricsSection)


class AuditSection(Section):
    """The nightly audit of every collector that can list its source; ``auditord audit`` works without it."""

    enabled: bool = Field(default=True, description="Audit every night; if false, only auditord audit compares.")
    schedule: Schedule = Field(default="23 3 * * *", description="Start times: five cron fields in UTC.")
    days: int = Field(default=3, ge=1, le=366, description="How many whole days (UTC) before today to compare.")


class HooksSection(Section):
    """Hook modules that are not loaded."""

    disabled: tuple[str, ...] = Field(
        default=(), description="Entry points or modules not to load, for example a broken one."
    )


class LoggingSection(Section):
    """The log on standard error or in the journal."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level to log; case does not matter."
    )
    format: Literal["text", "json", "journal"] = Field(
        default="text",
        description="text, json (for log collectors) or journal (for systemd, with priorities).",
    )

    @field_validator("level", mode="before")
    @classmethod
    def _in_small_letters(cls, level: Any) -> Any:  # Any: not validated yet
        return level.lower() if isinstance(level, str) else level


class ShutdownSection(Section):
    """The limits of an orderly stop."""

    grace: Duration = Field(
        default=timedelta(seconds=30),
        ge=timedelta(0),
        description="How long senders may continue to empty the queue after SIGTERM.",
    )


class Configuration(Section):
    """The whole configuration, after every source has been merged."""

    state_dir: AbsolutePath = Field(
        description="The daemon's folder: $STATE_DIRECTORY, else /var/lib/auditord for root, else "
        "$XDG_STATE_HOME/auditord or ~/.local/state/auditord."
    )
    labels: LabelsSection = Field(default_factory=LabelsSection)
    api: ApiSection = Field(default_factory=ApiSection)
    ui: UiSection = Field(default_factory=UiSection)
    access: AccessSection = Field(default_factory=AccessSection)
    store: StoreSection
    lake: LakeSection = Field(default_factory=LakeSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    audit: AuditSection = Field(default_factory=AuditSection)
    pledges: tuple[PledgeSection, ...] = Field(default=(), description="Pledged capacity, for reports and the page.")
    hooks: HooksSection = Field(default_factory=HooksSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    shutdown: ShutdownSection = Field(default_factory=ShutdownSection)
    collectors: Mapping[InstanceName, InstanceConfig] = Field(default={}, description="Sources of records, by name.")
    plugins: Mapping[InstanceName, InstanceConfig] = Field(default={}, description="Consumers of records, by name.")
    senders: Mapping[InstanceName, InstanceConfig] = Field(default={}, description="Destinations of records, by name.")
    authenticators: Mapping[InstanceName, InstanceConfig] = Field(
        default={},
        description="Authentication of API callers; without any, every caller may read and write.",
    )
    transforms: Mapping[InstanceName, InstanceConfig] = Field(
        default={}, description="Changes to every record before it is stored, applied in this order."
    )

    @property
    def counted_labels(self) -> Mapping[str, str]:
        """The label whose values each configured gauge counts, by gauge."""
        labels = self.labels
        keys = {
            "RecordCountPerSite": labels.site,
            "RecordCountPerGroup": labels.group,
            "RecordCountPerUser": labels.user,
        }
        return {metric: key for metric, key in keys.items() if metric in self.metrics.database.metrics}

    @property
    def counted_keys(self) -> Sequence[str]:
        """The labels whose values the store counts."""
        return sorted(set(self.counted_labels.values()))

    @property
    def rolled_keys(self) -> Sequence[str]:
        """The labels by which sums over all users are fast, besides ``site_id``, ``group_id`` and ``user_id``."""
        return (*self.ui.labels, self.labels.user)

    @property
    def rolled_by_user(self) -> Sequence[str]:
        """The labels by which sums by user are fast, too."""
        return OUTCOME, self.labels.group, self.labels.site

    @property
    def data_folders(self) -> Collection[Path]:
        """The folders of the spool and, if they are in a file, of the records."""
        if is_postgresql(self.store.url):
            return {self.state_dir}
        return {self.state_dir, sqlite_path(self.store.url).parent}

    @model_validator(mode="before")
    @classmethod
    def _keep_records_in_state_dir(cls, values: Any) -> Any:  # Any: not validated yet
        if not is_section(values) or not values.get("state_dir"):
            return values
        store = values.get("store", {})
        if not is_section(store) or "url" in store:
            return values
        return values | {"store": {**store, "url": records_url(Path(str(values["state_dir"])))}}


def kind_of(instance: InstanceConfig) -> str:
    """Return the kind of a configured instance (the host adds ``kind`` to each kind's model)."""
    kind: str = getattr(instance, "kind")  # noqa: B009 only the host's joined models have it
    return kind


def source_of(sender: InstanceConfig) -> SenderSource:
    """Return the option ``from`` of a configured sender."""
    source: SenderSource = getattr(sender, "from", "collectors")
    return source


def forwarding_senders(configuration: "Configuration") -> Sequence[str]:
    """Return the names of enabled senders that forward changes by clients."""
    senders = configuration.senders.items()
    return [name for name, config in senders if config.enabled and source_of(config) != "collectors"]
