"""Request and report of a completeness audit. The report is also the JSON output."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from auditord_hookspecs import Window

State: TypeAlias = Literal[
    "stored", "missing", "unclosed", "different", "extra", "queued", "quarantined", "deleted", "earlier", "forgotten"
]

STATES: Final[Mapping[State, str]] = {
    "stored": "the stored record equals the source",
    "missing": "in the source, but not stored, queued, quarantined or deleted here",
    "unclosed": "stored as open, but ended in the source",
    "different": "stored with different content",
    "extra": "stored, but not in the source, which is complete for its day",
    "queued": "on its way to the store",
    "quarantined": "in quarantine",
    "deleted": "deleted on purpose",
    "earlier": "not stored, and ended before the time from which the collector reads",
    "forgotten": "stored, but from a time that the source no longer knows",
}
"""The states of a run, with their meaning."""

FAULTS: Final[tuple[State, ...]] = ("missing", "unclosed", "quarantined", "different", "extra")
"""States that are faults. A job in quarantine is not accounted for."""


class AuditRequest(msgspec.Struct, frozen=True):
    """An audit of a collector.

    Args:
        instance: the collector.
        window: runs that ended within it are compared.
        repair: collect the missing runs.
        replace: the reason for overwriting different records; None to leave them.
        by: the author's name, stored with the reason.
    """

    instance: str
    window: Window
    repair: bool = False
    replace: str | None = None
    by: str = ""


class DayCounts(msgspec.Struct, frozen=True):
    """The runs that ended on one day at one site, counted by state."""

    day: Annotated[str, Meta(description="the day (UTC) on which the runs ended; empty if unknown.")]
    site: Annotated[str, Meta(description="the first ``site_id`` of the records; empty without one.")]
    counts: Annotated[dict[str, int], Meta(description="the number of runs, by state.")]


class Discrepancy(msgspec.Struct, frozen=True):
    """A run that is missing, unclosed, quarantined, different or extra."""

    state: Annotated[str, Meta(description="``missing``, ``unclosed``, ``quarantined``, ``different`` or ``extra``.")]
    record_id: Annotated[str, Meta(description="the record's id; for a job without a record, its id in the source.")]
    day: Annotated[str, Meta(description="the day (UTC) on which the run ended; empty if unknown.")]
    site: Annotated[str, Meta(description="the record's site.")]
    detail: Annotated[str, Meta(description="the difference, why a repair was refused, or the repair.")] = ""


class AuditReport(msgspec.Struct, frozen=True):
    """The result of an audit."""

    task: Annotated[str, Meta(description="the collector's name.")]
    start: Annotated[str, Meta(description="the start of the period.")]
    stop: Annotated[str, Meta(description="the end of the period, exclusive.")]
    days: Annotated[list[DayCounts], Meta(description="the counts, ordered by day and site.")]
    skipped: Annotated[dict[str, int], Meta(description="jobs of the source that make no record, by reason.")]
    discrepancies: Annotated[list[Discrepancy], Meta(description="the first thousand runs with a discrepancy.")]
    unlisted: Annotated[int, Meta(description="the number of further discrepancies.")] = 0
    horizon: Annotated[str | None, Meta(description="the source no longer knows jobs that ended before this.")] = None
    beginning: Annotated[str | None, Meta(description="the collector does not read jobs that ended before this.")] = (
        None
    )
    extras_sought: Annotated[
        bool,
        Meta(description="false where record ids do not show the collector, so that extra records cannot be found."),
    ] = True
    quarantined_beside: Annotated[
        int,
        Meta(description="the collector's other entries in quarantine, whose runs are of other or unknown periods."),
    ] = 0
    repaired: Annotated[int, Meta(description="the number of runs that were collected.")] = 0
    replaced: Annotated[int, Meta(description="the number of records that were replaced.")] = 0
    error: Annotated[str | None, Meta(description="why the inventory is incomplete; null if it is complete.")] = None

    def total(self, *states: str) -> int:
        """Return the number of runs in any of the states."""
        return sum(each.counts.get(state, 0) for each in self.days for state in states)

    @property
    def complete(self) -> bool:
        """True if the inventory is complete and every fault was repaired."""
        return self.error is None and self.total(*FAULTS) == self.repaired + self.replaced
