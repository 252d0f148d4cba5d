"""Stop times, corrections on purpose, the sink of the send-queue."""

from datetime import datetime

import msgspec
import pytest

from auditord.ingest import StoreSink
from auditord.store import Action, Amended, Amendment, Duplicates, Provenance, Verdict
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord_hookspecs import Close, Entry, Insert, Record, RecordQuery, RecordUpdate, Replace
from auditord_hookspecs.query import IsOpen
from auditord_hookspecs.wire import decode_record, encode_record
from tests.contract.store.jobs import HOUR, START, finished, running

pytestmark = pytest.mark.anyio

NOW = START + 24 * HOUR
PROVENANCE = Provenance(NOW)
SAME_RUN = Duplicates.SAME_RUN


def update(record_id: str, stop_time: datetime) -> RecordUpdate:
    return RecordUpdate(record_id, (), stop_time, start_time=stop_time, meta={"ignored": ("x",)})


async def everything(store: RecordStore, query: RecordQuery | None = None) -> list[Record]:
    async with StoredRecords(store).stream(query or RecordQuery()) as records:
        return [record async for record in records]


async def test_an_update_sets_the_stop_time_and_nothing_else(store: RecordStore) -> None:
    await store.add(running(), PROVENANCE, SAME_RUN)
    assert await store.stop(update("job-1", START + HOUR), PROVENANCE)
    assert await store.get("job-1") == encode_record(finished())
    assert await everything(store, RecordQuery(IsOpen())) == []


async def test_a_stop_time_can_be_overwritten(store: RecordStore) -> None:
    await store.add(finished(), PROVENANCE, SAME_RUN)
    for stop_time in (START + 2 * HOUR, START - HOUR, START - HOUR):
        assert await store.stop(update("job-1", stop_time), PROVENANCE)
        assert await everything(store) == [finished(stop_time=stop_time)]
    document = await store.get("job-1")
    assert document is not None
    assert b'"runtime":-3600' in document


async def test_an_overwritten_stop_time_leaves_the_former_version(store: RecordStore) -> None:
    await store.add(running(), PROVENANCE, SAME_RUN)
    await store.stop(update("job-1", START + HOUR), PROVENANCE)
    assert await store.history("job-1") == []  # closed for the first time
    by = Provenance(NOW, principal="tardis")
    await store.stop(update("job-1", START + 2 * HOUR), by)
    await store.stop(update("job-1", START + 2 * HOUR), by)
    await store.stop(update("job-1", START + 3 * HOUR), by)
    first, second = await store.history("job-1")
    assert [decode_record(each.document).stop_time for each in (first, second)] == [START + HOUR, START + 2 * HOUR]
    assert (first.action, first.reason) == (Action.CORRECT, "a client set another stop time (PUT /record)")
    assert (first.changed_by, first.changed_at) == ("tardis", NOW)


async def test_an_update_of_an_unknown_record(store: RecordStore) -> None:
    assert not await store.stop(update("nobody", NOW), PROVENANCE)


async def test_after_an_update_the_full_record_is_the_same(store: RecordStore) -> None:
    await store.add(running(), PROVENANCE, SAME_RUN)
    await store.stop(update("job-1", START + HOUR), PROVENANCE)
    assert await store.add(finished(), PROVENANCE, SAME_RUN) is Verdict.SAME


async def test_replacing(store: RecordStore) -> None:
    assert await store.replace(finished(), PROVENANCE) is Verdict.ADDED
    assert await store.replace(finished(), PROVENANCE) is Verdict.SAME
    other = finished(start_time=START - HOUR, components=(), meta=None)
    await store.add(finished(meta=None), PROVENANCE, SAME_RUN)
    assert await store.replace(other, PROVENANCE) is Verdict.DIFFERENT
    assert await everything(store) == [other]
    async with store.differences() as differences:
        assert [each async for each in differences] == []
    (before,) = await store.history("job-1")
    assert (before.document, before.action) == (encode_record(finished()), Action.CORRECT)
    assert (before.reason, before.changed_at) == ("collected again with --replace", PROVENANCE.received_at)


@pytest.fixture
def sink(store: RecordStore) -> StoreSink:
    return StoreSink(store, lambda: NOW)


async def test_entries_are_applied_in_order(store: RecordStore, sink: StoreSink) -> None:
    entries: list[Entry] = [
        Insert(running("a")),
        Insert(finished("b")),
        Close("a", START + HOUR),
        Insert(finished("a")),
        Replace(finished("b", components=())),
        Close("b", START + 2 * HOUR),
        Insert(running("c")),
        Insert(finished("c")),
    ]
    assert await sink.deliver(entries) == {}
    expected = [finished("a"), finished("c"), finished("b", components=(), stop_time=START + 2 * HOUR)]
    assert await everything(store) == expected


async def test_a_batch_may_come_again(store: RecordStore, sink: StoreSink) -> None:
    entries = [Insert(finished("a")), Insert(finished("a", start_time=NOW, stop_time=NOW), "a-later")]
    for _ in range(2):
        assert await sink.deliver(entries) == {}
        assert [record.record_id for record in await everything(store)] == ["a", "a-later"]


