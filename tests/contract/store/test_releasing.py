"""Records are released to the lake and recalled: each is in the store or in the lake, and its id stays known."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec
import pytest

from auditord.database.instants import to_micros
from auditord.errors import StoreUnavailable
from auditord.store import Action, Amended, Amendment, Duplicates, Provenance, Verdict
from auditord.store.lake import LakeOvertaken, LakeRecord, LakeState, ReleasedRow
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, RecordQuery, RecordUpdate, Score
from auditord_hookspecs.wire import encode_record
from tests.lake_in_memory import LOCATION, MemoryLake, release, snapshot, synced

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR = timedelta(hours=1)
MONTH = timedelta(days=31)
SLURM = Provenance(START + HOUR, "task:slurm", "agent")
ALICE = Provenance(START + MONTH, "user:alice")
SAME_RUN = Duplicates.SAME_RUN
ALL = ("job-1", "job-2", "late")


class StoreFactory(Protocol):
    def __call__(self, *, outbox: bool = False) -> AbstractAsyncContextManager[RecordStore]: ...


def finished(record_id: str = "job-1", **changes: object) -> Record:
    components = (Component("Cores", 8, (Score("HEPscore23", 12.5),)),)
    record = Record(record_id, START, components, START + HOUR, {"site_id": ("S",), "user_id": ("u",)})
    return msgspec.structs.replace(record, **changes)


JOB_1 = ReleasedRow("job-1", 1, to_micros(START + HOUR))


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        yield opened


@pytest.fixture
async def released(store: RecordStore) -> MemoryLake:
    """Two released records, and one that is not."""
    memory = MemoryLake()
    store.lake = memory
    await put(store, finished(), finished("job-2"), finished("late", stop_time=START + MONTH))
    assert await release(store, memory, ALL, START + 2 * HOUR) == 2
    return memory


async def test_records_of_both_places_are_read_at_the_same_time(store: RecordStore, released: MemoryLake) -> None:
    del released
    wanted = [finished(), finished("late", stop_time=START + MONTH), finished("job-2")]
    found = await asyncio.gather(*(store.get(each.record_id) for each in wanted), store.get("nobody"))
    assert found == [*map(encode_record, wanted), None]


async def recalled(store: RecordStore) -> Sequence[ReleasedRow]:
    return list((await store.list_released()).recalled)


async def put(store: RecordStore, *records: Record) -> None:
    await store.add_all(records, SLURM, SAME_RUN, atomic=True)


async def texts(store: RecordStore) -> Sequence[bytes]:
    async with store.stream(RecordQuery()) as pages:
        return [document async for page in pages for document in page]


async def test_released_records_are_in_the_lake_alone(store: RecordStore, released: MemoryLake) -> None:
    assert await texts(store) == [encode_record(finished("late", stop_time=START + MONTH))]
    state, counts = await store.lake_state(), await store.counts()
    assert (state.records, state.release, state.snapshot_id) == (2, 1, snapshot(1).snapshot_id)
    assert (state.first_stop, state.last_stop) == (START + HOUR, START + HOUR)
    assert (counts.total, counts.per_value["site_id"]) == (3, {"S": 3})  # of released records as well
    copy = released.rows["job-1", 1]
    assert (copy.document.encode(), copy.principal, copy.agent) == (encode_record(finished()), "task:slurm", "agent")
    assert (copy.received_at, copy.updated_at) == (SLURM.received_at, None)


async def test_their_texts_are_read_from_there(store: RecordStore, released: MemoryLake) -> None:
    assert len(released.rows) == 2
    assert await store.get("job-1") == encode_record(finished())
    assert set(await store.documents(["job-2", "late", "other"])) == {"job-2", "late"}


@pytest.mark.usefixtures("released")
async def test_without_a_lake_they_are_not_taken_for_missing(store: RecordStore) -> None:
    store.lake = None
    with pytest.raises(StoreUnavailable, match=f"2 records are released to the lake at {LOCATION}"):
        await store.get("job-1")


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize(
    ("offered", "duplicates", "verdict"),
    [
        (finished(), SAME_RUN, Verdict.SAME),
        (finished(stop_time=None), SAME_RUN, Verdict.SAME),
        (finished(meta={"site_id": ("T",)}), SAME_RUN, Verdict.DIFFERENT),
        (finished(stop_time=START + 2 * HOUR), SAME_RUN, Verdict.DIFFERENT),
        (finished(start_time=START - HOUR), SAME_RUN, Verdict.EXISTS),
        (finished(), Duplicates.REFUSE, Verdict.EXISTS),
        (finished(start_time=START - HOUR), Duplicates.IGNORE, Verdict.DIFFERENT),
    ],
)
async def test_a_released_id_gets_the_verdict_that_it_would_get_here(
    store: RecordStore, offered: Record, duplicates: Duplicates, verdict: Verdict, *, bulk: bool
) -> None:
    if bulk:
        new = finished("new")
        verdicts = await store.add_all([new, offered], ALICE, duplicates, atomic=False)
        assert verdicts == [Verdict.ADDED, verdict]
    else:
        assert await store.add(offered, ALICE, duplicates) is verdict
    counts = await store.counts()
    assert (counts.total, counts.differences) == (3 + bulk, int(verdict is Verdict.DIFFERENT))
    if verdict is Verdict.DIFFERENT:
        async with store.differences() as differences:
            assert [(each.record_id, each.stored) async for each in differences] == [("job-1", None)]


async def test_differences_are_kept_when_their_record_is_released(store: RecordStore) -> None:
    await put(store, finished())
    await store.add(finished(meta=None), ALICE, SAME_RUN)
    store.lake = memory = MemoryLake()
    await release(store, memory, ["job-1"], START + MONTH)
    assert (await store.counts()).differences == 1
    [difference] = await store.differences_of("job-1")
    origin = await store.find_with_provenance("job-1")
    assert origin is not None
    assert (difference.stored, origin.record, origin.release > 0) == (None, finished(), True)


async def test_a_record_that_changed_meanwhile_stays_and_its_row_does_not_count(store: RecordStore) -> None:
    await put(store, finished(), finished("job-2"))
    copies = MemoryLake().marked(await synced(store, ["job-1", "job-2"]), 1)
    await store.stop(RecordUpdate("job-1", (), START + 2 * HOUR), ALICE)
    await store.catch_up()
    assert await store.release(copies, 0, snapshot(1)) == 1
    assert await texts(store) == [encode_record(finished(stop_time=START + 2 * HOUR))]
    assert await recalled(store) == [JOB_1]
    assert (await store.lake_state()).records == 1
    await store.forget_recalled([JOB_1], 1, snapshot(2))
    assert (await recalled(store), (await store.lake_state()).snapshot_id) == ([], snapshot(2).snapshot_id)


async def test_a_release_counts_once(store: RecordStore, released: MemoryLake) -> None:
    with pytest.raises(LakeOvertaken):
        await store.release([released.rows["job-1", 1]], 0, snapshot(9))
    assert ((await store.lake_state()).records, await recalled(store)) == (2, [])


@pytest.mark.usefixtures("released")
async def test_an_earlier_snapshot_never_takes_the_place_of_a_later_one(store: RecordStore) -> None:
    await store.forget_recalled([], 0, snapshot(0))
    assert (await store.lake_state()).snapshot_id == snapshot(1).snapshot_id


@pytest.mark.usefixtures("released")
async def test_a_record_that_is_changed_comes_back_and_its_row_counts_no_more(store: RecordStore) -> None:
    assert await store.stop(RecordUpdate("job-1", (), START + HOUR), ALICE)  # as it was: nothing to do
    assert await recalled(store) == []
    assert await store.stop(RecordUpdate("job-1", (), START + 2 * HOUR), ALICE)
    assert encode_record(finished(stop_time=START + 2 * HOUR)) in await texts(store)
    assert (await recalled(store), (await store.lake_state()).records) == ([JOB_1], 1)
    assert (await store.counts()).per_value["site_id"] == {"S": 3}
    assert not await store.stop(RecordUpdate("job-9", (), START + HOUR), ALICE)


@pytest.mark.usefixtures("released")
async def test_what_is_known_of_a_record_comes_back_with_it(store: RecordStore) -> None:
    assert await store.recall(["job-1", "job-9"]) == 1
    (copy,) = await synced(store, ["job-1"])
    assert (copy.principal, copy.agent, copy.received_at, copy.updated_at) == (
        SLURM.principal,
        SLURM.agent,
        SLURM.received_at,
        None,
    )


async def test_the_time_of_the_last_change_comes_back_as_well(store: RecordStore) -> None:
    store.lake = memory = MemoryLake()
    await put(store, finished())
    await store.stop(RecordUpdate("job-1", (), START + 2 * HOUR), ALICE)
    await release(store, memory, ["job-1"], START + MONTH)
    await store.recall(["job-1"])
    (copy,) = await synced(store, ["job-1"])
    assert copy.updated_at == ALICE.received_at


@pytest.mark.usefixtures("released")
async def test_a_replacement_changes_a_released_record_only_if_it_differs(store: RecordStore) -> None:
    assert await store.replace(finished(), ALICE) is Verdict.SAME
    assert (await store.lake_state()).records == 2
    other = finished(meta={"site_id": ("T",)})
    assert await store.replace(other, ALICE) is Verdict.DIFFERENT
    assert encode_record(other) in await texts(store)
    (version,) = await store.history("job-1")
    assert version.document == encode_record(finished())


@pytest.mark.usefixtures("released")
async def test_corrections_and_deletions_work_as_ever(store: RecordStore) -> None:
    right = finished(meta={"site_id": ("T",)})
    correction = Amendment(Action.CORRECT, encode_record(finished()), right, "wrong site")
    deletion = Amendment(Action.DELETE, encode_record(finished("job-2")), None, "a test")
    assert await store.amend([correction, deletion], ALICE) == [Amended.DONE, Amended.DONE]
    assert await store.get("job-1") == encode_record(right)
    assert [version.action for version in await store.history("job-2")] == [Action.DELETE]
    assert await store.find_deleted(["job-1", "job-2"]) == {"job-2"}
    assert await store.add(finished("job-2"), ALICE, SAME_RUN) is Verdict.ADDED  # the id is free
    assert {each.record_id for each in await recalled(store)} == {"job-1", "job-2"}


async def test_a_record_that_is_released_while_it_is_corrected_comes_back(
    store: RecordStore, released: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, late = released.find, finished("late", stop_time=START + MONTH)

    async def overtaken(state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        monkeypatch.undo()
        await release(store, released, ["late"], START + 2 * MONTH)
        return await find(state, wanted)

    monkeypatch.setattr(released, "find", overtaken)
    changes = [Amendment(Action.DELETE, encode_record(each), None, "a test") for each in (finished(), late)]
    assert await store.amend(changes, ALICE) == [Amended.DONE, Amended.DONE]
    assert await store.get("late") is None


@pytest.mark.usefixtures("released")
async def test_a_late_record_is_released_by_a_later_release(store: RecordStore, released: MemoryLake) -> None:
    await put(store, finished("job-3", stop_time=START + HOUR / 2))
    assert await release(store, released, ["job-3"], START + 2 * HOUR) == 1
    state = await store.lake_state()
    assert (state.records, state.release, state.first_stop) == (3, 2, START + HOUR / 2)


async def test_a_record_stays_until_every_consumer_has_read_it(store: RecordStore) -> None:
    await put(store, finished())
    await store.begin_lake()
    await store.fill_lake("a-table")  # has not read anything yet
    assert await release(store, MemoryLake(), ["job-1"], START + MONTH) == 0
    assert await texts(store) == [encode_record(finished())]
    assert {row.record_id for row in (await store.list_released()).recalled} == {"job-1"}
