"""The host's sections of the configuration, as frozen values; the docstrings are the reference that users read.

Each kind brings the model of its own instances (:mod:`auditord.config.kinds` joins them to this one).
"""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from auditord.config.archive import ArchiveSection
from auditord.config.documents import is_section
from auditord.config.lake import LakeSection
from auditord.config.listen import DEFAULT_LISTEN, Listen, listed
from auditord.config.sections import AccessSection, AuditSection, MetricsSection, PledgeSection, UiSection
from auditord.config.sizes import Size
from auditord.config.store_url import is_postgresql, records_url, sqlite_path
from auditord.duplicates import Duplicates
from auditord_hookspecs import Duration, InstanceConfig, Secret, Section
from auditord_hookspecs.config import AbsolutePath

SenderSource: TypeAlias = Literal["collectors", "api", "all"]
"""The source of a sender (the option ``from`` of every sender)."""

INSTANCE_NAME = r"^[a-z][a-z0-9_]*$"

InstanceName = Annotated[str, Field(pattern=INSTANCE_NAME)]

INSTANCE_SECTIONS = ("collectors", "plugins", "senders", "authenticators", "transforms")

WORKING_SECTIONS = ("collectors", "plugins", "senders")
"""Those whose instances do something by themselves."""


SslMode: TypeAlias = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]

_PASSWORD = re.compile(r"(?P<before>postgres(?:ql)?://[^:@/?#]*):(?P<password>[^@/?#]*)(?P<after>@.*)", re.DOTALL)

_PASSWORD_PARAMETER = re.compile(
    r"(?P<before>postgres(?:ql)?://[^?#]*\?(?:[^#]*&)?)password=(?P<password>[^&#]*)&?(?P<after>.*)", re.DOTALL
)


ProxyHeaders: TypeAlias = Literal["x-forwarded", "forwarded"]
"""The form of the headers in which a reverse proxy says for whom it asks."""


def _checked_proxy(text: str) -> str:
    if text == "unix":
        return text
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}: write an address, a network such as 10.0.0.0/8, or unix") from error
    if network.prefixlen == 0:
        raise ValueError(f"'{text}' is every address, so any client could pretend to be another: name only the proxies")
    return str(network)


class ApiSection(Section):
    """The REST interface."""

    enabled: bool = Field(default=True, description="Whether the daemon serves HTTP at all.")
    listen: Annotated[tuple[Listen, ...], BeforeValidator(listed)] = Field(
        default=DEFAULT_LISTEN,
        json_schema_extra={"default": [str(address) for address in DEFAULT_LISTEN]},
        description="Addresses: host:port, [IPv6 address]:port or unix:/path, or a section with address, tls and mode; "
        "or a port of this host alone. A host without IPv6 may go without the default list's second address; every "
        "address of a written list must work.",
    )
    allow_insecure: bool = Field(
        default=False,
        description="Allow addresses beyond this host without TLS or without an authenticator, and plain addresses "
        "beside those with TLS; otherwise they are refused.",
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names under which clients ask for this host without TLS, besides its own name, names without a "
        "dot and addresses; * for every name, which lets a page in a user's browser pretend to be this server.",
    )
    proxies: tuple[Annotated[str, AfterValidator(_checked_proxy)], ...] = Field(
        default=(),
        description="Reverse proxies whose headers are trusted for the client's address, the host, and HTTP or HTTPS: "
        "addresses, networks, and unix for every client of a unix socket.",
    )
    proxy_headers: ProxyHeaders = Field(
        default="x-forwarded",
        description="The headers by which they say it: x-forwarded (X-Forwarded-For, -Proto and -Host), or forwarded "
        "(RFC 7239). The other ones are not read.",
    )
    duplicates: Duplicates = Field(
        default=Duplicates.SAME_RUN,
        description="A record whose id is known: same-run (success if the start time is equal), refuse (AUDITOR's "
        "rule) or ignore.",
    )
    updates_while_away: Literal["queue", "refuse"] = Field(
        default="queue",
        description="An update (PUT /record) of a record that does not wait in the spool, while the record store is "
        "away: queue answers 200 and keeps it; if there is no such record once the store is back, it goes to "
        "quarantine. refuse answers 500.",
    )
    max_body: Size = Field(
        default=64 << 20, gt=0, description="How large the body of a request may be; the clients never split one."
    )
    max_uploads: Size = Field(
        default=256 << 20,
        ge=1 << 20,
        description="How much memory the bodies of requests may take together, and each principal half of it; others "
        "wait.",
    )
    max_long_reads: int = Field(
        default=8,
        ge=2,
        description="How many answers may read the store at a time (records, sums), and each principal half of them; "
        "others wait. With PostgreSQL at most two less than store.pool_size.",
    )
    max_unread: Size = Field(
        default=1 << 30,
        description="Bytes of answers that may wait in state_dir because their clients do not read, half of them for "
        "each principal, so that no other request waits for such clients.",
    )
    max_connections: int = Field(
        default=1_000,
        ge=16,
        description="How many connections clients may keep, and each address half of them, but for proxies; for more, "
        "those that idle longest are closed. The process's limit of open files, less some hundreds, holds as well.",
    )
    requests_per_second: float | None = Field(
        default=None, gt=0, description="How many requests of each principal are let through, in the mean; more wait."
    )

    @field_validator("listen")
    @classmethod
    def _somewhere(cls, listen: tuple[Listen, ...]) -> tuple[Listen, ...]:
        if not listen:  # a constraint of the field would complain about lists whose members are wrong, too
            raise ValueError("write at least one address, or enabled: false")
        return listen


