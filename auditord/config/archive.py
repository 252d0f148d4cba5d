"""The section of the configuration about the archive."""

from typing import Annotated

from pydantic import Field, field_validator

from auditord_hookspecs import RunConfig
from auditord_hookspecs.config import AbsolutePath, Section


class SiteAge(Section):
    """The age of a site's records, in the place of `after_months`."""

    months: int = Field(
        ge=1, description="Months after which the site's records move, counted from the month of their end."
    )


class ArchiveSection(RunConfig):
    """Old records move into an Apache Iceberg table; all sums count them as ever. Needs the extra `archive`."""

    enabled: bool = Field(
        default=False, description="Whether records move; archived records are read from the archive in any case."
    )
    after_months: int = Field(
        default=24,
        ge=1,
        description="Months after which records move, counted from the month in which their job ended.",
    )
    sites: dict[Annotated[str, Field(min_length=1)], SiteAge] = Field(
        default_factory=dict[str, SiteAge],
        description="Other ages by site (the first value of site_id, or else of site): {KIT: {months: 60}}.",
    )
    folder: AbsolutePath | None = Field(
        default=None, description="Where the table's files are; null: archive in state_dir. Several daemons share it."
    )
    catalog: str | None = Field(
        default=None,
        description="Where the newest state of the table is noted: sqlite:////absolute/path or "
        "postgresql://user@host/database; null: catalog.db in the folder where that is there or the record store is in "
        "SQLite, otherwise the record store's database.",
    )

    @field_validator("catalog")
    @classmethod
    def _can_be_opened(cls, catalog: str | None) -> str | None:
        if catalog is not None and not catalog.startswith(("sqlite:////", "postgresql://")):
            raise ValueError("write sqlite:////absolute/path or postgresql://user@host/database")
        return catalog
