"""Records move into the archive and back: each is in the database or in the archive, and its id stays known."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec
import pytest

from auditord.errors import StoreUnavailable
from auditord.store import Action, Amended, Amendment, Duplicates, Provenance, RecordStore, Verdict
from auditord.store.archived import ArchiveOvertaken, Removal
from auditord_hookspecs import Component, Record, RecordQuery, RecordUpdate, Score
from auditord_hookspecs.wire import encode_record
from tests.archive_in_memory import SNAPSHOT, MemoryArchive, archive

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR = timedelta(hours=1)
MONTH = timedelta(days=31)
SLURM = Provenance(START + HOUR, "task:slurm", "agent")
ALICE = Provenance(START + MONTH, "user:alice")
SAME_RUN = Duplicates.SAME_RUN


class StoreFactory(Protocol):
    def __call__(self, *, outbox: bool = False) -> AbstractAsyncContextManager[RecordStore]: ...


def finished(record_id: str = "job-1", **changes: object) -> Record:
    components = (Component("Cores", 8, (Score("HEPscore23", 12.5),)),)
    record = Record(record_id, START, components, START + HOUR, {"site_id": ("S",), "user_id": ("u",)})
    return msgspec.structs.replace(record, **changes)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        yield opened


@pytest.fixture
async def archived(store: RecordStore) -> MemoryArchive:
    """Two archived records, and one that is not."""
    memory = MemoryArchive()
    store.archive = memory
    await put(store, finished(), finished("job-2"), finished("late", stop_time=START + MONTH))
    assert await archive(store, memory, START + 2 * HOUR) == 2
    return memory


async def put(store: RecordStore, *records: Record) -> None:
    await store.add_all(records, SLURM, SAME_RUN, atomic=True)


async def texts(store: RecordStore) -> Sequence[bytes]:
    async with store.stream(RecordQuery()) as pages:
        return [document async for page in pages for document in page]


async def test_archived_records_are_in_the_archive_alone(store: RecordStore, archived: MemoryArchive) -> None:
    assert await texts(store) == [encode_record(finished("late", stop_time=START + MONTH))]
    state, counts = await store.archive_state(), await store.counts()
    assert (state.records, state.chunk, state.snapshot_id) == (2, 1, SNAPSHOT)
    assert (state.first_stop, state.last_stop) == (START + HOUR, START + HOUR)
    assert (counts.total, counts.per_value["site_id"]) == (3, {"S": 3})  # of the archive as well
    copy = archived.rows[Removal("job-1", 1)]
    assert (copy.document.encode(), copy.principal, copy.agent) == (encode_record(finished()), "task:slurm", "agent")
    assert (copy.received_at, copy.updated_at) == (SLURM.received_at, None)


async def test_their_texts_are_read_from_there(store: RecordStore, archived: MemoryArchive) -> None:
    assert len(archived.rows) == 2
    assert await store.get("job-1") == encode_record(finished())
    assert set(await store.documents(["job-2", "late", "other"])) == {"job-2", "late"}


@pytest.mark.usefixtures("archived")
async def test_without_an_archive_nobody_takes_them_for_missing(store: RecordStore) -> None:
    store.archive = None
    with pytest.raises(StoreUnavailable, match="2 records are in the archive at file:///archive"):
        await store.get("job-1")


@pytest.mark.usefixtures("archived")
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
async def test_an_archived_id_gets_the_verdict_that_it_would_get_here(
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


async def test_differences_are_kept_when_their_record_is_archived(store: RecordStore) -> None:
    await put(store, finished())
    await store.add(finished(meta=None), ALICE, SAME_RUN)
    store.archive = memory = MemoryArchive()
    await archive(store, memory, START + MONTH)
    assert (await store.counts()).differences == 1
    [difference] = await store.differences_of("job-1")
    origin = await store.origin("job-1")
    assert origin is not None
    assert (difference.stored, origin.record, origin.chunk > 0) == (None, finished(), True)


async def test_a_record_that_changed_meanwhile_stays_and_its_row_does_not_count(store: RecordStore) -> None:
    await put(store, finished(), finished("job-2"))
    await store.begin_archive("an archive", "file:///archive")
    copies = MemoryArchive().taken(await store.archivable(START + MONTH, None, 10), 1)
    await store.stop(RecordUpdate("job-1", (), START + 2 * HOUR), ALICE)
    assert await store.publish_chunk(copies, 0, SNAPSHOT, 1) == 1
    assert await texts(store) == [encode_record(finished(stop_time=START + 2 * HOUR))]
    assert await store.archive_removals() == [Removal("job-1", 1)]
    assert (await store.archive_state()).records == 1
    await store.forget_removals([Removal("job-1", 1)], SNAPSHOT + 1, 2)
    assert (await store.archive_removals(), (await store.archive_state()).snapshot_id) == ([], SNAPSHOT + 1)


async def test_a_chunk_counts_once(store: RecordStore, archived: MemoryArchive) -> None:
    chunk = [archived.rows[Removal("job-1", 1)]]
    with pytest.raises(ArchiveOvertaken):
        await store.publish_chunk(chunk, 0, SNAPSHOT, 9)
    assert ((await store.archive_state()).records, await store.archive_removals()) == (2, [])


@pytest.mark.usefixtures("archived")
async def test_an_earlier_snapshot_never_takes_the_place_of_a_later_one(store: RecordStore) -> None:
    await store.forget_removals([], SNAPSHOT - 1, 1)
    assert (await store.archive_state()).snapshot_id == SNAPSHOT


@pytest.mark.usefixtures("archived")
async def test_a_record_that_is_changed_comes_back_and_its_row_counts_no_more(store: RecordStore) -> None:
    assert await store.stop(RecordUpdate("job-1", (), START + HOUR), ALICE)  # as it was: nothing to do
    assert await store.archive_removals() == []
    assert await store.stop(RecordUpdate("job-1", (), START + 2 * HOUR), ALICE)
    assert encode_record(finished(stop_time=START + 2 * HOUR)) in await texts(store)
    assert (await store.archive_removals(), (await store.archive_state()).records) == ([Removal("job-1", 1)], 1)
    assert (await store.counts()).per_value["site_id"] == {"S": 3}
    assert not await store.stop(RecordUpdate("job-9", (), START + HOUR), ALICE)


@pytest.mark.usefixtures("archived")
async def test_what_is_known_of_a_record_comes_back_with_it(store: RecordStore) -> None:
    assert await store.recall(["job-1", "job-9"]) == 1
    (copy, *_) = await store.archivable(START + MONTH, None, 1)
    assert (copy.principal, copy.agent, copy.received_at, copy.updated_at) == (
        SLURM.principal,
        SLURM.agent,
        SLURM.received_at,
        None,
    )


async def test_the_time_of_the_last_change_comes_back_as_well(store: RecordStore) -> None:
    store.archive = memory = MemoryArchive()
    await put(store, finished())
    await store.stop(RecordUpdate("job-1", (), START + 2 * HOUR), ALICE)
    await archive(store, memory, START + MONTH)
    await store.recall(["job-1"])
    (copy,) = await store.archivable(START + MONTH, None, 1)
    assert copy.updated_at == ALICE.received_at


@pytest.mark.usefixtures("archived")
async def test_a_replacement_changes_an_archived_record_only_if_it_differs(store: RecordStore) -> None:
    assert await store.replace(finished(), ALICE) is Verdict.SAME
    assert (await store.archive_state()).records == 2
    other = finished(meta={"site_id": ("T",)})
    assert await store.replace(other, ALICE) is Verdict.DIFFERENT
    assert encode_record(other) in await texts(store)
    (version,) = await store.history("job-1")
    assert version.document == encode_record(finished())


@pytest.mark.usefixtures("archived")
async def test_corrections_and_deletions_work_as_ever(store: RecordStore) -> None:
    right = finished(meta={"site_id": ("T",)})
    correction = Amendment(Action.CORRECT, encode_record(finished()), right, "wrong site")
    deletion = Amendment(Action.DELETE, encode_record(finished("job-2")), None, "a test")
    assert await store.amend([correction, deletion], ALICE) == [Amended.DONE, Amended.DONE]
    assert await store.get("job-1") == encode_record(right)
    assert [version.action for version in await store.history("job-2")] == [Action.DELETE]
    assert await store.deleted(["job-1", "job-2"]) == {"job-2"}
    assert await store.add(finished("job-2"), ALICE, SAME_RUN) is Verdict.ADDED  # the id is free
    assert {each.record_id for each in await store.archive_removals()} == {"job-1", "job-2"}


@pytest.mark.usefixtures("archived")
async def test_a_late_record_is_archived_into_a_later_chunk(store: RecordStore, archived: MemoryArchive) -> None:
    await put(store, finished("job-3", stop_time=START + HOUR / 2))
    assert await archive(store, archived, START + 2 * HOUR) == 1
    state = await store.archive_state()
    assert (state.records, state.chunk, state.first_stop) == (3, 2, START + HOUR / 2)


async def test_a_site_may_have_an_age_of_its_own(store: RecordStore) -> None:
    sites = {"early": ("S",), "late": ("S",), "other": ('T"',), "latest": ('T"',), "third": ("U",), "none": ()}
    stops = [START + HOUR * number for number in range(6)]
    for (name, values), stop in zip(sites.items(), stops, strict=True):
        await put(store, finished(name, stop_time=stop, meta={"site_id": values} if values else None))
    borders = {"S": stops[1], 'T"': stops[3] + HOUR, "unknown": START + MONTH}
    found = await store.archivable(stops[2], None, 10, borders)
    assert [copy.record.record_id for copy in found] == ["early", "other", "latest"]
    found = await store.archivable(stops[5], found[0], 2, borders)
    assert [copy.record.record_id for copy in found] == ["other", "latest"]
    found = await store.archivable(START + MONTH, found[-1], 10, borders)
    assert [copy.record.record_id for copy in found] == ["third", "none"]


async def test_archivable_records_come_in_pages_in_the_order_of_their_stops(store: RecordStore) -> None:
    records = [finished(f"job-{number}", stop_time=START + HOUR * (number % 3)) for number in range(7)]
    await put(store, *records, finished("open", stop_time=None))
    found: list[str] = []
    page = await store.archivable(START + MONTH, None, 2)
    while page:
        found += [copy.record.record_id for copy in page]
        page = await store.archivable(START + MONTH, page[-1], 2)
    assert found == [f"job-{number}" for number in (0, 3, 6, 1, 4, 2, 5)]
