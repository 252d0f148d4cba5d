"""Single records are changed on purpose: what they were before is kept, with who, when and why."""

from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from auditord.store import Action, Amended, Amendment, Duplicates, Provenance, Verdict, Version
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    Close,
    Component,
    Insert,
    InvalidRecord,
    Record,
    RecordQuery,
    RecordUpdate,
    Replace,
)
from auditord_hookspecs.wire import encode_record
from tests.contract.store.conftest import StoreFactory
from tests.contract.store.feeds import forwarded
from tests.contract.store.jobs import HOUR, START, finished, running

pytestmark = pytest.mark.anyio

NOW = START + 24 * HOUR
COLLECTOR = Provenance(START + HOUR, "task:slurm")
ALICE = Provenance(NOW, "user:alice")
SAME_RUN = Duplicates.SAME_RUN
WHY = "the node's clock was wrong (ticket 4711)"


def correction(before: Record, after: Record) -> Amendment:
    return Amendment(Action.CORRECT, encode_record(before), after, WHY)


def deletion(before: Record) -> Amendment:
    return Amendment(Action.DELETE, encode_record(before), None, WHY)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores(outbox=True) as opened:
        yield opened


async def put(store: RecordStore, *records: Record) -> None:
    await store.add_all(records, COLLECTOR, SAME_RUN, atomic=True)


async def texts(store: RecordStore) -> Sequence[bytes]:
    async with store.stream(RecordQuery()) as pages:
        return [document async for page in pages for document in page]


@pytest.mark.needs_database
async def test_a_correction_takes_the_records_place_and_the_old_version_is_kept(store: RecordStore) -> None:
    before, after = finished(), finished(meta={"site_id": ("T",)}, components=(Component("Cores", 4, ()),))
    await put(store, before)
    assert await store.amend([correction(before, after)], ALICE) == [Amended.DONE]
    assert await texts(store) == [encode_record(after)]
    (version,) = await store.history("job-1")
    assert version == Version(
        version.number, Action.CORRECT, WHY, NOW, "user:alice", encode_record(before), START + HOUR, None, "task:slurm"
    )
    assert await forwarded(store) == [Replace(after, None, ALICE)]


async def test_versions_come_in_order_with_what_brought_each(store: RecordStore) -> None:
    first, second, third = (finished(components=(Component("Cores", amount, ()),)) for amount in (1, 2, 3))
    bob = Provenance(NOW + HOUR, "user:bob")
    await put(store, first)
    await store.amend([correction(first, second)], ALICE)
    await store.amend([correction(second, third)], bob)
    await store.amend([deletion(third)], ALICE)
    history = await store.history("job-1")
    assert [(each.document, each.action) for each in history] == [
        (encode_record(first), Action.CORRECT),
        (encode_record(second), Action.CORRECT),
        (encode_record(third), Action.DELETE),
    ]
    assert [(each.principal, each.updated_at, each.changed_by) for each in history] == [
        ("task:slurm", None, "user:alice"),
        ("user:alice", NOW, "user:bob"),
        ("user:bob", NOW + HOUR, "user:alice"),
    ]
    assert await store.history("job-2") == []


@pytest.mark.needs_database
async def test_a_deleted_record_is_gone_from_everywhere_but_its_history(store: RecordStore) -> None:
    await put(store, finished("a"), finished("b"))
    await store.add(finished("a", meta={"site_id": ("U",)}), COLLECTOR, SAME_RUN)
    assert (await store.counts()).differences == 1
    assert await store.amend([deletion(finished("a"))], ALICE) == [Amended.DONE]
    assert await texts(store) == [encode_record(finished("b"))]
    assert await store.get("a") is None
    assert (await store.aggregate(AggregateQuery())).groups[0].records == 1
    counts = await store.counts()
    assert (counts.total, counts.per_value["site_id"], counts.differences) == (1, {"S": 1}, 0)
    assert await forwarded(store) == []
    assert len(await store.history("a")) == 1


async def test_what_is_added_after_a_deletion_is_counted(stores: StoreFactory) -> None:
    """The newest record's number may be given to the next one."""
    async with stores() as store:
        await put(store, *(finished(f"job-{number:04}") for number in range(1_200)))
        last = [finished(f"job-{number:04}") for number in range(990, 1_200)]
        await store.amend([deletion(record) for record in last], ALICE)
        await put(store, finished("new"), *last[:50])
        assert (await store.counts()).total == 990 + 51
    async with stores() as store:
        counts = await store.counts()
        assert (counts.total, counts.per_value["site_id"]) == (990 + 51, {"S": 990 + 51})


