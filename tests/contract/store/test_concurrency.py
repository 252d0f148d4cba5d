"""Many callers at once: each gets its own verdict, nothing is lost or doubled."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import pytest

from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, RecordQuery
from auditord_hookspecs.wire import decode_record

pytestmark = pytest.mark.anyio

StoreFactory = Callable[[], AbstractAsyncContextManager[RecordStore]]

START = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
PROVENANCE = Provenance(START)
SAME_RUN = Duplicates.SAME_RUN


def record(number: int, cores: int = 1, start: datetime = START) -> Record:
    return Record(f"job-{number:05}", start, (Component("Cores", cores, ()),), start, {"user_id": (f"u{number % 5}",)})


async def all_records(store: RecordStore) -> list[Record]:
    async with store.stream(RecordQuery()) as pages:
        return [decode_record(document) async for page in pages for document in page]


async def test_each_of_many_gets_its_own_verdict(store: RecordStore) -> None:
    offered = [record(number) for number in range(300) for _ in range(3)]
    offered += [record(number, cores=2) for number in range(100)]
    offered += [record(number, start=START + timedelta(1)) for number in range(100, 150)]
    verdicts = await asyncio.gather(*(store.add(each, PROVENANCE, SAME_RUN) for each in offered))
    assert Counter(verdicts) == {
        Verdict.ADDED: 300,
        Verdict.SAME: 600,
        Verdict.DIFFERENT: 100,
        Verdict.EXISTS: 50,
    }
    assert await all_records(store) == [record(number) for number in range(300)]
    counts = await store.counts()
    assert (counts.total, counts.per_value["user_id"]) == (300, {f"u{number}": 60 for number in range(5)})


async def test_callers_under_different_rules_share_a_transaction(store: RecordStore) -> None:
    verdicts = await asyncio.gather(
        store.add(record(1), PROVENANCE, SAME_RUN),
        store.add(record(1), PROVENANCE, Duplicates.REFUSE),
        store.add(record(1, cores=2), PROVENANCE, Duplicates.IGNORE),
        store.add(record(1), PROVENANCE, SAME_RUN),
        store.add_all([record(2), record(1)], PROVENANCE, SAME_RUN, atomic=True),
    )
    *single, together = verdicts
    assert single == [Verdict.ADDED, Verdict.EXISTS, Verdict.DIFFERENT, Verdict.SAME]
    assert together == [Verdict.ADDED, Verdict.SAME]


async def test_a_caller_that_leaves_disturbs_nobody(store: RecordStore) -> None:
    tasks = [asyncio.create_task(store.add(record(number), PROVENANCE, SAME_RUN)) for number in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert set(outcomes[1::2]) == {Verdict.ADDED}
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
    stored = {each.record_id for each in await all_records(store)}
    assert {f"job-{number:05}" for number in range(1, 100, 2)} <= stored


async def test_reading_and_writing_at_once(store: RecordStore) -> None:
    async def write(first: int) -> None:
        for number in range(first, first + 50):
            assert await store.add(record(number), PROVENANCE, SAME_RUN) is Verdict.ADDED

    async def read() -> int:
        return len(await all_records(store))

    writers = [write(first) for first in range(0, 500, 50)]
    *_, seen = await asyncio.gather(*writers, *(read() for _ in range(10)))
    assert isinstance(seen, int)
    assert await all_records(store) == [record(number) for number in range(500)]


async def test_closing_finishes_what_was_begun(stores: StoreFactory) -> None:
    async with stores() as store:
        tasks = [asyncio.create_task(store.add(record(number), PROVENANCE, SAME_RUN)) for number in range(100)]
        await asyncio.sleep(0)
    assert {await task for task in tasks} == {Verdict.ADDED}
    with pytest.raises(StoreUnavailable):
        await store.add(record(1), PROVENANCE, SAME_RUN)
    async with stores() as store:
        assert len(await all_records(store)) == 100


async def test_a_store_that_can_be_written(store: RecordStore) -> None:
    await store.check()
