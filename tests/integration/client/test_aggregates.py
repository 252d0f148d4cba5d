"""Sums of an auditord, which makes them itself, and of an AUDITOR, whose records are added up here: the same."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest

from auditord.client import ClientError, ConnectionFailed, CutAnswer, ServerFailed
from auditord.testing import EPOCH, make_record
from auditord_hookspecs import Component, Record, Score, Window, aggregates
from auditord_hookspecs.query import AllOf, Comparison, MetaContainsAny, TimeCompares, TimeField
from tests.fake_auditor import FakeAuditor, Fault
from tests.integration.client.conftest import AnyClient
from tests.summed_records import aggregate_records

Connect = Callable[..., AnyClient]
HOUR = timedelta(hours=1)
JUNE = Window(EPOCH, EPOCH + timedelta(days=30))


def job(number: int) -> Record:
    scores = (Score("HEPscore23", 9.2 + number % 3),) if number % 5 else ()
    cores = Component("Cores", number % 7, scores)
    start = EPOCH + number * 7 * HOUR - timedelta(days=3)
    stop = None if number % 11 == 3 else start + timedelta(hours=number % 40, microseconds=number)
    meta: dict[str, tuple[str, ...]]
    meta = {"site_id": (f"site {number % 2}",), "group|id": ("a:b",)} if number % 4 else {"site": ("old",)}
    return Record(f"job-{number}", start, (cores, Component("Memory", 2**62, ())), stop, meta)


JOBS = [job(number) for number in range(150)]
USAGE = (
    aggregates.ComponentUsage("Cores", ("HEPscore23",)),
    aggregates.ComponentUsage("Memory"),
    aggregates.ComponentUsage("GPU"),
)
QUERIES = {
    "everything": aggregates.AggregateQuery(usage=USAGE),
    "by site, with a window": aggregates.AggregateQuery(
        by=(aggregates.MetaValue("site_id", "site"),), usage=USAGE, window=JUNE
    ),
    "open records": aggregates.AggregateQuery(
        by=(aggregates.MetaValue("group|id"),), usage=USAGE, window=JUNE, as_of=JUNE.stop
    ),
    "months and scores": aggregates.AggregateQuery(
        by=(
            aggregates.CalendarPeriod(aggregates.CalendarUnit.MONTH),
            aggregates.ScoreValue("Cores", "HEPscore23"),
            aggregates.ComponentAmount("Cores"),
            aggregates.ComponentPresent("GPU"),
            aggregates.ExceedsRuntime("Memory", Decimal("0.25"), "Cores"),
            aggregates.ExceedsRuntime("Cores", Decimal(1)),
        )
    ),
    "filters": aggregates.AggregateQuery(
        AllOf(
            (
                TimeCompares(TimeField.STOP, Comparison.GTE, EPOCH + timedelta(days=2)),
                MetaContainsAny("site_id", ("site 1", "other")),
            )
        ),
        by=(aggregates.MetaValue("site_id"),),
        usage=USAGE,
    ),
    "nothing": aggregates.AggregateQuery(TimeCompares(TimeField.START, Comparison.LT, EPOCH - timedelta(days=900))),
}


@pytest.fixture(scope="module")
def auditord_with_jobs(auditord: str) -> str:
    from auditord.client import Client  # noqa: PLC0415 the fixture's name hides the package

    Client(auditord).add_all(JOBS)
    return auditord


@pytest.fixture
def auditor_with_jobs(auditor: FakeAuditor) -> FakeAuditor:
    auditor.add(JOBS)
    return auditor


@pytest.mark.parametrize("name", QUERIES)
def test_an_auditord_sums_up(connect: Connect, auditord_with_jobs: str, name: str) -> None:
    answer = connect(auditord_with_jobs).aggregate(QUERIES[name])
    assert answer == aggregate_records(JOBS, QUERIES[name])
    assert bool(answer.groups) == (name != "nothing")


@pytest.mark.parametrize("name", QUERIES)
def test_the_records_of_an_auditor_are_added_up(connect: Connect, auditor_with_jobs: FakeAuditor, name: str) -> None:
    assert connect(auditor_with_jobs.url).aggregate(QUERIES[name]) == aggregate_records(JOBS, QUERIES[name])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.CUT, CutAnswer),
        (Fault.SHORT, CutAnswer),
        (Fault.ERROR, ServerFailed),
        (Fault.UNAVAILABLE, ServerFailed),
        (Fault.RESET_BEFORE, ConnectionFailed),
    ],
)
def test_no_sum_lacks_a_record(
    connect: Connect, auditor_with_jobs: FakeAuditor, fault: Fault, error: type[ClientError]
) -> None:
    auditor_with_jobs.fault = lambda _method, target: fault if target.startswith("/records") else None
    with pytest.raises(error):
        connect(auditor_with_jobs.url).aggregate(QUERIES["everything"])


def test_a_server_that_fails_is_not_taken_for_one_without_sums(connect: Connect, auditor: FakeAuditor) -> None:
    auditor.add([make_record()])
    auditor.fault = lambda _method, target: Fault.ERROR if target.startswith("/api") else None
    with pytest.raises(ServerFailed):
        connect(auditor.url).aggregate(aggregates.AggregateQuery())
    assert not [target for _, target in auditor.requests if target.startswith("/records")]
