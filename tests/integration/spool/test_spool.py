"""The spool on a real file: one transaction per batch, order per record, nothing lost."""

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from auditord.errors import StateInUse, StoreUnavailable
from auditord.spool import QuarantineReason, Spool, Stage, own, owner, retry, tables
from auditord.spool.encoding import Operation
from auditord.testing import make_record
from auditord_hookspecs import (
    AuditordError,
    Batch,
    Close,
    Component,
    Entry,
    Insert,
    InvalidRecord,
    Produced,
    Provenance,
    Quarantined,
    Record,
    Replace,
    RunReport,
    Score,
)
from auditord_hookspecs.wire import encode_record
from tests.quarantined_entries import read_quarantine

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.moment = NOON

    def __call__(self) -> datetime:
        return self.moment


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def spool(tmp_path: Path, clock: Clock) -> AsyncIterator[Spool]:
    async with Spool.opened(tmp_path, clock) as spool:
        yield spool


def record(record_id: str = "r1", **fields: Any) -> Record:
    members: dict[str, Any] = {"record_id": record_id, "start_time": NOON, "components": ()}
    return Record(**(members | fields))


def broken(record_id: Any, **fields: Any) -> Record:
    """A record as careless code makes it: construction checks no types."""
    value = record()
    for name, field in ({"record_id": record_id} | fields).items():
        msgspec.structs.force_setattr(value, name, field)
    return value


def broken_score(value: Any, name: Any = "HEPscore23") -> Component:
    score = Score("HEPscore23", 1.0)
    msgspec.structs.force_setattr(score, "value", value)
    msgspec.structs.force_setattr(score, "name", name)
    return Component("Cores", 4, (score,))


def record_ids(queued: Any) -> list[str]:
    return [one.entry.record.record_id for one in queued]


async def test_a_batch_goes_to_every_destination_with_its_checkpoint(spool: Spool) -> None:
    made = await spool.enqueue("slurm", Batch([record("a"), record("b")], checkpoint={"end": 5}), ["local", "far"])
    assert (made.records, made.quarantined) == (2, 0)
    assert record_ids(await spool.claim("local", 10)) == record_ids(await spool.claim("far", 10)) == ["a", "b"]
    assert await spool.checkpoint("slurm") == {"end": 5}
    assert await spool.checkpoint("other") is None


async def test_what_is_claimed_is_what_was_queued(spool: Spool) -> None:
    full = record(
        "ü/#\\",
        stop_time=NOON + timedelta(microseconds=1),
        meta={"site_id": ("a", "b")},
        components=(Component("Cores", 4, ()),),
    )
    await spool.enqueue("slurm", Batch([Produced(full, "ü-2")]), ["local"])
    (queued,) = await spool.claim("local", 10)
    assert queued.entry == Insert(full, "ü-2", Provenance(NOON, "task:slurm"))


async def test_a_queue_that_is_found_empty_is_occupied_no_more(tmp_path: Path, clock: Clock) -> None:
    async with Spool.opened(tmp_path, clock) as spool:
        await spool.enqueue("slurm", Batch([record()]), ["local", "remote"])
        (queued,) = await spool.claim("local", 10)
    async with Spool.opened(tmp_path, clock) as spool:
        assert spool.occupied == {"local", "remote"}
        await spool.settle("remote", [queued.entry_id], {})  # of another sender: nothing happens
        assert spool.occupied == {"local", "remote"}
        await spool.settle("local", [queued.entry_id], {})
        assert spool.occupied == {"remote"}
        spool._occupancy.queueing(["local"])  # pyright: ignore[reportPrivateUsage] # as a write that fails
        assert await spool.claim("local", 10) == []
        assert spool.occupied == {"remote"}


async def test_a_batch_without_records_wakes_no_sender(spool: Spool) -> None:
    woken: list[str] = []
    spool.on_queued("local", lambda: woken.append("local"))
    await spool.enqueue("slurm", Batch(checkpoint=1), ["local"])
    assert (woken, spool.occupied) == ([], set())
    await spool.enqueue("slurm", Batch([record()], checkpoint=2), ["local"])
    assert (woken, spool.occupied) == (["local"], {"local"})


