"""What a sequence of changes makes of what is stored, without a database."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.ledger import Addition, Change, Ledger, Replacement, Stop, Stored
from auditord.store.rows import Offer, make_offer
from auditord_hookspecs import Component, Record

START = datetime(2024, 2, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
BROUGHT = Provenance(START + 24 * HOUR)


def offer(record_id: str = "job", **changes: object) -> Offer:
    record = Record(record_id, START, (Component("Cores", 8, ()),), START + HOUR, {"site_id": ("S",)})
    return make_offer(msgspec.structs.replace(record, **changes), BROUGHT, Duplicates.SAME_RUN)


def running(record_id: str = "job", **changes: object) -> Offer:
    return offer(record_id, stop_time=None, **changes)


def stored(*offers: Offer) -> dict[str, Stored]:
    return {each.record.record_id: Stored(each.identity, str(each.row[-1])) for each in offers}


def outcomes(ledger: Ledger, *changes: Change) -> list[Verdict | bool]:
    return [ledger.apply(change) for change in changes]


def test_a_record_that_is_closed_in_the_batch_that_brings_it_is_written_once() -> None:
    ledger = Ledger({})
    assert outcomes(ledger, Addition(running()), Addition(offer())) == [Verdict.ADDED, Verdict.CLOSED]
    assert (ledger.new, ledger.overwritten) == ([offer()], [])


def test_what_is_there_already_needs_no_writing_and_no_lock() -> None:
    ledger = Ledger(stored(offer()))
    assert outcomes(ledger, Addition(offer()), Addition(running())) == [Verdict.SAME, Verdict.SAME]
    assert (ledger.written, ledger.touched, ledger.differences) == ({}, set(), {})


def test_a_difference_locks_the_record_and_writes_nothing_to_it() -> None:
    ledger = Ledger(stored(offer()))
    other = offer(components=())
    assert outcomes(ledger, Addition(other), Addition(offer(meta=None)), Addition(other)) == [Verdict.DIFFERENT] * 3
    assert [each.record for each in ledger.differences.values()] == [offer(meta=None).record, other.record]
    assert (ledger.written, ledger.touched) == ({}, {"job"})


def test_overwriting_forgets_the_differences_that_came_before() -> None:
    ledger = Ledger(stored(running()))
    changes = (Addition(running(components=())), Addition(offer()))
    assert outcomes(ledger, *changes) == [Verdict.DIFFERENT, Verdict.CLOSED]
    assert (ledger.differences, ledger.settled) == ({}, {"job"})


def test_stop_times_follow_each_other() -> None:
    ledger = Ledger(stored(running()))
    changes = [Stop("job", START + number * HOUR, BROUGHT) for number in (1, 2)]
    assert outcomes(ledger, *changes, Stop("nobody", START, BROUGHT)) == [True, True, False]
    (moved,) = ledger.moved
    assert moved.record.stop_time == START + 2 * HOUR
    assert ledger.overwritten == []
    assert ledger.settled == set()


def test_an_earlier_start_of_an_open_record_moves_it() -> None:
    ledger = Ledger(stored(running()))
    assert outcomes(ledger, Addition(running(start_time=START - HOUR))) == [Verdict.SAME]
    assert ledger.written["job"].record == running(start_time=START - HOUR).record


def test_a_replacement_leaves_another_run_alone() -> None:
    other = offer(start_time=START + HOUR)
    alternate = offer("job-1", start_time=START + HOUR)
    ledger = Ledger(stored(offer()))
    assert outcomes(ledger, Replacement(other, alternate)) == [Verdict.ADDED]
    assert ledger.written.keys() == {"job-1"}
    assert outcomes(ledger, Replacement(other, None)) == [Verdict.DIFFERENT]
    assert ledger.written.keys() == {"job-1", "job"}


def test_a_text_that_was_not_asked_for_is_no_guess() -> None:
    ledger = Ledger({"job": Stored(running().identity, None)})
    with pytest.raises(AssertionError):
        ledger.apply(Stop("job", START, BROUGHT))