class StoreSection(Section):
    """The record store. All but the URL is for PostgreSQL."""

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
        description="How much TLS must prove, as libpq has it; verify-full for a server on another host. By default "
        "prefer, which proves nothing.",
    )
    sslrootcert: Path | None = Field(
        default=None, description="Certificates of those who may sign the server's certificate; or system."
    )
    sslcert: Path | None = Field(default=None, description="The certificate to log in with.")
    sslkey: Path | None = Field(default=None, description="Its key; no other user may read the file.")
    pool_size: int = Field(
        default=10,
        ge=2,
        le=1_000,
        description="Connections for short statements, and as many again for long answers, each as far as needed.",
    )
    replica: str | None = Field(
        default=None,
        pattern=r"^postgres(ql)?://",
        description="A streaming replica of the database, postgresql://user@host:port/database, for lists, sums and "
        "the page; the other options are also its own. Senders, plugins and single records go to url.",
    )
    replica_max_lag: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(seconds=2),
        description="The lag with which the replica is still asked; beyond it url answers.",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_password_out(cls, values: Any) -> Any:  # Any: not validated yet
        """A password that stands in the URL is a secret from here on: URLs get into messages."""
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
            raise ValueError(f"{given[0]} is for PostgreSQL only: leave it out, or write a url postgresql://…")
        return self

    @field_validator("replica")
    @classmethod
    def _without_password(cls, url: str | None) -> str | None:
        if url is not None and (_PASSWORD.fullmatch(url) or _PASSWORD_PARAMETER.fullmatch(url)):
            raise ValueError("leave the password out: it is that of store.password")
        return url

    @field_validator("url")
    @classmethod
    def _can_be_opened(cls, url: str) -> str:
        if not is_postgresql(url):
            sqlite_path(url)
        return url


class HooksSection(Section):
    """The installed hook modules, and those that are not loaded."""

    disabled: tuple[str, ...] = Field(
        default=(), description="Entry-point names or modules that are not loaded; the way out when one is broken."
    )


class LoggingSection(Section):
    """The log on standard error or in the journal."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level written, in small or capital letters."
    )
    format: Literal["text", "json", "journal"] = Field(
        default="text",
        description="text for people, json for collectors of logs, journal for systemd (with priorities).",
    )

    @field_validator("level", mode="before")
    @classmethod
    def _in_small_letters(cls, level: Any) -> Any:  # Any: not validated yet
        return level.lower() if isinstance(level, str) else level


class ShutdownSection(Section):
    """The end of the daemon."""

    grace: Duration = Field(
        default=timedelta(seconds=30),
        ge=timedelta(0),
        description="How long senders may drain the queue after SIGTERM.",
    )


class Configuration(Section):
    """The whole configuration, after every source has been merged."""

    state_dir: AbsolutePath = Field(
        description="Where the daemon keeps its files: $STATE_DIRECTORY, else /var/lib/auditord for root, else "
        "$XDG_STATE_HOME/auditord or ~/.local/state/auditord."
    )
    api: ApiSection = Field(default_factory=ApiSection)
    ui: UiSection = Field(default_factory=UiSection)
    access: AccessSection = Field(default_factory=AccessSection)
    store: StoreSection
    archive: ArchiveSection = Field(default_factory=ArchiveSection)
    lake: LakeSection = Field(default_factory=LakeSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    audit: AuditSection = Field(default_factory=AuditSection)
    pledges: tuple[PledgeSection, ...] = Field(default=(), description="Promised capacity, for reports and the page.")
    hooks: HooksSection = Field(default_factory=HooksSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    shutdown: ShutdownSection = Field(default_factory=ShutdownSection)
    collectors: Mapping[InstanceName, InstanceConfig] = Field(default={}, description="Sources of records, by name.")
    plugins: Mapping[InstanceName, InstanceConfig] = Field(default={}, description="Consumers of records, by name.")
    senders: Mapping[InstanceName, InstanceConfig] = Field(default={}, description="Destinations, by name.")
    authenticators: Mapping[InstanceName, InstanceConfig] = Field(
        default={},
        description="How callers of the API prove who they are; without any, all may read and write.",
    )
    transforms: Mapping[InstanceName, InstanceConfig] = Field(
        default={}, description="What every record meets before it is kept, in this order."
    )

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
    """The kind of a configured instance (the host adds ``kind`` to each kind's model)."""
    kind: str = getattr(instance, "kind")  # noqa: B009 the host's joined models have it, the kind's own one does not
    return kind


def source_of(sender: InstanceConfig) -> SenderSource:
    """The source of what a configured sender sends."""
    source: SenderSource = getattr(sender, "from", "collectors")
    return source
