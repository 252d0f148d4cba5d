"""Reports of daemons against sums of a store."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import cast

import pytest

from auditord.audit.site_reports import SiteReports
from auditord.client.site_reports import DaySums, SiteReport
from auditord.store.protocol import Reads
from auditord_hookspecs import AggregateQuery, Aggregates, AmountSums, Group, UsageSums
from auditord_hookspecs.query import AllOf, TimeCompares

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DAY = date(2026, 11, 20)
LATER = date(2026, 11, 21)


class Stored:
    """A store that has these sums."""

    def __init__(self, days: Sequence[DaySums]) -> None:
        self.days = list(days)

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        where = query.where.conditions[0] if isinstance(query.where, AllOf) else query.where
        assert isinstance(where, TimeCompares)
        return Aggregates(tuple(_group(each) for each in self.days if each.day >= where.moment.date()), 1)


def _group(day: DaySums) -> Group:
    cores = UsageSums(AmountSums(0, day.core_seconds), {})
    return Group((day.site, day.day), day.records, day.runtime, NOW, NOW, (cores,))


async def receive(
    reports: SiteReports,
    stored: Stored,
    name: str,
    days: Sequence[DaySums],
    first_day: date = DAY,
    *,
    principal: str | None = None,
) -> tuple[int, int, list[tuple[int, int]]]:
    report = SiteReport(NOW + timedelta(seconds=3), first_day, list(days))
    answer = await reports.receive(name, principal, report, cast("Reads", stored), NOW)
    return answer.missing, answer.extra, [(each.reported.records, each.stored.records) for each in answer.differing]


async def test_equal_sums_differ_nowhere() -> None:
    days = [DaySums("A", DAY, 3, 300, 1_200), DaySums("", DAY, 1, 10, 10)]
    assert await receive(SiteReports(), Stored(days), "ce1", days) == (0, 0, [])


async def test_what_lacks_on_one_day_is_not_made_up_for_on_another() -> None:
    stored = Stored([DaySums("A", DAY, 2, 200, 200), DaySums("A", LATER, 7, 700, 700)])
    reported = [DaySums("A", DAY, 5, 500, 500), DaySums("A", LATER, 6, 600, 600)]
    assert await receive(SiteReports(), stored, "ce1", reported) == (3, 1, [(5, 2), (6, 7)])


async def test_a_corrected_record_differs_though_the_count_is_equal() -> None:
    stored = Stored([DaySums("A", DAY, 2, 200, 200)])
    assert await receive(SiteReports(), stored, "ce1", [DaySums("A", DAY, 2, 201, 200)]) == (0, 0, [(2, 2)])
    assert await receive(SiteReports(), stored, "ce1", [DaySums("A", DAY, 2, 200, 208)]) == (0, 0, [(2, 2)])


async def test_sites_of_others_are_not_looked_at() -> None:
    stored = Stored([DaySums("A", DAY, 1), DaySums("B", DAY, 9)])
    assert await receive(SiteReports(), stored, "ce1", [DaySums("A", DAY, 1)]) == (0, 0, [])


async def test_daemons_of_one_site_are_added_up_as_far_back_as_all_of_them_report() -> None:
    reports, stored = SiteReports(), Stored([DaySums("A", DAY, 3), DaySums("A", LATER, 5)])
    assert await receive(reports, stored, "ce1", [DaySums("A", DAY, 3), DaySums("A", LATER, 2)]) == (0, 3, [(2, 5)])
    assert await receive(reports, stored, "ce2", [DaySums("A", LATER, 3)], first_day=LATER) == (0, 0, [])
    assert await receive(reports, stored, "ce1", [DaySums("A", DAY, 3), DaySums("A", LATER, 2)]) == (0, 0, [])


async def test_added_sums_stay_within_what_json_tells_exactly() -> None:
    largest = DaySums("A", DAY, 2**53 - 1)
    assert await receive(SiteReports(), Stored([]), "ce1", [largest, largest]) == (2**53, 0, [(2**53, 0)])


async def test_the_last_report_takes_the_place_of_the_one_before() -> None:
    reports, stored = SiteReports(), Stored([DaySums("A", DAY, 3)])
    await receive(reports, stored, "ce1", [DaySums("A", DAY, 2)])
    assert await receive(reports, stored, "ce1", [DaySums("A", DAY, 3)]) == (0, 0, [])
    [reporter] = reports.reporters
    assert (reporter.name, reporter.sites, reporter.clock_offset) == ("ce1", ["A"], timedelta(seconds=3))


async def test_metrics_name_each_daemon() -> None:
    reports, stored = SiteReports(), Stored([DaySums("A", DAY, 3)])
    await receive(reports, stored, "ce1", [DaySums("A", DAY, 5)])
    samples = {sample.name: sample for family in reports.collect() for sample in family.samples}
    values = {name.removeprefix("auditord_site_report_"): sample.value for name, sample in samples.items()}
    assert values == {
        "timestamp_seconds": NOW.timestamp(),
        "missing_records": 2,
        "extra_records": 0,
        "clock_offset_seconds": 3,
    }
    assert {sample.labels["reporter"] for sample in samples.values()} == {"ce1"}


async def test_daemons_of_one_name_are_told_apart_by_who_they_are() -> None:
    """Two samples with the same labels, and Prometheus takes nothing of the whole scrape."""
    reports, stored = SiteReports(), Stored([DaySums("A", DAY, 3)])
    for principal, site in (("tokens:a", "A"), ("tokens:b", "B")):
        await receive(reports, stored, "head", [DaySums(site, DAY, 5)], principal=principal)
    samples = [
        (sample.name, *sorted(sample.labels.items())) for family in reports.collect() for sample in family.samples
    ]
    assert len(set(samples)) == len(samples) == 8


async def test_daemons_that_were_silent_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.audit.site_reports.MOST_REPORTERS", 2)
    reports, stored = SiteReports(), Stored([])
    for name in ("a", "b", "a", "c"):
        await receive(reports, stored, name, [])
    assert [each.name for each in reports.reporters] == ["a", "c"]


@pytest.mark.parametrize("days", [0, 3])
async def test_a_principal_that_makes_up_names_forgets_its_own(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    monkeypatch.setattr("auditord.audit.site_reports.MOST_REPORTERS", 6)
    monkeypatch.setattr("auditord.audit.site_reports.MOST_DAYS_KEPT", 10)
    reports, stored = SiteReports(), Stored([])
    for name in ("ce1", "ce2"):
        await receive(reports, stored, name, [DaySums("A", DAY, 1)], principal="tokens:a")
    for number in range(20):
        made_up = [DaySums("B", DAY, 1)] * days
        await receive(reports, stored, f"x{number:02}", made_up, principal="tokens:b")
    kept = [each.name for each in reports.reporters]
    assert kept == ["ce1", "ce2", *(["x18", "x19"] if days else ["x16", "x17", "x18", "x19"])]
