"""The options of a folder that records are dropped into."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from auditord_hookspecs import RunConfig
from auditord_hookspecs.config import NonNegativeDuration
from auditord_hookspecs.mapping import ComponentRule, MetaRule, SiteRule, columns


class FilesConfig(RunConfig):
    """Records in files, one per line, that something else writes."""

    folder: Path = Field(description="Files named *.ndjson, *.jsonl or *.csv are taken from here.")
    results: Path | None = Field(
        default=None,
        description="Where done, failed and quarantine are, each the daemon's own; by default below state_dir, in "
        "instances/<name>, where nobody who drops files can write.",
    )
    settle: NonNegativeDuration = Field(
        default=timedelta(seconds=10), description="A file is complete when nobody has written to it for this long."
    )
    record_prefix: str = Field(
        default="", description="Put before each record's id, with a - between; empty: ids are taken as they are."
    )
    sites: tuple[SiteRule, ...] = Field(default=(), description="CSV: names the site by columns; empty: meta.site_id.")
    meta: tuple[MetaRule, ...] = Field(default=(), description="CSV: labels from other columns than meta.<name>.")
    components: tuple[ComponentRule, ...] = Field(
        default=(), description="CSV: components from other columns than amount.<name>."
    )

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the rules look at."""
        return frozenset(columns(self.sites, self.meta, self.components))