async def test_a_generation_that_the_store_has_counts_once_the_file_has_it(tmp_path: Path, clock: Clock) -> None:
    async with Spool.opened(tmp_path, clock) as spool:
        spool.reached = msgspec.structs.replace(spool.generation, number=5)
        assert spool.generation.number == 0
        await spool.settle("local", [], {})
        assert spool.generation.number == 5
    async with Spool.opened(tmp_path, clock) as spool:
        assert spool.generation.number == 5
        spool.reached = msgspec.structs.replace(spool.generation, number=7)
        await spool.keep_generation()
        assert spool.generation.number == 7
    async with Spool.opened(tmp_path, clock) as spool:
        assert spool.generation.number == 7


async def test_a_prefix_counts_since_the_first_run_with_it(tmp_path: Path, clock: Clock) -> None:
    for prefixes, since in (["a", "a"], None), (["a", "b", "b"], NOON + SECOND), (["b", "a"], NOON + 2 * SECOND):
        async with Spool.opened(tmp_path, clock) as spool:
            for each in prefixes:
                await spool.use_prefix("slurm", each)
            assert await spool.prefix_used_since("slurm", prefixes[-1]) == since
        clock.moment += SECOND
    async with Spool.opened(tmp_path, clock) as spool:
        for each in ("b", "a", "b", "a"):  # as reloads do
            await spool.use_prefix("slurm", each)
            clock.moment += SECOND
        assert await spool.prefix_used_since("slurm", "a") == NOON + 6 * SECOND
        assert await spool.prefix_used_since("slurm", "b") == NOON + 7 * SECOND  # now, since it is not in use


async def test_a_batch_without_checkpoint_leaves_it(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch(checkpoint=1), [])
    await spool.enqueue("slurm", Batch([record()]), ["local"])
    assert await spool.checkpoint("slurm") == 1


POISON: dict[str, Record] = {
    "nul in meta": broken("bad", meta={"site_id": ("a\0b",)}),
    "giant grapheme": broken("e" + "\u0301" * 6_000),
    "lone surrogate": broken("\ud800"),
    "amount is a text": broken("bad", components=({"name": "Cores", "amount": "4", "scores": []},)),
    "score is a text": broken("bad", components=(broken_score("12"),)),
    "score has a number for a name": broken("bad", components=(broken_score(1.0, 7),)),
    "amount too large": broken("bad", components=({"name": "Cores", "amount": 2**63, "scores": []},)),
    "start is a text": broken("bad", start_time="yesterday"),
    "naive start": broken("bad", start_time=datetime(2026, 3, 1)),  # noqa: DTZ001 on purpose
    "year 9999 with offset": broken("bad", stop_time=datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5)))),
    "id is a number": broken(7),
    "meta is no mapping": broken("bad", meta=["a"]),
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
async def test_one_poisonous_record_is_quarantined_alone(spool: Spool, poison: Record) -> None:
    made = await spool.enqueue("slurm", Batch([record("a"), poison, record("z")], checkpoint=1), ["local"])
    assert (made.records, made.quarantined) == (2, 1)
    assert record_ids(await spool.claim("local", 10)) == ["a", "z"]
    (entry,) = await read_quarantine(spool)
    assert (entry.stage, entry.task) == (Stage.RECORD, "slurm")
    assert "invalid record" in entry.reason
    assert json.loads(entry.raw)
    assert await spool.checkpoint("slurm") == 1


async def test_naive_times_do_not_pass_as_utc(spool: Spool) -> None:
    naive = broken("bad", start_time=datetime(2026, 3, 1))  # noqa: DTZ001 on purpose
    assert (await spool.enqueue("slurm", Batch([naive]), ["local"])).quarantined == 1


async def test_a_value_that_is_no_record_is_quarantined(spool: Spool) -> None:
    strange: Any = {"record_id": "x"}
    made = await spool.enqueue("slurm", Batch([strange, Produced(record("a"), "\0")]), ["local"])
    assert (made.records, made.quarantined) == (0, 2)


async def test_jobs_keep_one_entry_each_the_newest(spool: Spool, clock: Clock) -> None:
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined("17", {"row": 1}, "no start")]), ["local"])
    clock.moment += SECOND
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined("17", {"row": 2}, "no stop")]), ["local"])
    await spool.enqueue("other", Batch(quarantined=[Quarantined("17", {"row": 3}, "no stop")]), ["local"])
    mine, other = await read_quarantine(spool)
    assert (mine.raw, mine.reason, mine.occurrences) == (b'{"row": 2}', "no stop", 2)
    assert mine.quarantined_at == clock.moment
    assert (other.task, other.occurrences) == ("other", 1)