async def test_the_alternate_id_is_used_only_for_another_start(store: RecordStore, sink: StoreSink) -> None:
    await store.add(finished("a"), PROVENANCE, SAME_RUN)
    entries = [Insert(finished("a", components=()), "a-1"), Insert(finished("b"), "b-1")]
    assert await sink.deliver(entries) == {}
    assert [record.record_id for record in await everything(store)] == ["a", "b"]


async def test_a_run_keeps_its_alternate_id_if_the_run_with_the_plain_one_is_deleted(
    store: RecordStore, sink: StoreSink
) -> None:
    first, second = finished("a"), finished("a", start_time=NOW, stop_time=NOW + HOUR)
    await sink.deliver([Insert(first, "a-1"), Insert(second, "a-2")])
    deletion = Amendment(Action.DELETE, encode_record(first), None, "a test of the new cluster")
    assert await store.amend([deletion], PROVENANCE) == [Amended.DONE]
    assert await sink.deliver([Insert(second, "a-2")]) == {}  # its day is collected again
    assert await everything(store) == [msgspec.structs.replace(second, record_id="a-2")]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("first", ["a", "a-1"])
async def test_a_run_keeps_the_first_of_its_ids(
    store: RecordStore, sink: StoreSink, first: str, *, at_once: bool
) -> None:
    """A resized run of Slurm has the plain id with open records; else it leaves this id to the job's last run."""
    other = "a-1" if first == "a" else "a"
    entries = [Insert(finished(first), other), Insert(finished(other), first)]
    for batch in [entries] if at_once else [[each] for each in entries]:
        assert await sink.deliver(batch) == {}
    assert await everything(store) == [finished(first)]


@pytest.mark.parametrize("stored", [False, True])
async def test_replacing_overwrites_no_other_run(store: RecordStore, sink: StoreSink, *, stored: bool) -> None:
    """A job id that was recycled, both runs in one batch, collected again after a mistake in the configuration."""
    first, second = finished("a"), finished("a", start_time=NOW, stop_time=NOW + HOUR)
    if stored:
        await sink.deliver([Insert(finished("a", components=()), "a-1"), Insert(second, "a-2")])
    for _ in range(2):
        assert await sink.deliver([Replace(first, "a-1"), Replace(second, "a-2")]) == {}
        assert await everything(store) == [first, msgspec.structs.replace(second, record_id="a-2")]


async def test_entries_that_are_refused_harm_no_other(store: RecordStore, sink: StoreSink) -> None:
    poison = finished("poison")
    msgspec.structs.force_setattr(poison, "meta", {"a": ("\ud800",)})
    entries: list[Entry] = [
        Insert(finished("a")),
        Insert(poison),
        Insert(finished("a", start_time=NOW)),
        Insert(finished("a", start_time=NOW), "b"),
        Insert(finished("a", start_time=NOW + HOUR), "b"),
        Close("nobody", NOW),
        Insert(finished("z")),
    ]
    refused = await sink.deliver(entries)
    assert {position: reason.split()[0] for position, reason in refused.items()} == {
        1: "The",
        2: "The",
        4: "The",
        5: "There",
    }
    assert "'a' and 'b' belongs to another run" in refused[4]
    assert "no record 'nobody'" in refused[5]
    assert sorted(record.record_id for record in await everything(store)) == ["a", "b", "z"]
    assert decode_record(await store.get("b") or b"").start_time == NOW


async def test_entries_say_where_they_are_from(store: RecordStore, sink: StoreSink) -> None:
    provenance = Provenance(NOW - HOUR, "task:slurm")
    await sink.deliver([Insert(finished(name), provenance=None) for name in ("a", "b")])
    await sink.deliver([Insert(finished("a", components=()), provenance=provenance), Insert(finished("b", meta=None))])
    async with store.differences() as differences:
        seen = [(each.record_id, each.seen_at, each.principal) async for each in differences]
    assert seen == [("b", NOW, None), ("a", NOW - HOUR, "task:slurm")]
    assert (await store.counts()).differences == 2


@pytest.mark.parametrize("between", [False, True])
async def test_a_run_is_corrected_under_the_id_that_it_has(
    store: RecordStore, sink: StoreSink, *, between: bool
) -> None:
    """Slurm moves the end of a finished run when its owner requeues it; it is called as a requeued run then."""
    await sink.deliver([Insert(finished("a"), "a-1")])
    if between:
        await sink.deliver([Insert(finished("a", start_time=NOW, stop_time=NOW + HOUR), "a-2")])
    later = finished("a-1", stop_time=NOW + 2 * HOUR)
    for _ in range(2):
        assert await sink.deliver([Replace(later, "a")]) == {}
    found = {record.record_id: record.stop_time for record in await everything(store)}
    assert found == {"a": NOW + 2 * HOUR, **({"a-2": NOW + HOUR} if between else {})}


async def test_a_correction_of_what_is_not_there_gets_its_own_id(store: RecordStore, sink: StoreSink) -> None:
    await sink.deliver([Insert(finished("a", start_time=NOW, stop_time=NOW + HOUR), "a-2")])
    for _ in range(2):
        assert await sink.deliver([Replace(finished("a-1"), "a")]) == {}
    assert sorted(record.record_id for record in await everything(store)) == ["a", "a-1"]
