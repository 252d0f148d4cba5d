"""The options of utilisation reports, and their import from the file of AUDITOR's plugin."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, field_validator, model_validator

from auditord_builtin.utilisation.periods import PeriodKind
from auditord_hookspecs import Duration, ImportedConfig, PluginConfig, Secret, Section
from auditord_hookspecs.config import AbsolutePath, GroupKeys, SiteKeys, UserKeys
from auditord_hookspecs.config_import import OWN_LOG, ConfigImport, Document

_ADDRESS: Final = re.compile(r"[^\s<>\",;:()\[\]@\x00-\x1f]+@[^\s<>\",;:()\[\]@\x00-\x1f]+")
_PORTS: Final = {"none": 25, "starttls": 587, "ssl": 465}
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def require_address(address: str) -> str:
    """Return the address if it is a bare mail address, without a display name.

    Raises:
        ValueError: it is not.
    """
    if not address.isascii() or not _ADDRESS.fullmatch(address):
        raise ValueError(f"'{address}' is not a mail address: write it as name@example.org")
    return address


Address = Annotated[str, AfterValidator(require_address)]
Amount = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class Level(Enum):
    """The rows of a report: each site, each group of a site, each user of a group, and totals over sites and groups."""

    SITE = "site"
    GROUP = "group"
    USER = "user"
    GROUP_TOTAL = "group_total"
    """A group, summed over all sites."""
    USER_TOTAL = "user_total"
    """A user, summed over all sites and groups."""


class TimeUnit(Enum):
    """The unit of CPU times."""

    SECONDS = "s"
    MILLISECONDS = "ms"


class SizeUnit(Enum):
    """The unit of memory."""

    BYTES = "B"
    KIB = "KiB"
    MIB = "MiB"
    GIB = "GiB"

    @property
    def bytes(self) -> int:
        """The number of bytes of a unit."""
        return 1 << 10 * list(SizeUnit).index(self)


class Components(Section):
    """The names of the components."""

    cores: str = Field(default="Cores", description="The component with a job's cores.")
    cpu_time: str | None = Field(default="TotalCPU", description="User and system CPU time on all cores.")
    cpu_time_unit: TimeUnit = TimeUnit.SECONDS
    gpus: str | None = Field(default="GPU", description="The component with a job's GPUs.")
    memory: str | None = Field(default="Memory", description="The memory that a job requested.")
    memory_unit: SizeUnit = SizeUnit.MIB
    memory_peak: str | None = Field(default="MaxRSS", description="The peak memory usage.")
    memory_peak_unit: SizeUnit = SizeUnit.BYTES
    energy: str | None = Field(default="Energy", description="Measured energy in joules.")

    @property
    def names(self) -> tuple[str, ...]:
        """All components to sum up."""
        named = (self.cores, self.cpu_time, self.gpus, self.memory, self.memory_peak, self.energy)
        return tuple([name for name in named if name is not None])

    @model_validator(mode="after")
    def _distinct(self) -> "Components":
        if len(set(self.names)) < len(self.names):
            raise ValueError("one component is named for two purposes: name another one, or null")
        return self


class NameRule(Section):
    """A rule for the name of a group in the report."""

    matches: re.Pattern[str] = Field(description="A regular expression, searched for in the group's name.")
    name: str = Field(description="The new name; {1} is the first group of the expression.")

    @model_validator(mode="after")
    def _groups_are_there(self) -> "NameRule":
        for number in re.findall(r"\{(\d+)\}", self.name):
            if int(number) > self.matches.groups:
                raise ValueError(f"'{self.name}' has {{{number}}}, but '{self.matches.pattern}' has no such group")
        return self


class SiteEnergy(Section):
    """The options that differ for a site."""

    watt_per_core: Amount | None = None
    pue: Decimal | None = Field(default=None, ge=1, allow_inf_nan=False)
    co2_per_kwh: Amount | None = None


class GridIntensity(Section):
    """A CSV file with the CO2 intensity of the grid over time."""

    file: AbsolutePath = Field(description="A CSV file with a header; read again for each report.")
    time_column: str = Field(
        default="time", description="The column with the time: ISO 8601, in UTC unless it has a zone."
    )
    value_column: str = Field(default="kg_per_kwh", description="The column with CO2 per kWh.")
    factor: Amount = Field(default=Decimal(1), description="Converts the file's unit to kg per kWh: 0.001 for g.")


class Energy(Section):
    """Estimates of CO2, and of the energy of jobs without measurements."""

    watt_per_core: Amount | None = Field(
        default=None,
        description="Estimates the energy of jobs without a measurement; without it their energy is not reported.",
    )
    pue: Decimal = Field(
        default=Decimal(1),
        ge=1,
        allow_inf_nan=False,
        description="The building's power divided by the computers' power.",
    )
    co2_per_kwh: Amount | None = Field(default=None, description="The CO2 intensity in kg per kWh.")
    grid_intensity: GridIntensity | None = Field(
        default=None, description="The CO2 intensity over time; days that are not in the file use co2_per_kwh."
    )
    sites: Mapping[str, SiteEnergy] = Field(default={}, description="Other values for single sites.")


class Csv(Section):
    """The CSV file."""

    folder: AbsolutePath = Field(description="An existing folder.")
    name: str = Field(
        default="{instance}-{period}.csv", description="The file's name; {instance} and {period} are replaced."
    )

    @field_validator("name")
    @classmethod
    def _of_one_period(cls, name: str) -> str:
        if "{period}" not in name:
            raise ValueError("needs {period}, or each report would overwrite the previous one")
        if "/" in name or re.search(r"[{}]", name.replace("{period}", "").replace("{instance}", "")):
            raise ValueError("must be a file name with {period} and optionally {instance}")
        return name


class Server(Section):
    """The mail server."""

    host: str = "localhost"
    port: int | None = Field(
        default=None, ge=1, le=65_535, description="Default: 587, 465 or 25, depending on security."
    )
    security: str = Field(default="starttls", pattern="^(starttls|ssl|none)$")
    ca: AbsolutePath | None = Field(default=None, description="PEM file with the server's CA.")
    user: str | None = Field(default=None, description="The login name.")
    password: Secret | None = Field(default=None, description="The password, as a reference to a secret.")

    @property
    def port_number(self) -> int:
        """The configured port, or the default for ``security``."""
        return self.port or _PORTS[self.security]

    @model_validator(mode="after")
    def _no_password_in_clear(self) -> "Server":
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password must be set together")
        if self.user is not None and self.security == "none" and self.host not in _LOOPBACK:
            raise ValueError("the password would be sent unencrypted: security must be starttls or ssl")
        return self


class UserMail(Section):
    """Mails to users about their own jobs."""

    period: PeriodKind = PeriodKind.WEEK
    address: str | None = Field(
        default=None, description="An address with {user} in it; without it only addresses is used."
    )
    addresses: Mapping[str, Address] = Field(default={}, description="Addresses of single users.")

    @field_validator("address")
    @classmethod
    def _of_a_user(cls, address: str | None) -> str | None:
        if address is not None:
            if "{user}" not in address:
                raise ValueError("needs {user}, or all users' mails would go to one address")
            require_address(address.replace("{user}", "user"))
        return address


class Mail(Section):
    """Mails with reports."""

    server: Server = Server()
    sender: Address
    recipients: tuple[Address, ...] = ()
    most_rows: int = Field(default=20, ge=1, description="How many groups and users of a site a mail lists.")
    users: UserMail | None = None

    @field_validator("recipients")
    @classmethod
    def _each_once(cls, recipients: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(recipients)) < len(recipients):
            raise ValueError("one address is listed twice")
        return recipients


class UtilisationConfig(PluginConfig):
    """Reports what sites, groups and users used: a CSV file and mails, once for each month or week."""

    period: PeriodKind = PeriodKind.MONTH
    settle: Duration = Field(
        default=timedelta(days=1), ge=timedelta(0), description="How long after its end a period is reported."
    )
    wait_for_sites: Duration = Field(
        default=timedelta(days=7),
        ge=timedelta(0),
        description="How much longer to wait while a site has no later job, since its records may be late.",
    )
    title: str = Field(default="Utilisation", min_length=1, pattern=r"^[^\x00-\x1f\x7f]+$")
    group_keys: GroupKeys = Field(
        default=(),
        description="Group by other labels than that of labels.group; the first one that a record has counts.",
    )
    site_keys: SiteKeys = Field(default=(), description="The same for labels.site.")
    user_keys: UserKeys = Field(default=(), description="The same for labels.user.")
    sites: tuple[str, ...] = Field(default=(), description="Only these sites; empty: all.")
    only: Mapping[str, tuple[str, ...]] = Field(
        default={},
        description="Only jobs that have one of these values of each label, such as outcome: [failed, timeout].",
    )
    group_names: tuple[NameRule, ...] = Field(
        default=(), description="The first matching rule renames a group; other groups keep their name."
    )
    levels: tuple[Level, ...] = Field(default=tuple(Level), description="The rows of the report.")
    components: Components = Components()
    benchmark: str = Field(default="HEPscore23", description="The score of a core's benchmark.")
    energy: Energy = Energy()
    csv: Csv | None = None
    mail: Mail | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> "UtilisationConfig":
        if self.mail is not None and not self.mail.recipients and self.mail.users is None:
            raise ValueError("mail has neither recipients nor users: no mail would be sent")
        return self


_MILLISECONDS: Final = frozenset({"slurm", "kubernetes"})
_NAMES: Final = {"cores": "components.cores", "total_cpu": "components.cpu_time", "benchmark": "benchmark"}
_DROPPED: Final = {
    "auditor": "the daemon reports on its own records; for another server, set source: {url: 'http://host:port'}, "
    "and for several servers, one instance each",
    "logging.file": OWN_LOG,
    "utilization.interval": "a month is reported once, after its end; the plugin's state records this",
    "utilization.oneshot": "auditord report utilisation --month … shows a report at once",
}
_MAIL: Final = (
    "the addresses and the password were in the environment. Write mail: {{server: {{host: {host}, port: {port}, "
    "security: starttls, user: …, password: 'file:/path'}}, sender: …, recipients: […]}}"
)
_KNOWN: Final = {
    "logging": {"level", "file"},
    "auditor": None,
    "utilization": {
        "groupedby",
        "grouped_list",
        "watt_per_core",
        "co2_per_kwh",
        "interval",
        "file_name",
        "file_path",
        "oneshot",
    },
    "cluster": {"watt_per_core"},
    "email": None,
}


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's utilisation plugin, or return None for any other file."""
    if "utilization" not in document:
        return None
    result = ConfigImport(document, "plugins.utilisation")
    result.put("kind", "utilisation")
    _import_groups(result)
    options = result.section("utilization")
    sites: Document = result.section("cluster").get("watt_per_core", {}).get("site") or {}
    if sites:
        result.put("energy.sites", {str(site): {"watt_per_core": watt} for site, watt in sites.items()})
    if options.get("watt_per_core") is not None:
        remark = "for all other sites; AUDITOR used 0 W for these if there was a list of sites" if sites else ""
        result.put("energy.watt_per_core", options["watt_per_core"], remark)
    if options.get("co2_per_kwh") is not None:
        result.put("energy.co2_per_kwh", options["co2_per_kwh"], "kg per kWh")
    source = result.section("auditor")
    named: Document = source.get("component_fields_in_record") or {}
    for name in set(_NAMES) & set(named):
        result.put(_NAMES[name], str(named[name]))
    if source.get("collector_type") in _MILLISECONDS:
        remark = "as AUDITOR's collector writes it; auditord's own collectors write seconds: s"
        result.put("components.cpu_time_unit", "ms", remark)
    site_field = source.get("site_meta_field")
    if site_field:
        keys = [site_field] if isinstance(site_field, str) else [str(each) for each in site_field]
        result.put("site_keys", keys, "AUDITOR required this, but used the key site regardless")
    folder = Path(str(options.get("file_path", "."))).absolute()
    result.put("csv.folder", str(folder), "has more columns than AUDITOR's file, see auditord report utilisation")
    result.put("csv.name", f"{options.get('file_name', 'auditor')}_{{period}}.csv")
    if level := result.section("logging").get("level"):
        result.put_level(level)
    _list_dropped(result)
    return result.result()


