"""A store notes which records the lake does not have as they are; each change gets the number of one batch."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec
import pytest

from auditord.database.instants import to_micros
from auditord.store import Action, Amendment, Duplicates, Provenance, RecordStore
from auditord.store.lake import LakeBatch, LakeDiverged, LakeState
from auditord_hookspecs import Component, Record, RecordUpdate
from auditord_hookspecs.wire import encode_record
from tests.archive_in_memory import MemoryArchive, archive

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR = timedelta(hours=1)
STOP = to_micros(START + HOUR)
SLURM = Provenance(START + HOUR, "task:slurm", "agent")
LAKE = "a-table"


class StoreFactory(Protocol):
    def __call__(self, *, outbox: bool = False) -> AbstractAsyncContextManager[RecordStore]: ...


def job(record_id: str, **changes: object) -> Record:
    meta: dict[str, tuple[str, ...]] = {"site_id": ("S",), "user_id": ("u",)}
    record = Record(record_id, START, (Component("Cores", 8, ()),), START + HOUR, meta)
    return msgspec.structs.replace(record, **changes)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        await put(opened, job("before"))
        await opened.begin_lake()
        await opened.fill_lake(LAKE)
        yield opened


async def put(store: RecordStore, *records: Record) -> None:
    await store.add_all(records, SLURM, Duplicates.SAME_RUN, atomic=True)


async def delete(store: RecordStore, record: Record) -> None:
    amendment = Amendment(Action.DELETE, encode_record(record), None, "wrong")
    await store.amend([amendment], SLURM)


def ids(batch: LakeBatch) -> list[str]:
    return sorted(copy.record.record_id for copy in batch.records)


async def test_nothing_is_noted_before_there_is_a_lake(stores: StoreFactory) -> None:
    async with stores() as store:
        await put(store, job("job-1"))
        await store.add(job("job-2"), SLURM, Duplicates.SAME_RUN)
        assert (await store.lake_state(), await store.lake_waiting()) == (LakeState(), 0)


async def test_all_that_was_there_and_all_that_comes_is_synced_once(store: RecordStore) -> None:
    await put(store, job("job-1"))
    await store.add(job("job-2"), SLURM, Duplicates.SAME_RUN)
    first = await store.lake_batch(0, 100)
    assert (first.number, ids(first), first.known) == (1, ["before", "job-1", "job-2"], {})
    assert first.records[0].received_at == SLURM.received_at
    assert first.records[0].principal == "task:slurm"
    again = await store.lake_batch(1, 100)
    assert (again.number, ids(again), await store.lake_waiting()) == (1, [], 0)


async def test_a_lake_that_ends_leaves_nothing_to_be_noted(store: RecordStore) -> None:
    await store.begin_lake()
    await put(store, job("job-1"))
    await store.add(job("job-2"), SLURM, Duplicates.SAME_RUN)
    await delete(store, job("before"))
    assert await store.lake_waiting() == 0
    await store.fill_lake(LAKE)
    assert ids(await store.lake_batch(0, 100)) == ["job-1", "job-2"]


async def test_what_may_have_arrived_is_looked_for_when_it_is_synced_again(store: RecordStore) -> None:
    await store.lake_batch(0, 100)
    again = await store.lake_batch(0, 100)
    assert (again.number, ids(again), again.known) == (2, ["before"], {"before": {None}})


async def test_every_change_names_what_the_lake_has(store: RecordStore) -> None:
    await put(store, job("open", stop_time=None), job("moved"), job("gone"), job("redacted"), job("replaced"))
    await store.lake_batch(0, 100)
    await store.stop(RecordUpdate("open", (), START + HOUR), SLURM)
    await store.stop(RecordUpdate("moved", (), START + 2 * HOUR), SLURM)
    await store.stop(RecordUpdate("moved", (), START + 3 * HOUR), SLURM)
    await delete(store, job("gone"))
    await store.redact(["redacted"], {"user_id"})
    await store.replace(job("replaced", components=(Component("Cores", 9, ()),)), SLURM)
    batch = await store.lake_batch(1, 100)
    assert ids(batch) == ["moved", "open", "redacted", "replaced"]
    assert batch.known == {
        "open": {None},
        "moved": {STOP, to_micros(START + 2 * HOUR)},
        "gone": {STOP},
        "redacted": {STOP},
        "replaced": {STOP},
    }
    redacted = next(copy.record for copy in batch.records if copy.record.record_id == "redacted")
    assert redacted.meta == {"site_id": ("S",)}


async def test_what_differs_or_is_the_same_is_no_change(store: RecordStore) -> None:
    await store.lake_batch(0, 100)
    await put(store, job("before"), job("before", components=(Component("Cores", 9, ()),)))
    assert ids(await store.lake_batch(1, 100)) == []


async def test_records_of_the_archive_are_synced_and_moving_there_is_no_change(store: RecordStore) -> None:
    memory = MemoryArchive()
    store.archive = memory
    assert await archive(store, memory, START + 2 * HOUR) == 1
    first = await store.lake_batch(0, 100)
    assert (ids(first), first.records[0].document) == (["before"], encode_record(job("before")).decode())
    await store.recall(["before"])
    assert ids(await store.lake_batch(1, 100)) == []


async def test_batches_are_limited_and_in_order(store: RecordStore) -> None:
    await put(store, job("job-1"), job("job-2"))
    assert [ids(await store.lake_batch(number, 2)) for number in range(3)] == [["before", "job-1"], ["job-2"], []]


async def test_a_store_that_was_restored_notices_that_the_lake_is_newer(store: RecordStore) -> None:
    with pytest.raises(LakeDiverged, match=r"has batch 7 .* made only 0"):
        await store.lake_batch(7, 100)


async def test_beginning_again_keeps_the_number_and_the_name_of_the_store(store: RecordStore) -> None:
    await store.lake_batch(0, 100)
    before = await store.lake_state()
    assert await store.begin_lake() == LakeState(before.store_id, "", 1)
    await store.fill_lake("another-table")
    assert await store.lake_state() == LakeState(before.store_id, "another-table", 1)
    assert ids(await store.lake_batch(0, 100)) == ["before"]
