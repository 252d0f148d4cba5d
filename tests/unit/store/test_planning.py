"""A sequence of changes applied to what is stored, without a database."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.planning import Change, ChangePlan, Outcome, Replacement, Stop, StoredRow
from auditord.store.rows import PendingRecord, make_pending
from auditord_hookspecs import Component, Record

START = datetime(2024, 2, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
PROVENANCE = Provenance(START + 24 * HOUR)


def pending(record_id: str = "job", **changes: object) -> PendingRecord:
    record = Record(record_id, START, (Component("Cores", 8, ()),), START + HOUR, {"site_id": ("S",)})
    return make_pending(msgspec.structs.replace(record, **changes), PROVENANCE, Duplicates.SAME_RUN)


def running(record_id: str = "job", **changes: object) -> PendingRecord:
    return pending(record_id, stop_time=None, **changes)


def stored(*pending_records: PendingRecord) -> dict[str, StoredRow]:
    return {each.record.record_id: StoredRow(each.identity, each.row.document) for each in pending_records}


def outcomes(plan: ChangePlan, *changes: Change) -> list[Outcome]:
    return [plan.apply(change) for change in changes]


def written(plan: ChangePlan) -> dict[str, PendingRecord]:
    return {each.record.record_id: each for each in (*plan.new, *plan.overwritten, *plan.moved)}


def test_a_record_that_is_closed_in_the_batch_that_brings_it_is_written_once() -> None:
    plan = ChangePlan({})
    assert outcomes(plan, running(), pending()) == [Verdict.ADDED, Verdict.CLOSED]
    assert (plan.new, plan.overwritten) == ([pending()], [])


def test_what_is_there_already_needs_no_writing_and_no_lock() -> None:
    plan = ChangePlan(stored(pending()))
    assert outcomes(plan, pending(), running()) == [Verdict.SAME, Verdict.SAME]
    assert (written(plan), plan.touched, plan.differences) == ({}, set(), {})


def test_a_difference_locks_the_record_and_writes_nothing_to_it() -> None:
    plan = ChangePlan(stored(pending()))
    other = pending(components=())
    assert outcomes(plan, other, pending(meta=None), other) == [Verdict.DIFFERENT] * 3
    assert [each.record for each in plan.differences.values()] == [pending(meta=None).record, other.record]
    assert (written(plan), plan.touched) == ({}, {"job"})


def test_overwriting_forgets_the_differences_that_came_before() -> None:
    plan = ChangePlan(stored(running()))
    changes = (running(components=()), pending())
    assert outcomes(plan, *changes) == [Verdict.DIFFERENT, Verdict.CLOSED]
    assert (plan.differences, plan.settled) == ({}, {"job"})


def test_stop_times_follow_each_other() -> None:
    plan = ChangePlan(stored(running()))
    changes = [Stop("job", START + number * HOUR, PROVENANCE) for number in (1, 2)]
    assert outcomes(plan, *changes, Stop("nobody", START, PROVENANCE)) == [True, True, False]
    (moved,) = plan.moved
    assert moved.record.stop_time == START + 2 * HOUR
    assert plan.overwritten == []
    assert plan.settled == set()


def test_a_record_that_is_stopped_in_the_batch_that_brings_it_keeps_its_scores() -> None:
    plan = ChangePlan({})
    scored = msgspec.structs.replace(running(), score_set=7)
    assert outcomes(plan, scored, Stop("job", START + HOUR, PROVENANCE)) == [Verdict.ADDED, True]
    (new,) = plan.new
    assert (new.record.stop_time, new.score_set) == (START + HOUR, 7)


def test_an_earlier_start_of_an_open_record_moves_it() -> None:
    plan = ChangePlan(stored(running()))
    assert outcomes(plan, running(start_time=START - HOUR)) == [Verdict.SAME]
    assert written(plan)["job"].record == running(start_time=START - HOUR).record


def test_a_replacement_leaves_another_run_alone() -> None:
    other = pending(start_time=START + HOUR)
    alternate = pending("job-1", start_time=START + HOUR)
    plan = ChangePlan(stored(pending()))
    assert outcomes(plan, Replacement(other, alternate)) == [Verdict.ADDED]
    assert written(plan).keys() == {"job-1"}
    assert outcomes(plan, Replacement(other, None)) == [Verdict.DIFFERENT]
    assert written(plan).keys() == {"job-1", "job"}


def test_a_text_that_was_not_asked_for_is_no_guess() -> None:
    plan = ChangePlan({"job": StoredRow(running().identity, None)})
    with pytest.raises(AssertionError):
        plan.apply(Stop("job", START, PROVENANCE))