def _import_groups(result: ConfigImport) -> None:
    options = result.section("utilization")
    if "groupedby" in options:
        result.put("group_keys", [str(options["groupedby"])])
    listed: Sequence[Any] = options.get("grouped_list") or []  # Any: YAML
    if listed:
        rules = [{"matches": re.escape(str(name)), "name": str(name)} for name in listed]
        remark = "a part of the name is enough, as with AUDITOR (there a job could count in several groups; here the "
        result.put("group_names", rules, remark + "first rule decides); for the whole name write ^name$")
        return
    result.put(
        "group_names",
        [
            {"matches": r"^/([^/]+).*/Role=NULL(?:/|$)", "name": "{1}"},
            {"matches": r"^/([^/]+).*/Role=([^/]+)", "name": "{1}-{2}"},
            {"matches": r"^/([^/]+)", "name": "{1}"},
        ],
        "VOMS attributes by VO and role, as with AUDITOR",
    )


def _list_dropped(result: ConfigImport) -> None:
    for path, reason in _DROPPED.items():
        section, _, option = path.partition(".")
        if section in result.document and (not option or option in result.section(section)):
            result.dropped[path] = reason
    mail = result.section("email")
    if mail.get("enable_email_report"):
        result.dropped["email"] = _MAIL.format(host=mail.get("smtp_server"), port=mail.get("smtp_port"))
    unknown = [section for section in result.document if section not in _KNOWN]
    for section, options in _KNOWN.items():
        given: list[str] = list(result.section(section)) if options is not None else []
        unknown += [f"{section}.{option}" for option in given if option not in (options or ())]
    result.dropped |= dict.fromkeys(unknown, "as far as we know, AUDITOR's plugin has no such option and ignored it")
