"""The options of the plugin ``waldur``. Options that mean the same as in the Waldur site agent have its names."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from auditord_hookspecs import Duration, PluginConfig, Secret, Section
from auditord_hookspecs.config import NonNegativeDuration, SiteKeys, UserKeys, Words

CENT: Final = Decimal("0.01")
"""Waldur keeps amounts with two decimals and refuses more."""


def _read_ratio(value: Any) -> Any:  # Any: a value from the file
    try:
        # Convert through text: 0.1 must be exactly a tenth, not the nearest binary number.
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{value!r} is not a number such as 60000, 0.5 or 1/1048576") from error


Ratio = Annotated[
    Fraction,
    BeforeValidator(_read_ratio),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": ["number", "string"], "examples": [60000, 0.5, "1/1048576"]}),
]
"""An exact number: ``60000``, ``0.5``, ``1/1048576``."""


class TargetResource(Section):
    """The share of one resource in a component that is made of several."""

    factor: Ratio = Field(gt=0, description="Resource-minutes per unit of the component.")


class BackendComponent(Section):
    """A component of the offering, by its type in Waldur. Without targets it counts the resource of the same name."""

    measured_unit: str = Field(default="", description="The unit's name in Waldur, for texts and diagnose.")
    label: str = Field(default="", description="The component's display name.")
    unit_factor: Ratio = Field(
        default=Fraction(1), gt=0, description="Resource-minutes per unit: 60000 converts minutes to k-hours."
    )
    target_components: Mapping[str, TargetResource] = Field(
        default={}, description="Several resources that add up to this component, each with its own factor."
    )

    def factors(self, name: str) -> Mapping[str, Fraction]:
        """Return the resource-minutes per unit, by resource. ``name`` is the component's key."""
        if not self.target_components:
            return {name: self.unit_factor}
        return {resource: target.factor for resource, target in self.target_components.items()}


class RecordedResource(Section):
    """The components of records that hold a resource."""

    component: tuple[str, ...] = Field(min_length=1, description="Components of records; several are added up.")
    scale: Ratio = Field(
        default=Fraction(1), gt=0, description="Amount times scale must be in the resource's unit (MiB for mem)."
    )


RECORDED: Final[Mapping[str, RecordedResource]] = {
    "cpu": RecordedResource(component=("Cores",)),
    "mem": RecordedResource(component=("Memory",)),
    "gres/gpu": RecordedResource(component=("GPU",)),
}
"""The resources that collectors write into records."""


def round_amount(amount: Fraction) -> Decimal:
    """Round half up to the two decimals that Waldur keeps. Only this function rounds amounts."""
    cents, rest = divmod(amount * 100, 1)
    return (int(cents) + (rest >= Fraction(1, 2))) * CENT


INTERVAL = timedelta(minutes=30)
"""The default time between reports."""


def _zone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError(f"{name!r} is not a time zone such as UTC or Europe/Tallinn")
    return name


class SlurmAccess(Section):
    """Access to Slurm's own programs, for ``--source sacct``, ``compare`` and ``diagnose``."""

    slurm_bin_path: Path = Field(default=Path("/usr/bin"), description="The folder of sacct, sacctmgr and sinfo.")
    cluster_name: str | None = Field(default=None, description="The cluster to query; default: the local one.")
    through: tuple[str, ...] = Field(
        default=(), description="A command that runs these programs elsewhere, such as [ssh, head1]."
    )
    tres: Literal["AllocTRES", "ReqTRES"] = Field(
        default="AllocTRES",
        description="What to count: the resources that a job was allocated, or (as the agent does) those that it "
        "requested.",
    )
    sacct_timeout: Duration = Field(
        default=timedelta(minutes=5), gt=timedelta(0), description="Kill a program after this long."
    )

    def argv(self, program: str, *arguments: str) -> Sequence[str]:
        """Return the command line of one of Slurm's programs."""
        return (str(self.slurm_bin_path / program), *arguments)


