"""Concurrent changes gather: greedily, in order per record, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import cast

import pytest

from auditord.database.postgres import Connection
from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.planning import Change, Stop, ids_of
from auditord.store.postgres.batches import Batches
from auditord.store.rows import Bulk, PendingRecord, amounts_of, make_pending
from auditord_hookspecs import InvalidRecord, Record

pytestmark = pytest.mark.anyio

NOW = datetime(2024, 2, 3, tzinfo=UTC)
PROVENANCE = Provenance(NOW)


def stop(record_id: str) -> Stop:
    return Stop(record_id, NOW, PROVENANCE)


def pending(record_id: str) -> PendingRecord:
    return make_pending(Record(record_id, NOW, ()), PROVENANCE, Duplicates.SAME_RUN)


def bulk(*record_ids: str) -> Bulk:
    records = [Record(name, NOW, ()) for name in record_ids]
    amounts = [amounts_of(each.components) for each in records]
    return Bulk(records, amounts, [None] * len(records), PROVENANCE, Duplicates.SAME_RUN, origin=1, atomic=True)


class Database:
    """Plays the database: notes every transaction, and lets it wait until it is released."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.going = asyncio.Event()
        self.going.set()
        self.fault: Exception | None = None
        self.away: Exception | None = None
        self.connections = 0
        self.given_back = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection, None]:
        await asyncio.sleep(0)
        if self.away is not None:
            raise self.away
        self.connections += 1
        yield cast("Connection", None)
        self.given_back.set()

    async def make(self, _: Connection, changes: Sequence[Change | Bulk]) -> Sequence[object]:
        self.transactions.append([record_id for change in changes for record_id in ids_of(change)])
        await self.going.wait()
        if self.fault is not None:
            raise self.fault
        return [[Verdict.ADDED] * len(change) if isinstance(change, Bulk) else True for change in changes]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_waits_for_a_connection_shares_a_transaction() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    assert await asyncio.gather(*(batches.submit(stop(name)) for name in "abc")) == [True] * 3
    assert database.transactions == [["a", "b", "c"]]


async def test_while_one_transaction_is_made_the_next_one_gathers() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    database.going.clear()
    first = batches.submit(stop("a"))
    await turns()
    others = [batches.submit(stop(name)) for name in "bcd"]
    database.going.set()
    assert await asyncio.gather(first, *others) == [True] * 4
    assert database.transactions == [["a"], ["b", "c", "d"]]


async def test_what_follows_at_once_needs_no_new_connection() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    for name in "abc":
        assert await batches.submit(stop(name)) is True
        await turns()
    assert (database.transactions, database.connections) == ([["a"], ["b"], ["c"]], 1)


async def test_a_connection_is_not_kept_for_nothing() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    assert await batches.submit(stop("a")) is True
    async with asyncio.timeout(10):
        await database.given_back.wait()
    assert await batches.submit(stop("b")) is True
    assert database.connections == 2


async def test_changes_of_one_record_wait_for_each_other_and_others_pass_them() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 2, ids_of)
    database.going.clear()
    waiting = [batches.submit(bulk("a"))]
    await turns()
    waiting += [batches.submit(each) for each in (stop("a"), stop("b"), stop("a"))]
    await turns()
    assert database.transactions == [["a"], ["b"]]
    database.going.set()
    await asyncio.gather(*waiting)
    assert database.transactions == [["a"], ["b"], ["a", "a"]]


async def test_changes_gather_while_others_are_made_and_a_bulk_passes_them() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 2, ids_of)
    database.going.clear()
    waiting = [batches.submit(stop("a"))]
    await turns()
    waiting += [batches.submit(each) for each in (stop("b"), bulk("c"), stop("d"))]
    await turns()
    assert database.transactions == [["a"], ["c"]]
    database.going.set()
    await asyncio.gather(*waiting)
    assert database.transactions == [["a"], ["c"], ["b", "d"]]


async def test_changes_that_gathered_do_not_wait_for_the_bulk_before_them() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 2, ids_of)
    waiting = [batches.submit(each) for each in (bulk("a"), stop("b"))]
    database.going.clear()
    await turns(20)
    assert database.transactions == [["a"], ["b"]]
    database.going.set()
    await asyncio.gather(*waiting)


async def test_a_bulk_does_not_wait_for_the_changes_before_it() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 2, ids_of)
    waiting = [batches.submit(each) for each in (stop("a"), bulk("b"))]
    database.going.clear()
    await turns(20)
    assert database.transactions == [["a"], ["b"]]
    database.going.set()
    await asyncio.gather(*waiting)