async def test_raw_input_that_is_no_json_is_kept_all_the_same(spool: Spool) -> None:
    jobs = [Quarantined("1\ud800", {"when": NOON, "bytes": b"\xff", "text": "\ud800"}, "bad\0")]
    await spool.enqueue("slurm", Batch(quarantined=jobs), ["local"])
    (entry,) = await read_quarantine(spool)
    assert b"2026-03-01" in entry.raw


@pytest.mark.parametrize(
    ("batch", "field"),
    [(Batch([record()], checkpoint={NOON}), "checkpoint"), (Batch([record()], pending={"a": NOON}), r"pending\['a'\]")],
)
async def test_a_batch_whose_values_are_no_json_keeps_nothing(spool: Spool, batch: Batch, field: str) -> None:
    with pytest.raises(TypeError, match=f"slurm: {field} of a batch is not JSON: Object of type"):
        await spool.enqueue("slurm", batch, ["local"])
    assert await spool.claim("local", 10) == []


async def test_a_record_that_waits_already_is_not_queued_twice(spool: Spool) -> None:
    assert (await spool.enqueue("slurm", Batch([record()]), ["local"])).records == 1
    assert (await spool.enqueue("slurm", Batch([record()]), ["local"])).records == 0
    other = record(meta={"site_id": ("x",)})
    assert (await spool.enqueue("slurm", Batch([other]), ["local"])).records == 1
    assert len(await spool.claim("local", 10)) == 2


async def test_entries_of_one_record_stay_in_order(spool: Spool) -> None:
    entries: list[Entry] = [Insert(record("a")), Insert(record("b")), Close("a", NOON + SECOND), Replace(record("a"))]
    await spool.accept(entries, Provenance(NOON, "alice", "auditor-client/0.11.2"), ["local"])
    queued = await spool.claim("local", 10)
    assert [type(one.entry) for one in queued] == [Insert, Insert, Close, Replace]
    assert {one.entry.provenance for one in queued} == {Provenance(NOON, "alice", "auditor-client/0.11.2")}


async def test_what_is_accepted_is_all_or_nothing(spool: Spool) -> None:
    with pytest.raises(InvalidRecord):
        await spool.accept([Insert(record("a")), Close("\0", NOON)], Provenance(NOON), ["local"])
    assert await spool.claim("local", 10) == []


async def test_an_update_waits_behind_its_record(spool: Spool, clock: Clock) -> None:
    await spool.accept([Insert(record("a")), Insert(record("b"))], Provenance(NOON), ["local"])
    first, _ = await spool.claim("local", 10)
    await spool.postpone({first.entry_id: NOON + SECOND})
    await spool.accept([Close("a", NOON), Close("b", NOON)], Provenance(NOON), ["local"])
    now_due = await spool.claim("local", 10)
    assert [one.entry for one in now_due if isinstance(one.entry, Close)] == [Close("b", NOON, Provenance(NOON))]
    assert len(now_due) == 2
    assert await spool.next_due("local") == NOON + SECOND
    clock.moment = NOON + SECOND
    all_due = await spool.claim("local", 10)
    assert [type(one.entry) for one in all_due] == [Insert, Insert, Close, Close]
    assert all_due[0].attempts == 1
    assert record_ids(await spool.claim("local", 1)) == ["b"]  # it has not failed


async def test_what_waits_behind_another_entry_is_not_due_next(spool: Spool, clock: Clock) -> None:
    await spool.accept([Insert(record("a")), Close("a", NOON)], Provenance(NOON), ["local"])
    insert, close = await spool.claim("local", 10)
    await spool.postpone({insert.entry_id: NOON + 9 * SECOND, close.entry_id: NOON + SECOND})
    clock.moment += 2 * SECOND
    assert await spool.claim("local", 10) == []
    assert await spool.next_due("local") == NOON + 9 * SECOND
    await spool.hurry("local")
    assert len(await spool.claim("local", 10)) == 2


async def test_a_clock_that_was_wrong_holds_nothing_back_for_years(spool: Spool) -> None:
    await spool.accept([Insert(record("a"))], Provenance(NOON), ["local"])
    (queued,) = await spool.claim("local", 1)
    await spool.postpone({queued.entry_id: NOON + timedelta(days=400)})
    await spool.accept([Close("a", NOON)], Provenance(NOON), ["local"])
    assert len(await spool.claim("local", 10)) == 2


async def test_the_oldest_are_claimed_first(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch([record(f"r{number}") for number in range(20)]), ["local"])
    assert record_ids(await spool.claim("local", 3)) == ["r0", "r1", "r2"]


