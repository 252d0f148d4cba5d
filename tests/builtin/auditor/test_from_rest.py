"""AUDITOR's server into a store: whole, cut, and answers that end as if there were no more."""

import itertools
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import pytest

from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_hookspecs import Record
from auditord_hookspecs.wire import encode_record
from tests.builtin.auditor.conftest import Target
from tests.fake_auditor import FakeAuditor, Fault, fake_auditor

DAY = timedelta(days=1)
RECORDS = {
    record.record_id: record
    for record in (
        *(make_record(f"job-{number}", start=EPOCH + number // 3 * DAY) for number in range(60)),
        make_record("open#1", start=EPOCH + 9 * DAY, runtime=None),
        make_record("much/later", start=EPOCH + 900 * DAY),
    )
}


@pytest.fixture
def auditor() -> Generator[FakeAuditor, None, None]:
    with fake_auditor() as running:
        running.records.update(RECORDS)
        yield running


def listings(auditor: FakeAuditor) -> list[str]:
    return [target for _, target in auditor.requests if target.startswith("/records?start_time") and "[lt]" in target]


def fail_listing(auditor: FakeAuditor, number: int, fault: Fault) -> None:
    """This one of the listings of a period fails, counted from 0."""
    count = itertools.count()
    auditor.fault = lambda _, target: fault if "[lt]" in target and next(count) == number else None


def test_all_records_period_by_period(target: Target, auditor: FakeAuditor) -> None:
    done = target.run(auditor.url)
    assert done.exit_code == 0, done.output
    assert target.stored() == RECORDS
    assert "62 are in the store, with equal times and content hashes" in done.stdout
    assert len(listings(auditor)) == 2 * 2 * 2  # two periods that have records, until nothing new comes, two readings


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.SHORT])
def test_a_stream_that_is_cut_fails_and_the_next_attempt_goes_on(
    sqlite_target: Target, auditor: FakeAuditor, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord_builtin.auditor.conversion.PAGE_ROWS", 7)
    fail_listing(auditor, 0, fault)
    done = sqlite_target.run(auditor.url)
    assert done.exit_code == 1
    assert "ask again" in str(done.exception)
    auditor.fault = lambda _method, _target: None
    reached = len(sqlite_target.stored())
    assert 0 < reached < 32
    auditor.requests.clear()
    done = sqlite_target.run(auditor.url)
    assert done.exit_code == 0, done.output
    assert sqlite_target.stored() == RECORDS
    assert listings(auditor)[0].startswith("/records?start_time[gte]=2026-01-0")
    assert not listings(auditor)[0].startswith("/records?start_time[gte]=2026-01-01")


def test_a_record_of_the_last_year_that_a_time_can_have_stops_nothing(
    sqlite_target: Target, auditor: FakeAuditor
) -> None:
    late = make_record("late", start=datetime(9999, 12, 31, tzinfo=UTC), runtime=None)
    auditor.records["late"] = late
    done = sqlite_target.run(auditor.url)
    assert done.exit_code == 0, done.output
    assert sqlite_target.stored() == RECORDS | {"late": late}


def test_an_answer_that_ends_as_if_there_were_no_more_is_asked_again(
    sqlite_target: Target, auditor: FakeAuditor
) -> None:
    fail_listing(auditor, 0, Fault.ENDED)
    done = sqlite_target.run(auditor.url)
    assert done.exit_code == 0, done.output
    assert sqlite_target.stored() == RECORDS


def test_an_empty_answer_is_not_believed_where_there_is_a_record(sqlite_target: Target, auditor: FakeAuditor) -> None:
    fail_listing(auditor, 2, Fault.ENDED)  # the second period has one record
    done = sqlite_target.run(auditor.url)
    assert "no longer sends records that it sent before" in str(done.exception)
    assert sqlite_target.run(auditor.url).exit_code == 0
    assert sqlite_target.stored() == RECORDS


def test_the_end_is_not_believed_before_the_last_record(sqlite_target: Target, auditor: FakeAuditor) -> None:
    edges = itertools.count()
    auditor.fault = lambda _, target: (
        Fault.ENDED if "[lt]" not in target and "start_time[gte]" in target and next(edges) == 1 else None
    )
    done = sqlite_target.run(auditor.url)
    assert "has records up to 2028-06-19T00:00:00Z, but sends none after 2026-01-31T00:00:00Z" in str(done.exception)


def test_a_server_whose_database_is_away_is_not_an_empty_one(sqlite_target: Target, auditor: FakeAuditor) -> None:
    auditor.fault = lambda _, target: Fault.ENDED if target.startswith("/records") else Fault.ERROR
    done = sqlite_target.run(auditor.url)
    assert "is not healthy: check whether its database answers" in str(done.exception)


def test_an_empty_server_has_nothing_to_import(sqlite_target: Target, auditor: FakeAuditor) -> None:
    auditor.records.clear()
    done = sqlite_target.run(auditor.url)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "0 rows in the source")


def test_a_record_that_is_none_is_set_aside_alone(
    sqlite_target: Target, auditor: FakeAuditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fake_auditor.encode_record", damaged)
    done = sqlite_target.run(auditor.url)
    assert done.exit_code == 1
    assert "unreadable: record job-31: Expected `array`, got `null` - at `$.components`" in done.stderr
    assert sqlite_target.stored().keys() == RECORDS.keys() - {"job-31"}


def damaged(record: Record) -> bytes:
    text = encode_record(record)
    return text.replace(b'"components":[', b'"components":null,"x":[') if record.record_id == "job-31" else text


def test_what_is_no_source_is_wrong_usage(sqlite_target: Target) -> None:
    assert sqlite_target.run("gopher://x").exit_code == 2
    assert sqlite_target.run("http://a", "http://b").exit_code == 2
