"""The lake follows the feed: each batch is what changed behind the position that the lake has."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec
import pytest

from auditord.database.instants import to_micros
from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.lake import LakeBatch, LakeDiverged
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, RecordUpdate
from auditord_hookspecs.wire import encode_record
from tests.contract.store.feeds import settled
from tests.lake_in_memory import MemoryLake, release, snapshot, synced

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


async def batch_behind(store: RecordStore, position: int, limit: int = 100) -> LakeBatch:
    await settled(store)
    return await store.lake_batch(position, limit)


async def test_nothing_is_kept_before_there_is_a_lake(stores: StoreFactory) -> None:
    async with stores() as store:
        await put(store, job("job-1"))
        await store.add(job("job-2"), SLURM, Duplicates.SAME_RUN)
        assert ((await store.lake_state()).lake_id, await store.lake_waiting()) == ("", 0)


async def test_all_that_was_there_and_all_that_comes_is_synced_once(store: RecordStore) -> None:
    await put(store, job("job-1"))
    await store.add(job("job-2"), SLURM, Duplicates.SAME_RUN)
    assert await store.lake_waiting() == 3
    first = await batch_behind(store, 0)
    assert (ids(first), first.known) == (["before", "job-1", "job-2"], {})
    assert first.records[0].received_at == SLURM.received_at
    assert first.records[0].principal == "task:slurm"
    again = await store.lake_batch(first.number, 100)
    assert (ids(again), await store.lake_waiting()) == ([], 0)


async def test_a_lake_that_ends_leaves_nothing_to_be_kept(store: RecordStore) -> None:
    await store.begin_lake()
    await put(store, job("job-1"))
    await store.add(job("job-2"), SLURM, Duplicates.SAME_RUN)
    await delete(store, job("before"))
    assert await store.lake_waiting() == 0
    await store.fill_lake(LAKE)
    assert ids(await batch_behind(store, 0)) == ["job-1", "job-2"]


async def test_a_batch_whose_commit_failed_comes_again(store: RecordStore) -> None:
    first, again = await batch_behind(store, 0), await store.lake_batch(0, 100)
    assert (ids(again), again.known, again.number >= first.number) == (["before"], {}, True)


async def test_every_change_names_what_the_lake_has(store: RecordStore) -> None:
    await put(store, job("open", stop_time=None), job("moved"), job("gone"), job("redacted"), job("replaced"))
    first = await batch_behind(store, 0)
    await put(store, job("brief"))
    await store.stop(RecordUpdate("open", (), START + HOUR), SLURM)
    await store.stop(RecordUpdate("moved", (), START + 2 * HOUR), SLURM)
    await store.stop(RecordUpdate("moved", (), START + 3 * HOUR), SLURM)
    await delete(store, job("gone"))
    await delete(store, job("brief"))
    await store.redact(["redacted"], {"user_id"})
    await store.replace(job("replaced", components=(Component("Cores", 9, ()),)), SLURM)
    batch = await batch_behind(store, first.number)
    assert ids(batch) == ["moved", "open", "redacted", "replaced"]
    assert batch.known == {"open": {None}, "moved": {STOP}, "gone": {STOP}, "redacted": {STOP}, "replaced": {STOP}}
    redacted = next(copy.record for copy in batch.records if copy.record.record_id == "redacted")
    assert redacted.meta == {"site_id": ("S",)}


async def test_what_differs_or_is_the_same_is_no_change(store: RecordStore) -> None:
    first = await batch_behind(store, 0)
    await put(store, job("before"), job("before", components=(Component("Cores", 9, ()),)))
    assert ids(await batch_behind(store, first.number)) == []


async def test_release_and_recall_are_no_changes(store: RecordStore) -> None:
    store.lake = memory = MemoryLake()
    first = await batch_behind(store, 0)
    assert await release(store, memory, ["before"], START + 2 * HOUR) == 0  # the lake has not said that it has it
    kept = list((await store.list_released()).recalled)
    assert (await batch_behind(store, first.number)).is_empty
    assert await store.list_recalled_and_kept(first.number) == kept
    await store.forget_recalled(kept, 1, snapshot(2))
    assert await release(store, memory, ["before"], START + 2 * HOUR) == 1
    assert (await batch_behind(store, first.number)).is_empty
    await store.recall(["before"])
    assert (await batch_behind(store, first.number)).is_empty


async def test_a_row_of_a_release_goes_with_what_replaces_it(store: RecordStore) -> None:
    """A lake that is filled anew keeps the rows of released records, which may be recalled meanwhile."""
    store.lake = memory = MemoryLake()
    await put(store, job("gone"), job("later"))
    position = (await batch_behind(store, 0)).number
    await batch_behind(store, position)
    assert await release(store, memory, ["before", "gone", "later"], START + 2 * HOUR) == 3
    await store.begin_lake()
    await store.fill_lake(LAKE)
    await store.recall(["before", "gone"])
    await delete(store, job("gone"))
    batch = await batch_behind(store, 0)
    assert (ids(batch), batch.known) == (["before"], {})
    assert {(row.record_id, row.release) for row in batch.recalled} == {("before", 1), ("gone", 1)}
    await store.forget_recalled(list(batch.recalled), 0, snapshot(2))
    assert (await batch_behind(store, batch.number)).is_empty


async def test_batches_are_limited_and_in_order(store: RecordStore) -> None:
    for name in ("job-1", "job-2"):
        await put(store, job(name))
    position, synced = 0, list[str]()
    for _ in range(3):
        batch = await batch_behind(store, position, 1)
        synced += ids(batch)
        position = batch.number
    assert synced == ["before", "job-1", "job-2"]


async def test_a_store_that_was_restored_notices_that_the_lake_is_newer(store: RecordStore) -> None:
    with pytest.raises(LakeDiverged, match=r"has batch 7 .* last batch is 0"):
        await store.lake_batch(7, 100)


async def test_a_lake_that_was_restored_is_noticed(store: RecordStore) -> None:
    """The changes between have been forgotten."""
    first = await batch_behind(store, 0)
    await store.lake_batch(first.number, 100)
    with pytest.raises(LakeDiverged, match=f"has batch 0 .* had batch {first.number} before"):
        await store.lake_batch(0, 100)


async def test_beginning_again_keeps_the_number_and_the_name_of_the_store(store: RecordStore) -> None:
    first = await batch_behind(store, 0)
    before = await store.lake_state()
    state = await store.begin_lake()
    assert (state.store_id, state.lake_id, state.given) == (before.store_id, "", first.number)
    await store.fill_lake("another-table")
    state = await store.lake_state()
    assert (state.store_id, state.lake_id, state.given) == (before.store_id, "another-table", first.number)
    assert ids(await batch_behind(store, 0)) == ["before"]


async def test_a_lake_that_is_filled_again_keeps_the_only_copies(stores: StoreFactory) -> None:
    """The former version of a released record may still be kept, and says nothing of the row that counts."""
    async with stores(outbox=True) as store:
        await put(store, job("job-1"))
        await store.begin_lake()
        await store.fill_lake(LAKE)
        first = await batch_behind(store, 0)
        await store.redact(["job-1"], ["user_id"])
        second = await batch_behind(store, first.number)
        await batch_behind(store, second.number)
        await store.catch_up()  # the former version stays for senders
        await store.forget_outbox(second.number)
        copies = MemoryLake().marked(await synced(store, ["job-1"]), 1)
        assert await store.release(copies, 0, snapshot(1)) == 1
        await store.begin_lake()
        await store.fill_lake(LAKE)
        assert (await batch_behind(store, first.number)).is_empty