async def test_what_nobody_would_carry_on_is_not_taken(spool: Spool) -> None:
    with pytest.raises(StoreUnavailable, match="no sender"):
        await spool.accept([Insert(record())], Provenance(NOON), [])
    with pytest.raises(StoreUnavailable, match="no sender"):
        await spool.enqueue("slurm", Batch([record()], checkpoint=1), [])
    assert await spool.checkpoint("slurm") is None


async def test_settling_forgets_and_quarantines_in_one_go(spool: Spool) -> None:
    batch = Batch([record("a"), Produced(record("b"), "b-2"), record("c")])
    await spool.enqueue("slurm", batch, ["local"])
    first, second, _ = await spool.claim("local", 10)
    await spool.settle("local", [first.entry_id], {second.entry_id: "the id belongs to another run"})
    assert record_ids(await spool.claim("local", 10)) == ["c"]
    (entry,) = await read_quarantine(spool, "local")
    assert (entry.stage, entry.source_id, entry.alternate_id) == (Stage.ENTRY, "b", "b-2")
    assert entry.provenance == Provenance(NOON, "task:slurm")


async def test_two_runs_that_are_refused_under_one_id_are_both_kept(spool: Spool) -> None:
    later = record("a", start_time=NOON + SECOND)
    await spool.enqueue("slurm", Batch([record("a"), later]), ["local"])
    await spool.accept([Close("a", NOON)], Provenance(NOON), ["local"])
    for _ in range(2):  # refused, queued again by the next deep look, refused again
        queued = await spool.claim("local", 10)
        await spool.settle("local", [], {one.entry_id: "the id belongs to another run" for one in queued})
        await spool.enqueue("slurm", Batch([record("a"), later]), ["local"])
    kept = await read_quarantine(spool, "local")
    assert [(one.source_id, one.operation, one.occurrences) for one in kept] == [
        ("a", "insert", 2),
        ("a", "insert", 2),
        ("a", "close", 1),
    ]
    assert {json.loads(one.raw)["start_time"] for one in kept[:2]} == {"2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"}
    [reason] = await spool.quarantine_reasons()
    assert reason == QuarantineReason(Stage.ENTRY, "local", "the id belongs to another run", 3)
    assert [each.entries for each in await spool.quarantine_reasons(newest=2)] == [2]


async def test_two_invalid_records_under_one_id_are_both_kept(spool: Spool) -> None:
    for start in ("yesterday", "today", "today"):
        await spool.enqueue("slurm", Batch([broken("a", start_time=start)]), ["local"])
    kept = await read_quarantine(spool, "slurm")
    assert [(one.source_id, one.occurrences) for one in kept] == [("a", 1), ("a", 2)]


async def test_settling_what_is_not_there_changes_nothing(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch([record("a")]), ["local"])
    (queued,) = await spool.claim("local", 10)
    with pytest.raises(LookupError):
        await spool.settle("local", [queued.entry_id], {999: "?"})
    with pytest.raises(LookupError):
        await spool.settle("far", [], {queued.entry_id: "not yours"})
    assert record_ids(await spool.claim("local", 10)) == ["a"]


async def test_senders_are_woken_by_what_is_queued_for_them(spool: Spool) -> None:
    woken = list[str]()
    spool.on_queued("local", lambda: woken.append("local"))
    await spool.enqueue("slurm", Batch([record()]), ["far"])
    assert woken == []
    await spool.enqueue("slurm", Batch([record()]), ["local", "far"])
    assert woken == ["local"]


async def test_a_release_from_quarantine_wakes_its_sender(spool: Spool) -> None:
    woken = list[str]()
    spool.on_queued("local", lambda: woken.append("local"))
    spool.on_queued("far", lambda: woken.append("far"))
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined("17", {"id": "17"}, "no column")]), [])
    (job,) = await read_quarantine(spool)
    await retry(spool, job, lambda raw: record(raw["id"]), ["local"])
    assert woken == ["local"]
    (queued,) = await spool.claim("local", 1)
    await spool.settle("local", [], {queued.entry_id: "refused"})
    (entry,) = await read_quarantine(spool)
    await retry(spool, entry, None, [])
    assert woken == ["local", "local"]


async def test_runs_that_differ_in_their_alternate_id_alone_are_both_queued(spool: Spool) -> None:
    for alternate in ("17-1", "17-2", "17-1", None, None):
        await spool.enqueue("slurm", Batch([Produced(record("17"), alternate)]), ["local"])
    found = [one.entry for one in await spool.claim("local", 10)]
    assert [one.alternate_id for one in found if isinstance(one, Insert)] == ["17-1", "17-2", None]


