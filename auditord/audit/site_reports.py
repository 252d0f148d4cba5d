"""Comparison of the reports of sites' daemons with the records stored here.

A hub and its sites compare sums by day, not lists of records. So a day whose records are still arriving differs by the
missing records. Reports are kept in memory. After a restart every daemon reports again within its interval.
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
    cap,
    day_sums,
    sums_query,
)
from auditord.metrics import gauge
from auditord.store.protocol import Reads

MOST_REPORTERS: Final = 2_000
"""Most daemons remembered. Those that reported last are kept."""

MOST_DAYS_KEPT: Final = 250_000
"""Most days of sites remembered in all reports, which take 66 MB. A daemon reports 35 days of each of its sites."""

_LABELS: Final = ("reporter", "principal")
"""Labels of the gauges. The name alone is not enough, since hosts of many sites have the same name."""

_Key: TypeAlias = tuple[str, str | None]
_Days: TypeAlias = dict[tuple[str, date], DaySums]


@dataclass(frozen=True, slots=True)
class Reporter:
    """The last report of a daemon.

    Args:
        name: the name that the daemon gave.
        principal: the sender; None without authentication.
        received_at: the time of arrival, by this host's clock.
        answer: the comparison with the records stored here at that time.
    """

    name: str
    principal: str | None
    received_at: datetime
    report: SiteReport
    answer: ReportAnswer

    @property
    def clock_offset(self) -> timedelta:
        """The reporter's clock minus this host's. The request's travel time is included."""
        return self.report.sent_at - self.received_at

    @property
    def sites(self) -> Sequence[str]:
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

        Several daemons may report one site. Each has its own records, so their sums are added up.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        key, sites = (name, principal), {each.site for each in report.days}
        others = [each.report for of, each in self._reporters.items() if of != key and not sites.isdisjoint(each.sites)]
        first_day = max(each.first_day for each in (report, *others))
        stored = _add_up(day_sums(await records.aggregate(sums_query(first_day, sites))), sites)
        days = [day for each in (report, *others) for day in each.days if day.day >= first_day]
        reported = _add_up(days, sites)
        differing = [
            DayComparison(reported.get(at, DaySums(*at)), stored.get(at, DaySums(*at)))
            for at in sorted(reported.keys() | stored.keys())
            if reported.get(at) != stored.get(at)
        ]
        lacks = [each.reported.records - each.stored.records for each in differing]
        answer = ReportAnswer(
            records=sum(each.records for each in reported.values()),
            missing=sum(lack for lack in lacks if lack > 0),
            extra=-sum(lack for lack in lacks if lack < 0),
            differing=differing,
        )
        self._reporters.pop(key, None)  # reinserted, so that the dictionary is ordered by time of report
        self._reporters[key] = Reporter(name, principal, now, report, answer)
        # Over the limits, the oldest reports of the principal that takes the most space are dropped. So one that makes
        # up names pushes out only its own daemons.
        used = Counter[str | None]()
        for (_, by), each in self._reporters.items():
            used[by] += 1 + len(each.report.days)
        while len(self._reporters) > MOST_REPORTERS or used.total() - len(self._reporters) > MOST_DAYS_KEPT:
            [(largest, _)] = used.most_common(1)
            oldest = next(of for of in self._reporters if of[1] == largest)
            used[largest] -= 1 + len(self._reporters.pop(oldest).report.days)
        return answer

    def collect(self) -> Iterator[Metric]:
        known = [((each.name, each.principal or ""), each) for each in self.reporters]
        yield gauge(
            "auditord_site_report_timestamp_seconds",
            "Time of the last report of sums from a site's daemon.",
            _LABELS,
            ((labels, each.received_at.timestamp()) for labels, each in known),
        )
        yield gauge(
            "auditord_site_report_missing_records",
            "Records that a site's daemon has stored and that are missing here.",
            _LABELS,
            ((labels, each.answer.missing) for labels, each in known),
        )
        yield gauge(
            "auditord_site_report_extra_records",
            "Records stored here beyond those that a site's daemon has stored.",
            _LABELS,
            ((labels, each.answer.extra) for labels, each in known),
        )
        yield gauge(
            "auditord_site_report_clock_offset_seconds",
            "Clock of a site's daemon minus clock of this host.",
            _LABELS,
            ((labels, each.clock_offset.total_seconds()) for labels, each in known),
        )


def _add_up(days: Iterable[DaySums], sites: set[str]) -> _Days:
    found: _Days = {}
    for each in days:
        if each.site in sites:
            key = each.site, each.day
            total = found.get(key, DaySums(*key))
            found[key] = DaySums(
                *key,
                cap(total.records + each.records),
                cap(total.runtime + each.runtime),
                cap(total.core_seconds + each.core_seconds),
            )
    return found