@pytest.mark.needs_database
async def test_closing_is_forwarded_as_the_end_and_another_end_as_an_update(store: RecordStore) -> None:
    await put(store, running("open"), finished("ended"))
    closed = Amendment(Action.CLOSE, encode_record(running("open")), finished("open"), WHY)
    later = finished("ended", stop_time=NOW)
    assert await store.amend([closed, correction(finished("ended"), later)], ALICE) == [Amended.DONE, Amended.DONE]
    assert await texts(store) == [encode_record(finished("open")), encode_record(later)]
    assert await forwarded(store) == [Close("ended", NOW, ALICE), Insert(finished("open"), None, ALICE)]
    assert [version.action for version in await store.history("open")] == [Action.CLOSE]


@pytest.mark.needs_database
async def test_a_record_can_be_opened_again_and_moved_to_another_start(store: RecordStore) -> None:
    again = running(start_time=START - HOUR)
    await put(store, finished())
    assert await store.amend([correction(finished(), again)], ALICE) == [Amended.DONE]
    assert await store.add(finished(start_time=START - HOUR), COLLECTOR, SAME_RUN) is Verdict.CLOSED
    assert await forwarded(store) == [Replace(finished(start_time=START - HOUR), None, ALICE)]


async def test_what_no_longer_fits_is_refused_and_what_changes_nothing_is_not_kept(store: RecordStore) -> None:
    await put(store, finished("a"), running("b"), finished("c"))
    await store.stop(RecordUpdate("b", (), NOW), COLLECTOR)
    outcomes = await store.amend(
        [
            correction(finished("a"), finished("a")),
            correction(running("b"), finished("b")),
            deletion(finished("nobody")),
            deletion(finished("c")),
        ],
        ALICE,
    )
    assert outcomes == [Amended.SAME, Amended.CHANGED, Amended.MISSING, Amended.DONE]
    assert [len(await store.history(name)) for name in ("a", "b", "nobody", "c")] == [0, 0, 0, 1]
    assert await store.get("b") == encode_record(finished("b", stop_time=NOW))


async def test_of_two_at_the_same_time_one_is_told_that_it_was_too_late(store: RecordStore) -> None:
    await put(store, finished())
    outcomes: list[Amended] = []

    async def amend(amount: int) -> None:
        outcomes.extend(await store.amend([correction(finished(), finished(components=(_cores(amount),)))], ALICE))

    async with anyio.create_task_group() as group:
        for amount in (1, 2, 3, 4):
            group.start_soon(amend, amount)
    assert sorted(outcome.value for outcome in outcomes) == ["changed", "changed", "changed", "done"]
    assert len(await store.history("job-1")) == 1


async def test_changes_survive_beside_other_work_on_the_same_records(store: RecordStore) -> None:
    await put(store, *(running(f"job-{number}") for number in range(40)))

    async def delete(number: int) -> None:
        await store.amend([deletion(running(f"job-{number}"))], ALICE)

    async def stop(number: int) -> None:
        await store.stop(RecordUpdate(f"job-{number}", (), NOW), COLLECTOR)

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(delete, number)
            group.start_soon(stop, number)
    left = await texts(store)
    gone = [number for number in range(40) if await store.history(f"job-{number}")]
    assert len(left) + len(gone) == 40 == len(gone) + (await store.counts()).total


@pytest.mark.needs_database
async def test_a_change_survives_and_needs_no_outbox(stores: StoreFactory) -> None:
    async with stores() as store:
        await put(store, finished())
        await store.amend([correction(finished(), finished(meta=None))], ALICE)
    async with stores() as store:
        assert await store.get("job-1") == encode_record(finished(meta=None))
        assert len(await store.history("job-1")) == 1
        assert await forwarded(store) == []


async def test_one_record_is_not_changed_twice_at_a_time(store: RecordStore) -> None:
    await put(store, finished())
    with pytest.raises(InvalidRecord, match="changed twice"):
        await store.amend([deletion(finished())] * 2, ALICE)
    assert await store.get("job-1") is not None


@pytest.mark.parametrize("reason", ["", " \n", "x" * 1_001, "a\0b", "\ud800"])
def test_a_reason_is_needed(reason: str) -> None:
    with pytest.raises(InvalidRecord, match="reason"):
        Amendment(Action.DELETE, encode_record(finished()), None, reason)


def test_an_id_cannot_be_corrected() -> None:
    with pytest.raises(InvalidRecord, match="cannot be corrected"):
        correction(finished("a"), finished("b"))


def _cores(amount: int) -> Component:
    return Component("Cores", amount, ())
