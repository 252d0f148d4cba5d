"""Changes of clients are kept for senders, in the transaction of the change; those of collectors are not."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from auditord.store import Action, Amendment, Duplicates, Provenance, Verdict
from auditord.store.store import RecordStore
from auditord_hookspecs import Close, Insert, RecordUpdate, Replace
from tests.contract.store.conftest import StoreFactory
from tests.contract.store.feeds import forwarded, settled
from tests.contract.store.jobs import HOUR, START, finished, running

pytestmark = pytest.mark.anyio

NOW = START + 24 * HOUR
CLIENT = Provenance(NOW, None, "auditor-client/0.11.2")
COLLECTOR = Provenance(NOW, "task:slurm")
SAME_RUN = Duplicates.SAME_RUN


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores(outbox=True) as opened:
        yield opened


async def test_what_is_added_is_kept_for_senders_in_order(store: RecordStore) -> None:
    await store.add(finished("a"), CLIENT, SAME_RUN)
    await store.add_all([finished("b"), running("c")], CLIENT, SAME_RUN, atomic=True)
    expected = [Insert(record, None, CLIENT) for record in (finished("a"), finished("b"), running("c"))]
    assert await forwarded(store) == expected
    await settled(store)
    few = await store.outbox(1)
    assert [waiting.entry for waiting in few.entries] == expected[:1]
    await store.forget_outbox(few.position)
    assert await forwarded(store) == expected[1:]


async def test_what_collectors_bring_is_not(store: RecordStore) -> None:
    await store.add(running("a"), COLLECTOR, SAME_RUN)
    await store.add_all([finished("a"), finished("b")], COLLECTOR, SAME_RUN, atomic=False)
    await store.replace(finished("b", meta=None), COLLECTOR)
    await store.stop(RecordUpdate("b", (), NOW), COLLECTOR)
    assert await forwarded(store) == []


async def test_an_end_is_forwarded_as_the_whole_record(store: RecordStore) -> None:
    await store.add(running("stopped"), COLLECTOR, SAME_RUN)
    await store.add(running("posted"), COLLECTOR, SAME_RUN)
    assert await store.stop(RecordUpdate("stopped", (), START + HOUR), CLIENT)
    assert await store.add(finished("posted"), CLIENT, SAME_RUN) is Verdict.CLOSED
    assert await forwarded(store) == [Insert(finished(name), None, CLIENT) for name in ("stopped", "posted")]


async def test_another_stop_time_is_forwarded_as_an_update(store: RecordStore) -> None:
    await store.add(finished(), COLLECTOR, SAME_RUN)
    for stop_time in (NOW, NOW):
        assert await store.stop(RecordUpdate("job-1", (), stop_time), CLIENT)
    assert await forwarded(store) == [Close("job-1", NOW, CLIENT)]


async def test_an_earlier_start_is_forwarded(store: RecordStore) -> None:
    await store.add(running(), COLLECTOR, SAME_RUN)
    earlier = running(start_time=START - HOUR)
    assert await store.add(earlier, CLIENT, SAME_RUN) is Verdict.SAME
    assert await forwarded(store) == [Insert(earlier, None, CLIENT)]


async def test_a_replacement_is_forwarded(store: RecordStore) -> None:
    await store.add(finished("old"), COLLECTOR, SAME_RUN)
    await store.replace(finished("old", meta=None), CLIENT)
    await store.replace(finished("new"), CLIENT)
    assert await forwarded(store) == [
        Replace(finished("old", meta=None), None, CLIENT),
        Insert(finished("new"), None, CLIENT),
    ]


async def test_what_changes_nothing_is_not_forwarded(store: RecordStore) -> None:
    await store.add(finished(), COLLECTOR, SAME_RUN)
    for record in (finished(), finished(meta=None), running(), finished(start_time=NOW)):
        await store.add(record, CLIENT, SAME_RUN)
    assert not await store.stop(RecordUpdate("nobody", (), NOW), CLIENT)
    assert await forwarded(store) == []


async def test_what_is_undone_is_not_forwarded(store: RecordStore) -> None:
    await store.add(finished("known"), COLLECTOR, SAME_RUN)
    verdicts = await store.add_all([finished("new"), finished("known", start_time=NOW)], CLIENT, SAME_RUN, atomic=True)
    assert Verdict.EXISTS in verdicts
    assert await forwarded(store) == []


async def test_what_has_been_forwarded_does_not_come_again(stores: StoreFactory) -> None:
    async with stores(outbox=True) as store:
        await store.add_all([finished("a"), finished("b")], CLIENT, SAME_RUN, atomic=True)
        await settled(store)
        await store.forget_outbox((await store.outbox(10)).position)
        await settled(store)
        assert not (await store.outbox(10)).has_more
    async with stores(outbox=True) as store:
        await store.add(finished("c"), CLIENT, SAME_RUN)
        assert await forwarded(store) == [Insert(finished("c"), None, CLIENT)]


async def test_it_is_kept_without_a_sender_once_it_was_asked_for(stores: StoreFactory) -> None:
    async with stores() as store:
        await store.add(finished("before"), CLIENT, SAME_RUN)
        assert await forwarded(store) == []
    async with stores(outbox=True) as store:
        await store.add(finished("a"), CLIENT, SAME_RUN)
    async with stores() as store:
        await store.add(finished("b"), CLIENT, SAME_RUN)
        assert await forwarded(store) == [Insert(finished(name), None, CLIENT) for name in ("a", "b")]


async def test_several_changes_of_a_record_are_one_entry(store: RecordStore) -> None:
    await store.add(running("new"), CLIENT, SAME_RUN)
    await store.add(finished("known"), COLLECTOR, SAME_RUN)
    await settled(store)
    await store.forget_outbox((await store.outbox(10)).position)
    await store.add(running("later"), CLIENT, SAME_RUN)
    for name in ("new", "later"):
        await store.stop(RecordUpdate(name, (), START + HOUR), COLLECTOR)
    for stop_time in (NOW - HOUR, NOW):
        await store.stop(RecordUpdate("known", (), stop_time), CLIENT)
    assert await forwarded(store) == [Insert(finished("later"), None, CLIENT), Close("known", NOW, CLIENT)]


async def test_a_record_that_a_collector_changes_at_once_is_forwarded(store: RecordStore) -> None:
    """Both changes may be of one transaction; the record is a client's all the same."""
    adding = store.add(running("a"), CLIENT, SAME_RUN), store.stop(RecordUpdate("a", (), START + HOUR), COLLECTOR)
    await asyncio.gather(*adding)
    assert [entry.record for entry in await forwarded(store) if isinstance(entry, Insert)] == [finished("a")]