class WaldurConfig(PluginConfig):
    """Reports the usage of a Waldur offering: absolute amounts of the current and the last billing periods."""

    waldur_api_url: str = Field(
        description="The URL of Waldur's API: https://host/api/; a missing slash at its end is added."
    )
    waldur_offering_uuid: UUID = Field(description="The offering's UUID.")
    waldur_api_token: Secret | None = Field(default=None, description="A token, as a reference to a secret.")
    oidc_token_url: str | None = Field(default=None, description="The OIDC token endpoint, instead of a token.")
    oidc_client_id: str | None = Field(default=None, description="The OIDC client id.")
    oidc_client_secret: Secret | None = Field(
        default=None, description="The OIDC client secret, as a reference to a secret."
    )
    verify_ssl: bool = Field(default=True, description="Verify Waldur's certificate; false for tests only.")
    ca_file: Path | None = Field(default=None, description="PEM file with Waldur's CA; default: the system's CAs.")
    proxy: str | None = Field(default=None, description="A proxy for requests to Waldur: http://host:port.")
    retry_for: Duration = Field(
        default=timedelta(minutes=10),
        description="The total time that a run spends on retries after temporary errors.",
    )

    timezone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="The time zone of billing periods."
    )
    reporting_periods: int = Field(
        default=2, ge=1, le=12, description="How many months to report: 2 is the previous and the current one."
    )
    backend_components: Mapping[str, BackendComponent] = Field(
        min_length=1, description="The offering's components, by their type in Waldur."
    )
    recorded_as: Mapping[str, RecordedResource] = Field(
        default={},
        description="The components of records for a resource; cpu, mem (MiB) and gres/gpu are built in.",
    )
    account_meta: Words = Field(
        default=("account",), min_length=1, description="The label with the account, the backend_id of resources."
    )
    user_meta: UserKeys = Field(default=(), description="Another label with the user than that of labels.user.")
    site_meta: SiteKeys = Field(default=(), description="Another label with the site than that of labels.site.")
    sites: tuple[str, ...] = Field(default=(), description="The sites to count; each must be up to date. Empty: all.")
    account_prefixes: tuple[str, ...] = Field(
        default=(), description="Report only accounts with one of these prefixes; empty: all."
    )
    lag: NonNegativeDuration = Field(
        default=timedelta(minutes=15),
        description="Count running jobs up to this long ago, when the ends of all jobs are known. Otherwise amounts "
        "could decrease later.",
    )
    stale_after: Duration = Field(
        default=timedelta(days=1),
        gt=timedelta(0),
        description="A site without a new record for this long counts as outdated, not idle: no amount decreases or "
        "becomes zero.",
    )
    allow_decrease: bool = Field(
        default=False,
        description="Allow amounts to decrease. Otherwise a decrease is held back and explained.",
    )
    omit_anomalous_usage_components: bool = Field(
        default=False,
        description="If one component of a resource would decrease, hold back that component and report the others.",
    )
    slurm: SlurmAccess = SlurmAccess()

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of billing periods."""
        return ZoneInfo(self.timezone)

    @property
    def recorded(self) -> Mapping[str, RecordedResource]:
        """The components of records by resource, built-in and configured."""
        return {**RECORDED, **self.recorded_as}

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that the components count, without duplicates."""
        named = [name for key, component in self.backend_components.items() for name in component.factors(key)]
        return tuple(dict.fromkeys(named))

    def selects(self, account: str) -> bool:
        """Return True if an account is reported. Prefixes match in any case."""
        prefixes = tuple(prefix.casefold() for prefix in self.account_prefixes)
        return not prefixes or account.casefold().startswith(prefixes)

    @field_validator("waldur_api_url")
    @classmethod
    def _of_the_api(cls, url: str) -> str:
        parts = urlsplit(url.strip())
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address such as https://waldur.example.org/api/")
        # Remove "/api" as a whole, not its letters as rstrip would: a host name may end in .ai.
        return f"{url.strip().rstrip('/').removesuffix('/api')}/api/"

    @model_validator(mode="after")
    def _one_way_in(self) -> "WaldurConfig":
        oidc = [self.oidc_token_url, self.oidc_client_id, self.oidc_client_secret]
        wanted = 3 if self.waldur_api_token is None else 0
        if len(oidc) - oidc.count(None) != wanted:
            raise ValueError(
                "give either waldur_api_token or all of oidc_token_url, oidc_client_id and oidc_client_secret"
            )
        return self

    @model_validator(mode="after")
    def _resources_are_recorded(self) -> "WaldurConfig":
        for name in self.resources:
            if name not in self.recorded:
                hint = " (Slurm's name for GPUs is gres/gpu)" if name == "gpu" else ""
                known = ", ".join(self.recorded)
                raise ValueError(f"backend_components: records have {known}, not {name!r}{hint}; add it to recorded_as")
        return self

    @model_validator(mode="after")
    def _ends_before_the_next_run(self) -> "WaldurConfig":
        if self.schedule is None and not timedelta(0) <= self.retry_for < (self.interval or INTERVAL):
            raise ValueError("retry_for: must be shorter than the interval, or runs would pile up")
        return self
