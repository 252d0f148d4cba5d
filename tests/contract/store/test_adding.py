"""Adding records: every verdict, and what is stored afterwards."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from auditord.store import Difference, Duplicates, Provenance, RecordCounts, Verdict
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, InvalidRecord, Record, RecordQuery, Score
from auditord_hookspecs.wire import decode_record, encode_record

pytestmark = pytest.mark.anyio

StoreFactory = Callable[[], AbstractAsyncContextManager[RecordStore]]

START = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOW = START + 24 * HOUR
PROVENANCE = Provenance(NOW, "task:slurm", "test/1")
COUNTED_KEYS = ("site_id", "group_id", "user_id", "project")
SAME_RUN, REFUSE, IGNORE = Duplicates.SAME_RUN, Duplicates.REFUSE, Duplicates.IGNORE


def finished(record_id: str = "job-1", **changes: object) -> Record:
    record = Record(
        record_id,
        START,
        (Component("Cores", 8, (Score("HEPSPEC06", 9.2),)), Component("Memory", 2**40, ())),
        START + HOUR,
        {"site_id": ("S",), "user_id": ("alice", "bob")},
    )
    return msgspec.structs.replace(record, **changes)


def running(record_id: str = "job-1", **changes: object) -> Record:
    return finished(record_id, stop_time=None, **changes)


async def stored(store: RecordStore, record_id: str = "job-1") -> Record | None:
    document = await store.get(record_id)
    return None if document is None else decode_record(document)


async def differences(store: RecordStore) -> list[Difference]:
    async with store.differences() as found:
        return [each async for each in found]


async def all_ids(store: RecordStore) -> list[str]:
    async with store.stream(RecordQuery()) as pages:
        return [decode_record(document).record_id async for page in pages for document in page]


async def test_many_are_found_at_once(store: RecordStore) -> None:
    kept = [finished(f"job-{number}/ü'\\") for number in range(1_200)]
    await store.add_all(kept, PROVENANCE, SAME_RUN, atomic=True)
    found = await store.documents([*(record.record_id for record in kept[200:]), "nobody"])
    assert found == {record.record_id: encode_record(record) for record in kept[200:]}
    assert await store.documents([]) == {}


async def test_a_new_record_is_kept_byte_for_byte(store: RecordStore) -> None:
    assert await store.add(finished(), PROVENANCE, SAME_RUN) is Verdict.ADDED
    assert await store.get("job-1") == encode_record(finished())


async def test_reads_at_the_same_time_find_each_its_own(store: RecordStore) -> None:
    kept = [finished(f"job-{number}/ü'\\") for number in range(60)]
    await store.add_all(kept, PROVENANCE, SAME_RUN, atomic=True)
    asked = [each.record_id for each in kept] * 2 + ["nobody", "a\0b", kept[0].record_id]
    found = await asyncio.gather(*map(store.get, asked))
    assert found == [*map(encode_record, kept * 2), None, None, encode_record(kept[0])]


async def test_a_record_is_read_once_it_was_added_whatever_is_being_read(store: RecordStore) -> None:
    for number in range(20):
        others = [asyncio.create_task(store.get("nobody")) for _ in range(10)]
        record = finished(f"job-{number}")
        await store.add(record, PROVENANCE, SAME_RUN)
        others += [asyncio.create_task(store.get("nobody")) for _ in range(10)]
        assert await store.get(record.record_id) == encode_record(record)
        await asyncio.gather(*others)


async def test_an_unknown_id(store: RecordStore) -> None:
    assert await store.get("nobody") is None


@pytest.mark.parametrize(
    "record",
    [
        Record("bare", START, ()),
        Record("empty", START, (), START, {}),
        Record("backwards", START, (), START - HOUR, {"empty list": ()}),
        Record("a/b%2F#?&\\", START, (), None, {"ключ \\": ('знач"ение\\', "\\", "a\n\t")}),
        Record("👩‍🚀" * 50, START, (Component("ядра 🧮", 2**63 - 1, (Score("оценка", 1e-300),)),), None, None),
        Record("year one", datetime(1, 1, 1, tzinfo=UTC), (), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        Record("twice", START, (Component("Cores", 2**63 - 1, ()), Component("Cores", 2**63 - 1, ()))),
        Record("large", START, (), None, {f"key {number}": ("value " * 40,) * 20 for number in range(200)}),
    ],
    ids=lambda record: record.record_id[:9],
)
async def test_unusual_records_come_back_as_they_went(stores: StoreFactory, record: Record) -> None:
    async with stores() as store:
        assert await store.add(record, PROVENANCE, SAME_RUN) is Verdict.ADDED
    async with stores() as store:
        assert await store.get(record.record_id) == encode_record(record)
        assert await store.add(record, PROVENANCE, SAME_RUN) is Verdict.SAME


@pytest.mark.parametrize("duplicates", [SAME_RUN, IGNORE])
async def test_the_same_record_again(store: RecordStore, duplicates: Duplicates) -> None:
    await store.add(finished(), PROVENANCE, duplicates)
    again = finished(meta={"user_id": ("alice", "bob"), "site_id": ("S",), "collector_version": ("2",)})
    assert await store.add(again, PROVENANCE, duplicates) is Verdict.SAME
    assert await stored(store) == finished()
    assert await differences(store) == []


async def test_the_same_run_with_other_content(store: RecordStore) -> None:
    await store.add(finished(), PROVENANCE, SAME_RUN)
    other = finished(stop_time=START + 2 * HOUR)
    assert await store.add(other, PROVENANCE, SAME_RUN) is Verdict.DIFFERENT
    assert await stored(store) == finished()
    difference = Difference("job-1", NOW, "task:slurm", encode_record(finished()), encode_record(other))
    assert await differences(store) == [difference]


@pytest.mark.needs_database
async def test_where_a_record_came_from_and_what_came_again(store: RecordStore) -> None:
    await store.add(finished(), PROVENANCE, SAME_RUN)
    origin = await store.find_with_provenance("job-1")
    assert origin is not None
    assert (origin.record, origin.received_at, origin.updated_at) == (finished(), NOW, None)
    assert (origin.principal, origin.agent) == (PROVENANCE.principal, PROVENANCE.agent or "")
    assert await store.find_with_provenance("job-2") is None
    await store.add(finished(stop_time=START + 2 * HOUR), PROVENANCE, SAME_RUN)
    assert await store.differences_of("job-1") == await differences(store)
    assert await store.differences_of("job-2") == []


async def test_a_difference_is_listed_once_and_the_newest_first(store: RecordStore) -> None:
    others = [finished(meta={"user_id": (name,)}) for name in ("x", "y")]
    for record in [finished(), *others, others[0]]:
        await store.add(record, PROVENANCE, SAME_RUN)
    assert [decode_record(each.offered) for each in await differences(store)] == [others[0], others[1]]


async def test_more_differences_than_a_page(store: RecordStore) -> None:
    for content in ("stored", "offered"):
        records = [finished(f"job-{number}", meta={"k": (content,)}) for number in range(300)]
        verdicts = await store.add_all(records, PROVENANCE, SAME_RUN, atomic=False)
    assert set(verdicts) == {Verdict.DIFFERENT}
    found = await differences(store)
    assert [each.record_id for each in found] == [f"job-{number}" for number in reversed(range(300))]
    async with store.differences() as some:
        assert (await anext(some)).record_id == "job-299"  # and leave the others


async def test_an_open_record_is_closed_by_the_full_one(store: RecordStore) -> None:
    await store.add(running(meta={"user_id": ("alice",)}, components=()), PROVENANCE, SAME_RUN)
    assert await store.add(finished(), PROVENANCE, SAME_RUN) is Verdict.CLOSED
    assert await stored(store) == finished()
    assert await store.add(finished(), PROVENANCE, SAME_RUN) is Verdict.SAME
    assert await store.add(running(), PROVENANCE, SAME_RUN) is Verdict.SAME
    assert await stored(store) == finished()


@pytest.mark.parametrize("offsets", [(0, 1), (1, 0)])
async def test_of_an_open_record_that_comes_back_the_earlier_start_stays(
    store: RecordStore, offsets: tuple[int, int]
) -> None:
    first, second = (running(start_time=START + offset * HOUR) for offset in offsets)
    assert await store.add(first, PROVENANCE, SAME_RUN) is Verdict.ADDED
    assert await store.add(second, PROVENANCE, SAME_RUN) is Verdict.SAME
    assert await stored(store) == running()
    assert await store.add(finished(), PROVENANCE, SAME_RUN) is Verdict.CLOSED


async def test_another_run_under_a_known_id(store: RecordStore) -> None:
    await store.add(finished(), PROVENANCE, SAME_RUN)
    other = finished(start_time=START + HOUR, stop_time=START + 2 * HOUR)
    assert await store.add(other, PROVENANCE, SAME_RUN) is Verdict.EXISTS
    assert await store.add(other, PROVENANCE, IGNORE) is Verdict.DIFFERENT
    assert await stored(store) == finished()


async def test_refuse_refuses_every_known_id(store: RecordStore) -> None:
    assert await store.add(running(), PROVENANCE, REFUSE) is Verdict.ADDED
    assert await store.add(running(), PROVENANCE, REFUSE) is Verdict.EXISTS
    assert await store.add(finished(), PROVENANCE, REFUSE) is Verdict.EXISTS
    assert await stored(store) == running()
    assert await differences(store) == []


async def test_ignore_still_closes(store: RecordStore) -> None:
    await store.add(running(), PROVENANCE, IGNORE)
    assert await store.add(finished(), PROVENANCE, IGNORE) is Verdict.CLOSED
    assert await stored(store) == finished()


async def test_a_batch_is_classified_in_order(store: RecordStore) -> None:
    await store.add(finished("old"), PROVENANCE, SAME_RUN)
    later = {"start_time": START + HOUR, "stop_time": None}
    batch = [
        finished("new"),
        finished("new"),
        finished("new", components=()),
        finished("new", start_time=START + HOUR),
        finished("old"),
        running("open"),
        finished("open"),
        finished("drone", **later),
        finished("drone", stop_time=None),
        finished("last"),
    ]
    verdicts = await store.add_all(batch, PROVENANCE, SAME_RUN, atomic=False)
    expected = "ADDED SAME DIFFERENT EXISTS SAME ADDED CLOSED ADDED SAME ADDED"
    assert [verdict.name for verdict in verdicts] == expected.split()
    assert await stored(store, "new") == finished("new")
    assert await stored(store, "open") == finished("open")
    assert await stored(store, "drone") == running("drone")
    assert (await store.counts()).total == 5


async def test_an_atomic_batch_with_a_refused_record_changes_nothing(store: RecordStore) -> None:
    await store.add_all([finished("old"), running("open")], PROVENANCE, SAME_RUN, atomic=True)
    before = await store.counts()
    batch = [finished("new"), finished("open"), finished("old", components=()), finished("old", start_time=NOW)]
    verdicts = await store.add_all(batch, PROVENANCE, SAME_RUN, atomic=True)
    assert verdicts[-1] is Verdict.EXISTS
    assert await all_ids(store) == ["old", "open"]
    assert await stored(store, "open") == running("open")
    assert await differences(store) == []
    assert await store.counts() == before


async def test_an_atomic_batch_refuses_an_id_that_it_has_twice(store: RecordStore) -> None:
    batch = [finished("twice"), finished("other"), finished("twice")]
    assert Verdict.EXISTS in await store.add_all(batch, PROVENANCE, REFUSE, atomic=True)
    assert await all_ids(store) == []


async def test_an_atomic_batch_of_good_records(store: RecordStore) -> None:
    batch = [finished(f"{number:04}") for number in range(1_000)]
    assert set(await store.add_all(batch, PROVENANCE, SAME_RUN, atomic=True)) == {Verdict.ADDED}
    assert set(await store.add_all(batch, PROVENANCE, SAME_RUN, atomic=True)) == {Verdict.SAME}
    assert await all_ids(store) == [record.record_id for record in batch]


async def test_an_empty_batch(store: RecordStore) -> None:
    assert list(await store.add_all([], PROVENANCE, SAME_RUN, atomic=True)) == []


async def test_a_batch_with_a_record_that_cannot_be_stored_changes_nothing(store: RecordStore) -> None:
    poison = finished("poison")
    msgspec.structs.force_setattr(poison, "meta", {"a": ("\ud800",)})
    with pytest.raises(InvalidRecord, match="poison"):
        await store.add_all([finished("good"), poison], PROVENANCE, SAME_RUN, atomic=False)
    assert await all_ids(store) == []


async def test_counts_follow_every_change(stores: StoreFactory) -> None:
    async with stores() as store:
        assert await store.counts() == RecordCounts(0, {"site_id": {}, "group_id": {}, "user_id": {}, "project": {}})
        await store.add(
            running("a", meta={"site_id": ("S",), "user_id": ("u", "v", "u"), "other": ("x",)}), PROVENANCE, SAME_RUN
        )
        await store.add_all(
            [finished("b", meta={"site_id": ("S",)}), finished("c", meta=None)], PROVENANCE, SAME_RUN, atomic=True
        )
        await store.add(finished("c", meta=None), PROVENANCE, SAME_RUN)
        assert await store.counts() == RecordCounts(
            3, {"site_id": {"S": 2}, "group_id": {}, "user_id": {"u": 1, "v": 1}, "project": {}}
        )
        await store.add(
            finished("a", meta={"site_id": ("T",), "user_id": ("v",), "group_id": ("g",)}), PROVENANCE, SAME_RUN
        )
        await store.replace(finished("b", meta={"site_id": ("S", "T")}), PROVENANCE)
        expected = RecordCounts(
            3, {"site_id": {"S": 1, "T": 2}, "group_id": {"g": 1}, "user_id": {"v": 1}, "project": {}}
        )
        assert await store.counts() == expected
    async with stores() as store:
        assert await store.counts() == expected


def counted(records: Iterable[Record]) -> RecordCounts:
    """The right counts of these records, by looking at each."""
    records = list(records)
    values = {key: Counter(v for each in records for v in set((each.meta or {}).get(key, ()))) for key in COUNTED_KEYS}
    return RecordCounts(len(records), values)


async def test_counts_of_many_records_under_many_changes(stores: StoreFactory) -> None:
    metas: list[dict[str, tuple[str, ...]] | None] = [
        {"site_id": ("S",), "user_id": ("u1",), "project": ("p", "p")},
        {"site_id": ("T", "S"), "user_id": ("u2",), "project": ("p", "q\\")},
        {"site": ("S",), "user_id": (), "group_id": ("g",)},
        None,
    ]
    expected = {f"job-{number}": finished(f"job-{number}", meta=metas[number % 4]) for number in range(3_500)}
    for first in range(0, 3_500, 700):
        async with stores() as store:
            batch = list(expected.values())[first : first + 700]
            await store.add_all(batch, PROVENANCE, SAME_RUN, atomic=True)
            for number in (0, first, first + 1, first + 699):  # long written down, and just arrived
                changed = finished(f"job-{number}", meta=metas[(number + first // 700 + 1) % 4])
                await store.replace(changed, PROVENANCE)
                expected[changed.record_id] = changed
            present = [expected[f"job-{number}"] for number in range(first + 700)]
            assert await store.counts() == counted(present)
    async with stores() as store:
        assert await store.counts() == counted(expected.values())
