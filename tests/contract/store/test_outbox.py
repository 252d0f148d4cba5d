"""Changes of clients are kept for senders, in the transaction of the change; those of collectors are not."""

from collections.abc import AsyncIterator, Sequence

import pytest

from auditord.store import Duplicates, Provenance, RecordStore, Verdict
from auditord_hookspecs import Close, Entry, Insert, RecordUpdate, Replace
from tests.contract.store.conftest import StoreFactory
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


async def entries(store: RecordStore, limit: int = 100) -> Sequence[Entry]:
    return [waiting.entry for waiting in await store.outbox(limit)]


async def test_what_is_added_is_kept_for_senders_in_order(store: RecordStore) -> None:
    await store.add(finished("a"), CLIENT, SAME_RUN)
    await store.add_all([finished("b"), running("c")], CLIENT, SAME_RUN, atomic=True)
    expected = [Insert(record, None, CLIENT) for record in (finished("a"), finished("b"), running("c"))]
    assert await entries(store) == expected
    assert await entries(store, limit=2) == expected[:2]


async def test_what_collectors_bring_is_not(store: RecordStore) -> None:
    await store.add(running("a"), COLLECTOR, SAME_RUN)
    await store.add_all([finished("a"), finished("b")], COLLECTOR, SAME_RUN, atomic=False)
    await store.replace(finished("b", meta=None), COLLECTOR)
    await store.stop(RecordUpdate("b", (), NOW), COLLECTOR)
    assert await entries(store) == []


async def test_an_end_is_forwarded_as_the_whole_record(store: RecordStore) -> None:
    await store.add(running("stopped"), COLLECTOR, SAME_RUN)
    await store.add(running("posted"), COLLECTOR, SAME_RUN)
    assert await store.stop(RecordUpdate("stopped", (), START + HOUR), CLIENT)
    assert await store.add(finished("posted"), CLIENT, SAME_RUN) is Verdict.CLOSED
    assert await entries(store) == [Insert(finished(name), None, CLIENT) for name in ("stopped", "posted")]


async def test_another_stop_time_is_forwarded_as_an_update(store: RecordStore) -> None:
    await store.add(finished(), COLLECTOR, SAME_RUN)
    for stop_time in (NOW, NOW):
        assert await store.stop(RecordUpdate("job-1", (), stop_time), CLIENT)
    assert await entries(store) == [Close("job-1", NOW, CLIENT)]


async def test_an_earlier_start_is_forwarded(store: RecordStore) -> None:
    await store.add(running(), COLLECTOR, SAME_RUN)
    earlier = running(start_time=START - HOUR)
    assert await store.add(earlier, CLIENT, SAME_RUN) is Verdict.SAME
    assert await entries(store) == [Insert(earlier, None, CLIENT)]


async def test_a_replacement_is_forwarded(store: RecordStore) -> None:
    await store.add(finished("old"), COLLECTOR, SAME_RUN)
    await store.replace(finished("old", meta=None), CLIENT)
    await store.replace(finished("new"), CLIENT)
    assert await entries(store) == [
        Replace(finished("old", meta=None), None, CLIENT),
        Insert(finished("new"), None, CLIENT),
    ]


async def test_what_changes_nothing_is_not_forwarded(store: RecordStore) -> None:
    await store.add(finished(), COLLECTOR, SAME_RUN)
    for record in (finished(), finished(meta=None), running(), finished(start_time=NOW)):
        await store.add(record, CLIENT, SAME_RUN)
    assert not await store.stop(RecordUpdate("nobody", (), NOW), CLIENT)
    assert await entries(store) == []


async def test_what_is_undone_is_not_forwarded(store: RecordStore) -> None:
    await store.add(finished("known"), COLLECTOR, SAME_RUN)
    verdicts = await store.add_all([finished("new"), finished("known", start_time=NOW)], CLIENT, SAME_RUN, atomic=True)
    assert Verdict.EXISTS in verdicts
    assert await entries(store) == []


async def test_what_has_been_forwarded_is_forgotten_and_its_number_never_comes_again(
    stores: StoreFactory,
) -> None:
    async with stores(outbox=True) as store:
        await store.add_all([finished("a"), finished("b")], CLIENT, SAME_RUN, atomic=True)
        numbers = [waiting.number for waiting in await store.outbox(10)]
        assert numbers == sorted(set(numbers))
        await store.forget_outbox([*numbers, 10_000])
        assert await entries(store) == []
    async with stores(outbox=True) as store:
        await store.add(finished("c"), CLIENT, SAME_RUN)
        (waiting,) = await store.outbox(10)
        assert waiting.number > max(numbers)


async def test_it_survives_and_is_off_unless_asked_for(stores: StoreFactory) -> None:
    async with stores(outbox=True) as store:
        await store.add(finished("a"), CLIENT, SAME_RUN)
    async with stores() as store:
        await store.add(finished("b"), CLIENT, SAME_RUN)
        assert await entries(store) == [Insert(finished("a"), None, CLIENT)]