async def test_expired_keys_leave_the_file(tmp_path: Path, spool: Spool, clock: Clock) -> None:
    await spool.enqueue("slurm", Batch(seen={str(number): NOON + SECOND for number in range(100)}), [])
    await spool.enqueue("files", Batch(seen={"kept": NOON + 9 * SECOND}), [])
    clock.moment += 2 * SECOND
    await spool.enqueue("slurm", Batch(seen={"new": NOON + 9 * SECOND}), [])
    with closing(sqlite3.connect(tmp_path / "spool.db")) as connection:
        assert connection.execute("SELECT task, key FROM seen ORDER BY key").fetchall() == [
            ("files", "kept"),
            ("slurm", "new"),
        ]


async def test_seen_keys_expire(spool: Spool, clock: Clock) -> None:
    await spool.enqueue("slurm", Batch(seen={"1": NOON + SECOND, "2": NOON + 9 * SECOND}), [])
    await spool.enqueue("slurm", Batch(seen={"2": NOON + 2 * SECOND}), [])
    many = [str(number) for number in range(100_000)]
    assert await spool.find_seen("slurm", many) == {"1", "2"}
    assert await spool.find_seen("other", many) == frozenset()
    clock.moment += 3 * SECOND
    assert await spool.find_seen("slurm", many) == {"2"}


async def test_pending_values_stay_until_forgotten(spool: Spool) -> None:
    await spool.enqueue("kube", Batch(pending={"pod-1": {"tries": 1}, "pod-2": 0}), [])
    await spool.enqueue("kube", Batch(pending={"pod-1": {"tries": 2}, "pod-2": None}), [])
    assert await spool.pending("kube") == {"pod-1": {"tries": 2}}


async def test_plugin_state_is_durable(spool: Spool) -> None:
    async with spool.memory("apel", None) as memory:
        assert await memory.load() is None
        await memory.save({"month": "2026-02"}, NOON)
        with pytest.raises(TypeError):
            await memory.save(NOON, NOON)
        assert await memory.load() == {"month": "2026-02"}


async def test_the_last_run_remembers_the_last_success(spool: Spool) -> None:
    good = RunReport("slurm", "slurm", NOON, 2 * SECOND, records=5, skipped={"never started": 2})
    await spool.record_run(good)
    for _ in range(2):
        await spool.record_run(RunReport("slurm", "slurm", NOON + 60 * SECOND, SECOND, error="sacct is missing"))
    last = (await spool.last_runs())["slurm"][0]
    assert (last.error, last.failures, last.last_success) == ("sacct is missing", 2, NOON + 2 * SECOND)
    await spool.record_run(RunReport("slurm", "slurm", NOON + 90 * SECOND, SECOND, skipped={"wait": 1}, waits=True))
    last = (await spool.last_runs())["slurm"][0]
    assert (last.failures, last.last_success, last.skipped) == (2, NOON + 2 * SECOND, {"wait": 1})
    await spool.record_run(good)
    last = (await spool.last_runs())["slurm"][0]
    assert (last.error, last.failures, last.records, last.skipped) == (None, 0, 5, {"never started": 2})
    assert (last.started, last.duration) == (NOON, 2 * SECOND)


async def test_the_last_runs_of_each_instance_are_kept(spool: Spool) -> None:
    for number in range(25):
        await spool.record_run(RunReport("slurm", "slurm", NOON + number * SECOND, SECOND, records=number))
    await spool.record_run(RunReport("pages", "pages", NOON, SECOND, records=7))
    found = {task: [run.records for run in runs] for task, runs in (await spool.last_runs()).items()}
    assert found == {"pages": [7], "slurm": list(range(24, 4, -1))}


async def test_a_transform_acts_on_what_is_released_unless_it_has_before(tmp_path: Path, clock: Clock) -> None:
    def pseudonymised(given: Record) -> Record:
        return msgspec.structs.replace(given, meta={"pseudonymised": ("yes",)})

    async with Spool.opened(tmp_path, clock, transform=pseudonymised) as spool:
        jobs = [Quarantined(str(number), {}, "odd") for number in range(2)]
        await spool.enqueue("slurm", Batch(quarantined=jobs), ["local"])
        for entry, transformed in zip(await read_quarantine(spool), (False, True), strict=True):
            name = "again" if transformed else "first"
            entries: list[Entry] = [Insert(record(name)), Replace(record(f"{name}-replaced"))]
            await spool.quarantine_release(entry.quarantine_id, entries, ["local"], transformed=transformed)
        released = [one.entry for one in await spool.claim("local", 10)]
        assert [entry.record.meta for entry in released if not isinstance(entry, Close)] == [
            {"pseudonymised": ("yes",)},
            {"pseudonymised": ("yes",)},
            None,
            None,
        ]


