"""Several daemons on one database: whatever they do at the same time, one verdict per record is the first."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import psycopg
import pytest

from auditord.store import Duplicates, Provenance, RecordCounts, Verdict
from auditord.store.feed import list_consumers
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    MetaValue,
    Record,
    RecordQuery,
    RecordUpdate,
)
from auditord_hookspecs.wire import decode_record
from tests.contract.store.feeds import newest, read, settled

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)
SAME_RUN = Duplicates.SAME_RUN
DAEMONS = 3


def finished(number: int, **changes: object) -> Record:
    meta: dict[str, tuple[str, ...]] = {"site_id": ("S",), "user_id": (f"u{number % 3}",)}
    record = Record(f"job-{number:04}", START, (Component("Cores", 1, ()),), START + HOUR, meta)
    return msgspec.structs.replace(record, **changes)


def running(number: int) -> Record:
    return finished(number, stop_time=None)


@asynccontextmanager
async def daemons(url: str, *keys: str) -> AsyncGenerator[list[RecordStore], None]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_store(url, counted_keys=keys)) for _ in range(DAEMONS)]


async def everything(store: RecordStore) -> list[Record]:
    async with store.stream(RecordQuery()) as pages:
        return [decode_record(document) async for page in pages for document in page]


def provenance(daemon: int) -> Provenance:
    return Provenance(START, f"task:{daemon}", None)


async def test_each_record_is_added_by_one_of_them(postgres_url: str) -> None:
    async with daemons(postgres_url, "user_id") as stores:
        submissions = [(daemon, finished(number)) for number in range(200) for daemon in range(DAEMONS)]
        Random(1).shuffle(submissions)  # noqa: S311 the same order each time
        verdicts = await asyncio.gather(*(stores[i].add(record, provenance(i), SAME_RUN) for i, record in submissions))
        assert Counter(verdicts) == {Verdict.ADDED: 200, Verdict.SAME: 200 * (DAEMONS - 1)}
        assert await everything(stores[0]) == [finished(number) for number in range(200)]
        counts = await stores[1].counts()
        assert (counts.total, counts.per_value) == (200, {"user_id": {"u0": 67, "u1": 67, "u2": 66}})


async def test_bulks_that_overlap(postgres_url: str) -> None:
    async with daemons(postgres_url, "user_id") as stores:
        bulks = [list(range(first, first + 400)) for first in (0, 200, 100)]
        Random(2).shuffle(bulks[1])  # noqa: S311 the same order each time
        outcomes = await asyncio.gather(
            *(
                store.add_all([finished(number) for number in bulk], provenance(i), SAME_RUN, atomic=True)
                for i, (store, bulk) in enumerate(zip(stores, bulks, strict=True))
            )
        )
        assert Counter(verdict for verdicts in outcomes for verdict in verdicts) == {
            Verdict.ADDED: 600,
            Verdict.SAME: 600,
        }
        assert (await stores[0].counts()).total == 600


async def test_closing_and_stopping_at_the_same_time(postgres_url: str) -> None:
    async with daemons(postgres_url, "user_id") as stores:
        await stores[0].add_all([running(number) for number in range(60)], provenance(0), SAME_RUN, atomic=True)

        async def end(number: int, daemon: int) -> Verdict | bool:
            if daemon == 0:
                return await stores[0].stop(RecordUpdate(running(number).record_id, (), START + HOUR), provenance(0))
            return await stores[daemon].add(finished(number), provenance(daemon), SAME_RUN)

        outcomes = await asyncio.gather(*(end(number, daemon) for number in range(60) for daemon in range(DAEMONS)))
        assert set(outcomes) <= {True, Verdict.CLOSED, Verdict.SAME}
        closed = Counter(outcomes)[Verdict.CLOSED]
        assert closed <= 60
        assert await everything(stores[1]) == [finished(number) for number in range(60)]
        counts = await stores[2].counts()
        assert counts == RecordCounts(60, {"user_id": {"u0": 20, "u1": 20, "u2": 20}})


async def test_replacing_at_the_same_time_keeps_the_counts_right(postgres_url: str) -> None:
    async with daemons(postgres_url, "user_id") as stores:
        await stores[0].add_all([finished(number) for number in range(20)], provenance(0), SAME_RUN, atomic=True)
        changes = [(i, finished(number, meta={"user_id": (f"v{i}",)})) for number in range(20) for i in range(DAEMONS)]
        await asyncio.gather(*(stores[i].replace(record, provenance(i)) for i, record in changes))
        values = Counter(value for record in await everything(stores[0]) for value in (record.meta or {})["user_id"])
        assert sum(values.values()) == 20
        for store in stores:
            assert (await store.counts()).per_value == {"user_id": dict(values)}


async def test_a_key_that_only_some_count(postgres_url: str) -> None:
    async with open_store(postgres_url, counted_keys=["site_id"]) as old:
        await old.add(finished(0), provenance(0), SAME_RUN)
        async with open_store(postgres_url, counted_keys=["user_id"]) as new:
            assert await new.counts() == RecordCounts(1, {"user_id": {"u0": 1}})
            for number in range(1, 10):
                await old.add(finished(number), provenance(0), SAME_RUN)
                await new.add(finished(number + 100), provenance(1), SAME_RUN)
            assert (await new.counts()).per_value == {"user_id": {"u0": 7, "u1": 6, "u2": 6}}
            assert (await old.counts()).per_value == {"site_id": {"S": 19}}


async def test_folding_at_the_same_time_counts_everything_once(postgres_url: str) -> None:
    async with daemons(postgres_url, "user_id") as stores:

        async def write(daemon: int) -> None:
            for number in range(daemon * 1_000, daemon * 1_000 + 60):
                await stores[daemon].add(finished(number), provenance(daemon), SAME_RUN)
                await inside(stores[daemon]).rollups.fold()
                await stores[daemon].counts()

        await asyncio.gather(*(write(daemon) for daemon in range(DAEMONS)))
        assert await stores[0].counts() == RecordCounts(180, {"user_id": {"u0": 60, "u1": 60, "u2": 60}})


def inside(store: RecordStore) -> RecordStore:
    return store


async def test_a_transaction_that_is_still_running_loses_no_record(postgres_url: str) -> None:
    """Its position is lower than that of records which are folded before it ends."""
    async with daemons(postgres_url, "user_id") as stores:
        store = inside(stores[0])
        await store.add(finished(0), provenance(0), SAME_RUN)
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute(
                "INSERT INTO auditord.records (start_time, stop_time, runtime, content, received_at, origin_id,"
                " record_id, site, user_name, meta, document)"
                " SELECT start_time, stop_time, runtime, content, received_at,"
                " origin_id, 'early', site, user_name, meta, replace(document, 'job-0000', 'early')"
                " FROM auditord.records"
            )
            await store.add_all([finished(number) for number in range(1, 50)], provenance(0), SAME_RUN, atomic=True)
            for number in range(50, 60):
                await store.add(finished(number), provenance(0), SAME_RUN)
            await store.rollups.fold()
            assert (await store.counts()).total == 60
            assert sum(group.records for group in (await store.aggregate(BY_USER)).groups) == 60
            assert max(each.position for each in await read(store, list_consumers())) < await newest(store)
            await other.commit()
        for _ in range(2):
            assert (await store.counts()).total == 61
            assert sum(group.records for group in (await store.aggregate(BY_USER)).groups) == 61
            await settled(stores[0])
            await store.rollups.fold()


BY_USER = AggregateQuery(by=(MetaValue("user_id"), CalendarPeriod(CalendarUnit.MONTH)))


@pytest.mark.parametrize("of_other", [1, 0])
async def test_positions_go_on_in_another_cluster(postgres_url: str, of_other: int) -> None:
    """As after a dump was restored where transactions have lower ids: in another cluster, or an older copy of it."""
    async with daemons(postgres_url, "user_id") as stores:
        store = inside(stores[0])
        await store.add_all([finished(number) for number in range(9)], provenance(0), SAME_RUN, atomic=True)
        await settled(stores[0])
        await store.rollups.fold()
    far = 10**15
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE auditord.records SET position = position + %s", (far,))
        connection.execute("UPDATE auditord.consumers SET position = position + %s", (far,))
        connection.execute("UPDATE auditord.feed SET cluster = cluster + %s", (of_other,))
    async with daemons(postgres_url, "user_id") as stores:
        store = inside(stores[0])
        await store.add(finished(9), provenance(0), SAME_RUN)
        await store.stop(RecordUpdate(finished(1).record_id, (), START + 2 * HOUR), provenance(0))
        for _ in range(2):
            assert await newest(store) > far + 10
            assert (await store.counts()).total == 10
            assert sum(group.records for group in (await store.aggregate(BY_USER)).groups) == 10
            await settled(stores[0])
            await store.rollups.fold()
        # Another daemon may still fold what it had locked.
        while min(each.position for each in await read(store, list_consumers())) < await newest(store):
            await store.rollups.fold()
