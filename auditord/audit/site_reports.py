"""Compare reports of sites' daemons with the records stored here.

A hub and the sites compare sums by day, not lists of records. A day whose records are still arriving therefore differs
by the missing ones. Reports are kept in memory: after a restart every daemon
reports again within its interval.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, TypeAlias

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from auditord.client.site_reports import (
    DayComparison,
    DaySums,
    ReportAnswer,
    SiteReport,
    capped,
    day_sums,
    sums_query,
)
from auditord.metrics import gauge
from auditord.store.protocol import Reads

MOST_REPORTERS: Final = 2_000
"""Daemons that are remembered, those that reported last."""

MOST_DAYS_KEPT: Final = 250_000
"""Days of sites in all reports that are remembered, which take 66 MB. A daemon reports 35 days of each of its sites."""

_LABELS: Final = ("reporter", "principal")
"""Hosts of many sites have the same name."""

_Key: TypeAlias = tuple[str, str | None]
_Days: TypeAlias = dict[tuple[str, date], DaySums]


@dataclass(frozen=True, slots=True)
class Reporter:
    """The last report of a daemon.

    Args:
        name: the name that the daemon gave.
        principal: the sender; None without authentication.
        received_at: the time of arrival, by this host's clock.
        report: the report.
        answer: the comparison with the records that were stored here then.
    """

    name: str
    principal: str | None
    received_at: datetime
    report: SiteReport
    answer: ReportAnswer

    @property
    def clock_offset(self) -> timedelta:
        """The reporter's clock less the one here; the way of the request counts as well."""
        return self.report.sent_at - self.received_at

    @property
    def sites(self) -> Sequence[str]:
        """The sites that it reports."""
        return sorted({each.site for each in self.report.days})


class SiteReports(Collector):
    """The last report of each daemon."""

    def __init__(self) -> None:
        self._reporters: dict[_Key, Reporter] = {}

    @property
    def reporters(self) -> Sequence[Reporter]:
        """The reporters, by name."""
        return sorted(self._reporters.values(), key=lambda each: (each.name, each.principal or ""))

    async def receive(
        self, name: str, principal: str | None, report: SiteReport, records: Reads, now: datetime
    ) -> ReportAnswer:
        """Compare a report with the stored records, and remember it.

        Several daemons may report one site: each has records of its own, so their sums are added up.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        key, sites = (name, principal), {each.site for each in report.days}
        others = [each.report for of, each in self._reporters.items() if of != key and not sites.isdisjoint(each.sites)]
        first_day = max(each.first_day for each in (report, *others))
        stored = _added_up(day_sums(await records.aggregate(sums_query(first_day, sites))), sites)
        days = [day for each in (report, *others) for day in each.days if day.day >= first_day]
        answer = _compared(_added_up(days, sites), stored)
        self._reporters.pop(key, None)  # so that the dictionary has those first that have been silent for longest
        self._reporters[key] = Reporter(name, principal, now, report, answer)
        self._forget_some()
        return answer

    def _forget_some(self) -> None:
        """Keep to the limits: the principal that takes the most room forgets the daemon that was silent for longest.

        A principal that makes up names pushes out only its own.
        """
        taken = Counter[str | None]()
        for (_, principal), each in self._reporters.items():
            taken[principal] += 1 + len(each.report.days)
        while len(self._reporters) > MOST_REPORTERS or taken.total() - len(self._reporters) > MOST_DAYS_KEPT:
            [(largest, _)] = taken.most_common(1)
            oldest = next(key for key in self._reporters if key[1] == largest)
            taken[largest] -= 1 + len(self._reporters.pop(oldest).report.days)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, for prometheus_client."""
        known = [((each.name, each.principal or ""), each) for each in self.reporters]
        yield gauge(
            "auditord_site_report_timestamp_seconds",
            "When a site's daemon last reported its sums.",
            _LABELS,
            ((labels, each.received_at.timestamp()) for labels, each in known),
        )
        yield gauge(
            "auditord_site_report_missing_records",
            "Records that a site's daemon has stored and that are not here.",
            _LABELS,
            ((labels, each.answer.missing) for labels, each in known),
        )
        yield gauge(
            "auditord_site_report_extra_records",
            "Records that are here beyond those that a site's daemon has stored.",
            _LABELS,
            ((labels, each.answer.extra) for labels, each in known),
        )
        yield gauge(
            "auditord_site_report_clock_offset_seconds",
            "The clock of a site's daemon less the clock here.",
            _LABELS,
            ((labels, each.clock_offset.total_seconds()) for labels, each in known),
        )


def _added_up(days: Iterable[DaySums], sites: set[str]) -> _Days:
    found: _Days = {}
    for each in days:
        if each.site in sites:
            key = each.site, each.day
            one = found.get(key, DaySums(*key))
            found[key] = DaySums(
                *key,
                capped(one.records + each.records),
                capped(one.runtime + each.runtime),
                capped(one.core_seconds + each.core_seconds),
            )
    return found


def _compared(reported: _Days, stored: _Days) -> ReportAnswer:
    differing = [
        DayComparison(reported.get(key, DaySums(*key)), stored.get(key, DaySums(*key)))
        for key in sorted(reported.keys() | stored.keys())
        if reported.get(key) != stored.get(key)
    ]
    lacks = [each.reported.records - each.stored.records for each in differing]
    return ReportAnswer(
        records=sum(each.records for each in reported.values()),
        missing=sum(lack for lack in lacks if lack > 0),
        extra=-sum(lack for lack in lacks if lack < 0),
        differing=differing,
    )