async def test_quarantine_is_listed_in_pages_of_a_thousand(spool: Spool) -> None:
    jobs = [Quarantined(str(number), {}, "odd") for number in range(1_002)]
    await spool.enqueue("slurm", Batch(quarantined=jobs), ["local"])
    page = await spool.quarantine_summaries()
    rest = await spool.quarantine_summaries(after=page[-1].quarantine_id)
    assert [(len(each), each[0].source_id) for each in (page, rest)] == [(1_000, "0"), (2, "1000")]


async def test_a_spool_beside_the_daemons_makes_a_folder_closed_to_others(tmp_path: Path, clock: Clock) -> None:
    async with Spool.opened_beside(tmp_path / "new" / "state", clock) as spool:
        assert spool.state_dir.stat().st_mode & 0o777 == 0o750


async def test_refused_bodies_are_bounded_in_number(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.spool.spool.MAX_BODIES", 2)
    async with Spool.opened(tmp_path, clock) as spool:
        for body in (b"one", b"two", b"two", b"three"):
            clock.moment += SECOND
            await spool.keep_refused_body(body, "no record", Provenance(clock.moment, None, "curl"), "/record")
        assert [entry.raw for entry in await read_quarantine(spool, "api")] == [b"two", b"three"]
        statistics = await spool.statistics()
        assert (statistics.refused_bodies, statistics.dropped_bodies) == (4, 1)


async def test_refused_bodies_are_bounded_in_bytes(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.spool.spool.MAX_BODY_BYTES", 100)
    async with Spool.opened(tmp_path, clock) as spool:
        for filling in (b"a", b"b", b"c"):
            clock.moment += SECOND
            await spool.keep_refused_body(filling * 45, "no record", Provenance(clock.moment), "/record")
        assert [entry.raw[:1] for entry in await read_quarantine(spool)] == [b"b", b"c"]


@pytest.mark.parametrize("statement", ["_BODIES", "_OLDEST_BODY"])
async def test_bounding_bodies_reads_none_of_them(tmp_path: Path, spool: Spool, statement: str) -> None:
    """With thousands of them, every further refusal would hold up the collectors' batches."""
    await spool.check()
    with closing(sqlite3.connect(tmp_path / "spool.db")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {getattr(tables, statement)}").fetchall()
    assert [step[-1] for step in plan] == ["SEARCH quarantine USING COVERING INDEX quarantine_bodies (stage=?)"]


async def test_summaries_leave_out_the_raw_input_and_nothing_else(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined(str(n), n, "?") for n in range(3)]), [])
    entries = await read_quarantine(spool, "slurm")
    assert [entry.raw for entry in entries] == [b"0", b"1", b"2"]
    page = await spool.quarantine_summaries("slurm", limit=2)
    assert page == [msgspec.structs.replace(entry, raw=b"") for entry in entries[:2]]
    assert len(await spool.quarantine_summaries(after=page[-1].quarantine_id)) == 1


async def test_discarding_says_how_many(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined(str(n), n, "?") for n in range(3)]), [])
    first, second, third = await read_quarantine(spool)
    assert await spool.quarantine_discard([first.quarantine_id, second.quarantine_id, 999]) == 2
    assert await spool.quarantine_get(first.quarantine_id) is None
    assert await spool.quarantine_get(third.quarantine_id) == third


async def claimed(spool: Spool) -> list[Entry]:
    return [one.entry for one in await spool.claim("local", 10)]


async def test_a_job_is_retried_through_its_kind(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined("17", {"id": "17"}, "no start")]), [])
    (entry,) = await read_quarantine(spool)
    with pytest.raises(InvalidRecord):
        await retry(spool, entry, lambda _: record("\0"), ["local"])
    with pytest.raises(AuditordError, match="cannot convert it again"):
        await retry(spool, entry, None, ["local"])
    assert await read_quarantine(spool) == [entry]
    assert await retry(spool, entry, lambda raw: Produced(record(raw["id"]), "17-2"), ["local"]) == 1
    assert await read_quarantine(spool) == []
    assert await claimed(spool) == [Insert(record("17"), "17-2", Provenance(NOON, "task:slurm"))]


