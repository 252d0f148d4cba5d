"""The lake's section of the configuration."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from auditord.config.sizes import Size
from auditord_hookspecs import Duration, RunConfig, Secret
from auditord_hookspecs.config import Section

_FORMS: Final = {
    "spark": (r"sc://", "the URL of a Spark Connect server: sc://host:15002"),
    "trino": (r"https?://[^/@:]+@[^/@]+/[^/]+\Z", "the URL of a Trino catalog: https://user@host:8443/catalog"),
    "catalog": (
        r"sqlite:////|postgresql://|https?://",
        "sqlite:////absolute/path, postgresql://user@host/database or https://host/path",
    ),
}
"""Options that must begin in a certain way: the pattern, and the text for the error message."""


class S3Section(Section):
    """The object store with the lake's files. Unset options come from the environment, as in AWS's own programs."""

    endpoint: str | None = Field(default=None, description="URL of the server; null: AWS.")
    region: str | None = Field(default=None, description="The region.")
    access_key_id: str | None = Field(default=None, description="The access key's id.")
    secret_access_key: Secret | None = Field(
        default=None, description="The secret access key, best as a reference: file:/path."
    )


class SiteAge(Section):
    """The age up to which records of a site stay in the record store."""

    keep_months: int | None = Field(ge=1, description="How many months; null: keep all.")


class LakeSection(RunConfig):
    """An Apache Iceberg table to which all records are synced. Many daemons may share it. Needs the extra `lake`."""

    enabled: bool = Field(default=False, description="Whether this daemon syncs its records to the lake.")
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="The permanent and unique name of this record store in the lake. Required if enabled is true.",
    )
    catalog: str | None = Field(
        default=None,
        description="The catalog, which records the table's newest state: sqlite:////absolute/path (for daemons on "
        "one host), postgresql://user@host/database, or the URL of an Iceberg REST catalog. null: catalog.db in the "
        "warehouse, which must be a folder then.",
    )
    password: Secret | None = Field(default=None, description="The password of the catalog's user in PostgreSQL.")
    token: Secret | None = Field(
        default=None, description="The token of a REST catalog, sent as Authorization: Bearer."
    )
    warehouse: str | None = Field(
        default=None,
        description="The location of the table's files: an absolute path, or s3://bucket/prefix; null: lake in "
        "state_dir.",
    )
    s3: S3Section = Field(default_factory=S3Section)
    keep_months: int | None = Field(
        default=None,
        ge=1,
        description="How many months of records to keep in the record store as well; older records are only in the "
        "lake, and all sums still include them. null: keep all.",
    )
    sites: dict[Annotated[str, Field(min_length=1)], SiteAge] = Field(
        default_factory=dict[str, SiteAge],
        description="Other numbers of months by site (the first value of site_id, or else of site): "
        "{KIT: {keep_months: 60}}.",
    )
    keep_snapshots: Duration = Field(
        default=timedelta(days=1),
        gt=timedelta(0),
        description="How long previous snapshots of the table can be read, up to 500 of them. After that, their "
        "files are deleted.",
    )

    scope: Literal["own", "all"] = Field(
        default="own",
        description="The records that queries of the lake return: own (those of this record store, see name) or all "
        "(those of every daemon that syncs to the lake; for a hub). Roles restrict both in the same way.",
    )
    engine: Literal["duckdb", "spark", "trino"] = Field(
        default="duckdb",
        description="The query engine: duckdb, inside the daemon, or a cluster: spark or trino.",
    )
    spark: str | None = Field(
        default=None,
        description="For engine spark: the Spark Connect server, sc://host:15002; with TLS, "
        "sc://host:443/;use_ssl=true.",
    )
    spark_token: Secret | None = Field(
        default=None, description="A token for the Spark Connect server, sent over TLS as Authorization: Bearer."
    )
    trino: str | None = Field(
        default=None,
        description="For engine trino: its catalog, https://user@host:8443/catalog. It must use the connector "
        "iceberg, with the same database or REST server as lake.catalog.",
    )
    trino_password: Secret | None = Field(default=None, description="The password of Trino's user, over https.")
    trino_token: Secret | None = Field(default=None, description="A JWT for Trino instead, over https.")
    memory: Size = Field(
        default=1 << 30,
        ge=64 << 20,
        description="The memory that DuckDB may use for all queries together. Queries that need more spill to "
        "state_dir.",
    )
    threads: int = Field(
        default=2, ge=1, le=256, description="The number of threads that DuckDB may use for all queries together."
    )

    @property
    def is_there(self) -> bool:
        """True if the daemon has a lake, to sync records to or only to query."""
        return self.enabled or self.catalog is not None or self.warehouse is not None

    def is_old(self, now: datetime, partition: tuple[int | None, str | None]) -> bool:
        """Return whether the records of a partition are old enough to be only in the lake.

        ``partition`` is the month, as months since January 1970 (None for open records), and the site.
        """
        month, site = partition
        age = self.keep_months if site is None or site not in self.sites else self.sites[site].keep_months
        if month is None or age is None:
            return False
        today = now.astimezone(UTC)
        return month < (today.year - 1970) * 12 + today.month - 1 - age

    @field_validator(*_FORMS)
    @classmethod
    def _has_form(cls, text: str | None, option: ValidationInfo) -> str | None:
        form, wanted = _FORMS[str(option.field_name)]
        if text is not None and not re.match(form, text):
            raise ValueError(f"write {wanted}")
        return text

    @field_validator("warehouse")
    @classmethod
    def _is_absolute(cls, warehouse: str | None) -> str | None:
        if warehouse is not None and not warehouse.startswith("s3://") and not Path(warehouse).is_absolute():
            raise ValueError(f"{warehouse} is a relative path: write an absolute path or s3://…")
        return warehouse

    @model_validator(mode="after")
    def _says_enough(self) -> "LakeSection":
        if self.enabled and self.name is None:
            raise ValueError("set lake.name, the permanent and unique name of this record store in the lake")
        if (self.engine == "spark") != (self.spark is not None):
            raise ValueError("lake.engine: spark needs lake.spark: sc://host:15002; other engines do not use it")
        if (self.engine == "trino") != (self.trino is not None):
            raise ValueError(
                "lake.engine: trino needs lake.trino: https://user@host/catalog; other engines do not use it"
            )
        if self.trino is not None and (self.catalog is None or self.catalog.startswith("sqlite:")):
            raise ValueError("Trino cannot read a catalog in SQLite: write lake.catalog: postgresql://… or https://…")
        is_secret = self.trino_password is not None or self.trino_token is not None
        if self.trino is not None and self.trino.startswith("http://") and is_secret:
            raise ValueError("a password or token is sent to Trino over https only: write lake.trino: https://…")
        if self.catalog is None and self.warehouse is not None and self.warehouse.startswith("s3://"):
            raise ValueError("set lake.catalog: a warehouse in an object store has no default catalog")
        return self
