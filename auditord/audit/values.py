"""Request and answer of a completeness audit; the answer is also its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from auditord_hookspecs import Window

State: TypeAlias = Literal[
    "stored", "missing", "unclosed", "different", "extra", "queued", "quarantined", "deleted", "earlier", "forgotten"
]

STATES: Final[Mapping[State, str]] = {
    "stored": "in the record store, and equal",
    "missing": "known to the source, and nowhere here",
    "unclosed": "stored without its end, which the source knows",
    "different": "stored with other content",
    "extra": "stored, and not known to the source, which is complete for its day",
    "queued": "on its way to the store",
    "quarantined": "in quarantine",
    "deleted": "deleted on purpose",
    "earlier": "ended before the collector's beginning, and is not stored",
    "forgotten": "stored, and from a time that the source has forgotten",
}
"""The states of a run."""

FAULTS: Final[tuple[State, ...]] = ("missing", "unclosed", "different", "extra")
"""States that should not be."""


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """An audit of a collector.

    Args:
        instance: the collector.
        window: runs that ended within it are compared.
        repair: collect the missing runs.
        replace: the reason for which runs that differ are overwritten; None leaves them.
        by: the name that is kept with the reason.
    """

    instance: str
    window: Window
    repair: bool = False
    replace: str | None = None
    by: str = ""


class DayCounts(msgspec.Struct, frozen=True):
    """The runs that ended on one day at one site, counted by state."""

    day: Annotated[str, Meta(description="of UTC, on which the runs ended; empty if that is not known.")]
    site: Annotated[str, Meta(description="the first ``site_id`` of their records; empty if they have none.")]
    counts: Annotated[dict[str, int], Meta(description="how many there are, by state.")]


class Discrepancy(msgspec.Struct, frozen=True):
    """One run that is not as it should be."""

    state: Annotated[str, Meta(description="``missing``, ``unclosed``, ``different`` or ``extra``.")]
    record_id: Annotated[str, Meta(description="its id; of a job that makes no record, that at its source.")]
    day: Annotated[str, Meta(description="of UTC, on which it ended; empty if that is not known.")]
    site: Annotated[str, Meta(description="its site.")]
    detail: Annotated[str, Meta(description="the difference, the obstacle, or the action taken.")] = ""


class AuditReport(msgspec.Struct, frozen=True):
    """The result of an audit."""

    task: Annotated[str, Meta(description="the collector.")]
    start: Annotated[str, Meta(description="of the period.")]
    stop: Annotated[str, Meta(description="of the period, exclusive.")]
    days: Annotated[list[DayCounts], Meta(description="the counts, in the order of days and sites.")]
    skipped: Annotated[dict[str, int], Meta(description="jobs of the source that make no record, by reason.")]
    discrepancies: Annotated[
        list[Discrepancy], Meta(description="the first thousand runs that are not as they should be.")
    ]
    unlisted: Annotated[int, Meta(description="how many more there are.")] = 0
    horizon: Annotated[str | None, Meta(description="what ended before, the source has forgotten.")] = None
    beginning: Annotated[str | None, Meta(description="what ended before, the collector is not to read.")] = None
    extras_sought: Annotated[
        bool, Meta(description="false where record ids do not tell whose they are, so that nothing can be extra.")
    ] = True
    repaired: Annotated[int, Meta(description="how many runs were collected.")] = 0
    replaced: Annotated[int, Meta(description="how many records were replaced.")] = 0
    error: Annotated[str | None, Meta(description="why the inventory is not whole, if it is not.")] = None

    def total(self, *states: str) -> int:
        """The number of runs in any of the states."""
        return sum(each.counts.get(state, 0) for each in self.days for state in states)

    @property
    def complete(self) -> bool:
        """True if the inventory was whole, and nothing is left that should not be."""
        return self.error is None and self.total(*FAULTS) == self.repaired + self.replaced