@pytest.mark.parametrize(
    ("batch", "operation"),
    [
        (Batch(quarantined=[Quarantined("17", {"id": "17"}, "no site")]), "replace"),
        (Batch([broken("17", start_time="2026-03-01T12:00:00Z")]), "replace"),
        (Batch([Produced(broken("17", start_time="2026-03-01T12:00:00Z"), replaces=True)]), "insert"),
    ],
    ids=["a job", "an invalid record", "a record that its source changed"],
)
async def test_what_was_to_replace_a_record_replaces_it_when_retried(
    spool: Spool, batch: Batch, operation: Operation
) -> None:
    await spool.enqueue("slurm", batch, ["local"], operation)
    (entry,) = await read_quarantine(spool)
    assert await retry(spool, entry, lambda raw: record(raw["id"]), ["local"]) == 1
    (queued,) = await claimed(spool)
    assert isinstance(queued, Replace)
    assert queued.record.record_id == "17"


async def test_a_job_without_a_record_just_leaves_quarantine(spool: Spool) -> None:
    await spool.enqueue("slurm", Batch(quarantined=[Quarantined("17", {"id": "17"}, "no start")]), [])
    (entry,) = await read_quarantine(spool)
    assert await retry(spool, entry, lambda _: None, ["local"]) == 0
    assert await read_quarantine(spool) == []


async def test_a_refused_entry_goes_back_to_its_sender(spool: Spool) -> None:
    await spool.accept([Close("a", NOON)], Provenance(NOON, "alice"), ["local"])
    (queued,) = await spool.claim("local", 1)
    await spool.settle("local", [], {queued.entry_id: "no such record"})
    (entry,) = await read_quarantine(spool)
    await retry(spool, entry, None, ["local", "far"])
    assert await claimed(spool) == [Close("a", NOON, Provenance(NOON, "alice"))]
    assert await spool.claim("far", 1) == []


BODY = b'{"record_id":"%s","components":[],"start_time":"2026-03-01T12:00:00Z","stop_time":"2026-03-01T12:00:00Z"}'


@pytest.mark.parametrize(
    ("route", "body", "ids"),
    [
        ("/record", BODY % b"a", ["a"]),
        ("//records?x=1", b"[%s,%s]" % (BODY % b"a", BODY % b"b"), ["a", "b"]),
    ],
)
async def test_a_refused_body_is_read_again(spool: Spool, route: str, body: bytes, ids: list[str]) -> None:
    await spool.keep_refused_body(body, "a rule of yesterday", Provenance(NOON, None, "curl"), route)
    (entry,) = await read_quarantine(spool)
    assert await retry(spool, entry, None, ["local"]) == len(ids)
    entries = await claimed(spool)
    assert [one.record.record_id for one in entries if isinstance(one, Insert)] == ids
    assert {one.provenance for one in entries} == {Provenance(NOON, None, "curl")}


async def test_figures(spool: Spool, clock: Clock) -> None:
    await spool.enqueue("slurm", Batch([record("a")], [Quarantined("1", 1, "?")], checkpoint=1), ["local"])
    clock.moment += SECOND
    await spool.enqueue("slurm", Batch([record("b")]), ["local", "far"])
    statistics = await spool.statistics()
    assert (statistics.queues["local"].entries, statistics.queues["local"].oldest) == (2, NOON)
    assert statistics.queues["far"].entries == 1
    assert statistics.quarantined == {("job", "slurm"): 1}
    assert statistics.checkpoints == {"slurm": NOON}


async def test_everything_is_there_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    async with Spool.opened(tmp_path, clock) as spool:
        await spool.enqueue("slurm", Batch([record("a")], checkpoint=1), ["local"])
    async with Spool.opened(tmp_path, clock) as spool:
        assert record_ids(await spool.claim("local", 10)) == ["a"]
        assert await spool.checkpoint("slurm") == 1


async def test_a_row_that_this_version_cannot_read_blocks_nothing(tmp_path: Path, spool: Spool) -> None:
    await spool.enqueue("slurm", Batch([record("a"), record("b")]), ["local"])
    with closing(sqlite3.connect(tmp_path / "spool.db")) as connection, connection:
        connection.execute("UPDATE queue SET body = x'7b7d' WHERE record_id = 'a'")
    assert record_ids(await spool.claim("local", 10)) == ["b"]
    (entry,) = await read_quarantine(spool)
    assert (entry.source_id, entry.stage) == ("a", Stage.ENTRY)


