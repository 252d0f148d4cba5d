"""Reports of a daemon to a hub: the sums of its stored records by site and day, and their wire format."""

from collections.abc import Collection
from datetime import UTC, date, datetime, time
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from auditord_hookspecs import AggregateQuery, Aggregates, CalendarPeriod, CalendarUnit, ComponentUsage, MetaValue
from auditord_hookspecs.query import AllOf, AnyOf, Comparison, Condition, MetaContainsAny, TimeCompares, TimeField
from auditord_hookspecs.roles import SITE_KEYS

PATH: Final = "/api/v1/site_reports"

MOST_DAYS: Final = 10_000
"""The maximum number of entries in a report, one for each site and day."""

_BY: Final = (MetaValue(*SITE_KEYS), CalendarPeriod(CalendarUnit.DAY))
_CORES: Final = (ComponentUsage("Cores"),)

Site: TypeAlias = Annotated[str, Meta(max_length=256)]

_LARGEST: Final = 2**53
"""The limit of sums on the wire. Not every JSON reader represents larger integers exactly, so sums are capped."""

_Sum: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]


class DaySums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sums over the records of a site that ended on one day."""

    site: Annotated[Site, Meta(description="the first ``site_id`` (or ``site``) of the records; empty without one.")]
    day: Annotated[date, Meta(description="the day, in UTC.")]
    records: Annotated[_Sum, Meta(description="the number of records.")] = 0
    runtime: Annotated[_Sum, Meta(description="the sum of the runtimes, in seconds.")] = 0
    core_seconds: Annotated[
        _Sum, Meta(description="the sum of ``Cores`` times runtime in seconds, and of ``CoreSeconds``.")
    ] = 0


class SiteReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sums over the records that a daemon has stored."""

    sent_at: Annotated[datetime, Meta(tz=True, description="the time of the report, by the reporting daemon's clock.")]
    first_day: Annotated[date, Meta(description="the first reported day; jobs that ended earlier are not reported.")]
    days: Annotated[list[DaySums], Meta(max_length=MOST_DAYS, description="the days with records since then, by site.")]


class DayComparison(msgspec.Struct, frozen=True):
    """A day of a site whose reported sums differ from those at the hub."""

    reported: Annotated[DaySums, Meta(description="the sums from the daemons that report the site.")]
    stored: Annotated[DaySums, Meta(description="the sums at the hub.")]


class ReportAnswer(msgspec.Struct, frozen=True):
    """The comparison of a report with the hub's records."""

    records: Annotated[int, Meta(description="the number of reported records of these sites.")]
    missing: Annotated[
        int, Meta(description="how many of them are missing at the hub, summed over the days with fewer records.")
    ]
    extra: Annotated[int, Meta(description="how many more the hub has, summed over the days with more records.")]
    differing: Annotated[list[DayComparison], Meta(description="the days that differ, ordered by site and day.")]


def sums_query(first_day: date, sites: Collection[str] | None = None) -> AggregateQuery:
    """Return the query for sums by site and day of the stop time; roll-ups can answer it."""
    ended: Condition = TimeCompares(TimeField.STOP, Comparison.GTE, datetime.combine(first_day, time(), UTC))
    if sites is not None and "" not in sites:
        ended = AllOf((ended, AnyOf(tuple(MetaContainsAny(key, tuple(sorted(sites))) for key in SITE_KEYS))))
    return AggregateQuery(ended, _BY, _CORES)


def cap(total: int) -> int:
    """Return the sum, capped for the wire."""
    return min(total, _LARGEST)


def day_sums(answer: Aggregates) -> list[DaySums]:
    """Convert the answer to :func:`sums_query`."""
    found: list[DaySums] = []
    for group in answer.groups:
        site, day = group.key
        if isinstance(day, date):  # every finished record has one
            sums = (group.records, group.runtime, group.usage[0].sums.amount_runtime)
            found.append(DaySums(str(site or ""), day, *map(cap, sums)))
    return found