async def test_without_a_second_connection_only_the_bulk_that_waits_for_it_fails() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 2, ids_of)
    database.going.clear()
    first = batches.submit(stop("a"))
    await turns()
    database.away = StoreUnavailable("away")
    together, change = batches.submit(bulk("b")), batches.submit(stop("c"))
    with pytest.raises(StoreUnavailable):
        await together
    database.going.set()
    assert (await first, await change) == (True, True)


async def test_a_bulk_has_a_transaction_of_its_own_and_its_turn() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    before = batches.submit(stop("a"))
    together = batches.submit(bulk("b", "a"))
    after = batches.submit(stop("b"))
    beside = batches.submit(stop("c"))
    assert list(await asyncio.gather(before, together, after, beside)) == [True, [Verdict.ADDED] * 2, True, True]
    assert database.transactions == [["a", "c"], ["b", "a"], ["b"]]


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), InvalidRecord("bad"), RuntimeError("a mistake")])
async def test_a_fault_is_reported_to_those_whose_changes_it_met(fault: Exception) -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    database.fault = fault
    outcomes = await asyncio.gather(*(batches.submit(stop(name)) for name in "ab"), return_exceptions=True)
    assert outcomes == [fault, fault]
    database.fault = None
    assert await batches.submit(stop("a"))


async def test_without_a_connection_nobody_waits_for_ever() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 2, ids_of)
    database.away = StoreUnavailable("away")
    outcomes = await asyncio.gather(*(batches.submit(stop(name)) for name in "aab"), return_exceptions=True)
    assert outcomes == [database.away] * 3
    database.away = None
    assert await batches.submit(stop("a"))


async def test_who_leaves_keeps_nobody() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    leaving, staying = batches.submit(stop("a")), batches.submit(stop("a"))
    leaving.cancel()
    assert await staying
    assert database.transactions == [["a", "a"]]


async def test_closing_finishes_what_was_submitted() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    waiting = [batches.submit(stop(name)) for name in "aab"]
    await batches.close()
    assert [each.result() for each in waiting] == [True] * 3
    with pytest.raises(StoreUnavailable):
        await batches.submit(stop("a"))


async def test_reads_one_after_the_other_use_the_connection_that_waits_for_more() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    for name in "abc":
        assert await batches.read(stop(name)) is True
        await turns()
    assert (database.transactions, database.connections) == ([["a"], ["b"], ["c"]], 1)


async def test_what_arrives_during_a_read_gathers_for_the_next_statement() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    assert await batches.read(stop("a")) is True
    await turns()
    database.going.clear()
    reads = [asyncio.ensure_future(batches.read(stop(name))) for name in "bcd"]
    await turns()
    assert database.transactions == [["a"], ["b"]]
    database.going.set()
    assert await asyncio.gather(*reads) == [True] * 3
    assert (database.transactions, database.connections) == ([["a"], ["b"], ["c", "d"]], 1)


async def test_a_read_that_failed_or_was_cancelled_gives_the_connection_back() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    assert await batches.read(stop("a")) is True
    await turns()
    database.fault = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await batches.read(stop("b"))
    async with asyncio.timeout(10):
        await database.given_back.wait()
    database.fault = None
    assert await batches.read(stop("c")) is True
    await turns()
    database.going.clear()
    leaving = asyncio.ensure_future(batches.read(stop("d")))
    await turns()
    staying = asyncio.ensure_future(batches.read(stop("e")))
    await turns()
    leaving.cancel()
    database.going.set()
    assert await staying is True
    assert leaving.cancelled()
    assert (database.transactions, database.connections) == ([["a"], ["b"], ["c"], ["d"], ["e"]], 3)


async def test_reads_at_any_moment_meet_no_connection_that_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.store.postgres.batches._LINGER", 0.0)  # its alarm rings in the next turn of the loop
    in_use = 0

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Connection, None]:
        nonlocal in_use
        in_use += 1
        try:
            yield cast("Connection", None)
        finally:
            in_use -= 1

    async def make(_: Connection, reads: Sequence[Change | Bulk]) -> Sequence[object]:
        for _turn in range(5):
            await asyncio.sleep(0)
            assert in_use == 1
        return [True] * len(reads)

    batches = Batches(connect, make, 1, ids_of)
    for count in range(100):
        assert await batches.read(stop("a")) is True
        await turns(count % 10)


async def test_closing_waits_for_a_read() -> None:
    database = Database()
    batches = Batches(database.connect, database.make, 1, ids_of)
    assert await batches.read(stop("a")) is True
    await turns()
    database.going.clear()
    reading = asyncio.ensure_future(batches.read(stop("b")))
    await turns()
    closing = asyncio.ensure_future(batches.close())
    await turns()
    assert not closing.done()
    database.going.set()
    await closing
    assert await reading is True
    with pytest.raises(StoreUnavailable):
        await batches.read(stop("c"))