async def test_a_full_disk_loses_nothing_and_moves_no_checkpoint(tmp_path: Path, clock: Clock) -> None:
    async with Spool.opened(tmp_path, clock) as spool:
        database = spool._database  # pyright: ignore[reportPrivateUsage] # no option limits its size
        await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 40").fetchall())
        await spool.enqueue("slurm", Batch([record("first")], checkpoint="before"), ["local"])
        big = Batch([record(f"r{n}", meta={"text": ("x" * 256,) * 4}) for n in range(300)], checkpoint="after")
        with pytest.raises(StoreUnavailable, match=r"spool\.db.*no room"):
            await spool.enqueue("slurm", big, ["local"])
        assert await spool.checkpoint("slurm") == "before"
        assert record_ids(await spool.claim("local", 1_000)) == ["first"]
    async with Spool.opened(tmp_path, clock) as spool:  # there is room again
        assert (await spool.enqueue("slurm", big, ["local"])).records == 300
        assert await spool.checkpoint("slurm") == "after"


async def test_concurrent_batches_of_many_instances_all_arrive(spool: Spool) -> None:
    async with anyio.create_task_group() as group:
        for number in range(50):
            batch = Batch([record(f"{number}-{n}") for n in range(10)], checkpoint=number)
            group.start_soon(spool.enqueue, f"task{number}", batch, ["local"])
    assert len(await spool.claim("local", 1_000)) == 500


async def test_commands_read_beside_a_daemon(tmp_path: Path, spool: Spool, clock: Clock) -> None:
    await spool.enqueue("slurm", Batch([record("a")], [Quarantined("1", 1, "?")]), ["local"])
    async with Spool.opened_read_only(tmp_path, clock) as beside:
        assert (await beside.statistics()).queues["local"].entries == 1
        assert len(await read_quarantine(beside)) == 1
        with pytest.raises(StoreUnavailable):
            await beside.quarantine_discard([1])


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "a" / "state"
    with own(folder):
        yield folder


async def test_one_owner_of_the_state_folder(state_dir: Path) -> None:
    with pytest.raises(StateInUse, match=r"in use by process \d+: stop that daemon first"), own(state_dir):
        raise AssertionError
    assert owner(state_dir) is not None


def test_a_state_folder_that_everybody_may_write_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    with own(tmp_path):
        assert "chmod o-w" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root could leave such files")
def test_root_leaves_nothing_in_the_services_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, -1)
    with pytest.raises(StateInUse, match="runuser -u nobody -- auditord"), own(tmp_path):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StateInUse, match="file/state cannot be used: Not a directory"),
        own(tmp_path / "file" / "state"),
    ):
        raise AssertionError


async def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    assert owner(tmp_path) is None
    with own(tmp_path):
        pass
    assert owner(tmp_path) is None
    with own(tmp_path):
        pass


async def test_whether_anything_of_a_record_waits(spool: Spool) -> None:
    await spool.accept([Insert(record("r1"))], Provenance(NOON), ["local"])
    assert spool.occupied == {"local"}
    assert await spool.waiting(["r1", "r2"], ["other", "local"]) == {
        "r1": [Insert(record("r1"), None, Provenance(NOON))]
    }
    assert await spool.waiting(["r1"], ["other"]) == {}
    [queued] = await spool.claim("local", 10)
    await spool.settle("local", [queued.entry_id], {})
    assert await spool.waiting(["r1"], ["local"]) == {}
    assert not spool.occupied


async def test_a_correction_waits_behind_what_it_may_be_about(spool: Spool) -> None:
    """The id of a run is known only when the entry before it has arrived."""
    await spool.enqueue("slurm", Batch(records=[Produced(record("a"), "a-1")]), ["local"])
    (first,) = await spool.claim("local", 10)
    await spool.postpone({first.entry_id: NOON + SECOND})
    await spool.enqueue("slurm", Batch(records=[Produced(record("a-1"), "a", replaces=True)]), ["local"])
    assert await spool.claim("local", 10) == []
    await spool.hurry("local")
    assert [type(one.entry) for one in await spool.claim("local", 10)] == [Insert, Replace]


async def test_records_that_are_longer_than_clients_read_are_counted(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = len(encode_record(make_record("a")))
    for name, most, expected in (("a", length, 0), ("b", length - 1, 1)):
        monkeypatch.setattr("auditord.spool.encoding.MAX_CLIENT_OBJECT_BYTES", most)
        assert (await spool.enqueue("slurm", Batch([make_record(name)]), ["local"])).oversized == expected