async def test_a_change_between_two_looks_is_forwarded_with_the_next(store: RecordStore) -> None:
    await store.add(finished("a"), CLIENT, SAME_RUN)
    await store.add(finished("b"), CLIENT, SAME_RUN)
    await settled(store)
    first = await store.outbox(1)
    await store.replace(finished("a", meta=None), CLIENT)
    await settled(store)
    again = [each.entry for each in (await store.outbox(1)).entries]
    assert Insert(finished("a", meta=None), None, CLIENT) in again
    await store.forget_outbox(first.position)
    assert await forwarded(store) == [
        Insert(finished("b"), None, CLIENT),
        Replace(finished("a", meta=None), None, CLIENT),
    ]


async def test_a_record_that_is_opened_again_after_a_slice_is_forwarded_open(store: RecordStore) -> None:
    await store.add(finished("a"), CLIENT, SAME_RUN)
    await settled(store)
    await store.forget_outbox((await store.outbox(10)).position)
    await store.stop(RecordUpdate("a", (), NOW), CLIENT)
    await store.add(finished("b"), CLIENT, SAME_RUN)
    await store.replace(running("a"), CLIENT)
    await settled(store)
    first, opened = await store.outbox(1), Replace(running("a"), None, CLIENT)
    assert opened in [each.entry for each in first.entries]
    await store.forget_outbox(first.position)
    assert opened in await forwarded(store)


async def test_a_deleted_record_is_not_forwarded(store: RecordStore) -> None:
    await store.add(finished("a"), CLIENT, SAME_RUN)
    document = await store.get("a")
    assert document is not None
    await store.amend([Amendment(Action.DELETE, document, None, "wrong")], CLIENT)
    assert await forwarded(store) == []


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("first", [COLLECTOR, CLIENT])
async def test_a_record_that_is_deleted_and_comes_again_at_once_is_forwarded(
    store: RecordStore, first: Provenance, *, seen: bool
) -> None:
    await store.add(finished("a"), first, SAME_RUN)
    if seen:
        await settled(store)
        await store.forget_outbox((await store.outbox(10)).position)
    await store.stop(RecordUpdate("a", (), NOW - HOUR), CLIENT)
    document = await store.get("a")
    assert document is not None
    await store.amend([Amendment(Action.DELETE, document, None, "wrong")], CLIENT)
    await store.add(finished("a", stop_time=NOW), CLIENT, SAME_RUN)
    assert await forwarded(store) == [Insert(finished("a", stop_time=NOW), None, CLIENT)]


async def test_what_a_collector_brings_again_is_not(store: RecordStore) -> None:
    await store.add(finished("a"), CLIENT, SAME_RUN)
    document = await store.get("a")
    assert document is not None
    await store.amend([Amendment(Action.DELETE, document, None, "wrong")], CLIENT)
    await store.add(finished("a"), COLLECTOR, SAME_RUN)
    assert await forwarded(store) == []
