"""A whole store is copied into another one: everything that it keeps, from one moment, and after any interruption."""

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psycopg
import pytest

from auditord.config.model import StoreSection
from auditord.errors import SchemaMismatch
from auditord.store import Action, Amendment, Duplicates, Provenance, Verdict
from auditord.store.copying import Copied, CopyRefused, copy_store
from auditord.store.copying.endpoints import PAGE_SIZE
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Component, Insert, Record, RecordQuery, RecordUpdate, Score
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.wire import encode_record
from tests.contract.store.feeds import forwarded, settled

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR = timedelta(hours=1)
ALICE = Provenance(START + 9 * HOUR, "user:alice")
SLURM = Provenance(START + 2 * HOUR, "task:slurm")
CLIENT = Provenance(START + 3 * HOUR, None, "auditor-client/0.11.2" + "é" * 300)
KEPT = Provenance(START + 3 * HOUR, None, CLIENT.agent[:200] if CLIENT.agent else None)
SAME_RUN = Duplicates.SAME_RUN
KEYS = ("site_id", "user_id")
Make = Callable[[str], str]


def job(number: int | str, **changes: Any) -> Record:  # Any: a record's
    scores = (Score("HEPscore23", 11.5),) if str(number) > "5" else ()
    components = (Component("Cores", len(str(number)), scores), Component("Memory", MAX_AMOUNT, ()))
    record = Record(f"job/{number}", START, components, START + HOUR, {"site_id": ("S",), "user_id": ("a", "b")})
    return msgspec.structs.replace(record, **changes)


class SilentProgress:
    """Watches a copy."""

    def note_progress(self, phase: str, done: int, total: int) -> None:
        pass


async def copy(source: str, target: str, *, resume: bool = False, progress: Any = None) -> Copied:  # Any: Progress
    ends = StoreSection(url=source), StoreSection(url=target)
    return await copy_store(*ends, resume=resume, now=lambda: START, progress=progress or SilentProgress())


@pytest.fixture(params=["sqlite to postgresql", "postgresql to sqlite"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    lite = f"sqlite://{tmp_path / 'records.db'}"
    if request.param == "sqlite to postgresql":
        return lite, request.getfixturevalue("empty_postgres_url")
    return request.getfixturevalue("postgres_url"), lite


async def fill(store: RecordStore, *, jobs: int = 30) -> None:
    """StoreContents that a store can keep."""
    await store.add_all([job(number) for number in range(jobs)], SLURM, SAME_RUN, atomic=True)
    for name in ("Ä", "z", "Z", "😀", "\uffff", "a b"):
        await store.add(job(name, meta=None), CLIENT, SAME_RUN)
    await store.add(job("open", stop_time=None), SLURM, SAME_RUN)
    await store.add(job("stopped", stop_time=None), SLURM, SAME_RUN)
    await store.stop(RecordUpdate("job/stopped", (), START + HOUR), CLIENT)
    assert await store.add(job(3, meta=None), CLIENT, SAME_RUN) is Verdict.DIFFERENT
    assert await store.add(job(2, components=()), SLURM, SAME_RUN) is Verdict.DIFFERENT
    await settled(store)
    await store.forget_outbox((await store.outbox(3)).position)
    await store.stop(RecordUpdate("job/stopped", (), START + 2 * HOUR), CLIENT)
    await store.amend([Amendment(Action.CORRECT, encode_record(job(4)), job(4, meta=None), "why")], ALICE)
    await store.amend([Amendment(Action.DELETE, encode_record(job(5)), None, "gone")], ALICE)
    async with store.memory("apel", None) as memory:
        await memory.save({"months": ["2024-02", "é"]}, START)


@dataclass
class StoreContents:
    """The visible contents of a store."""

    documents: list[bytes]
    differences: list[Any]
    history: list[Any]
    outbox: list[Any]
    counts: Any
    sums: Any
    memory: Any


async def seen(url: str) -> StoreContents:
    async with open_store(url, counted_keys=KEYS, outbox=True) as store:
        async with store.stream(RecordQuery(order=Order(SortField.ID))) as pages:
            documents = [document async for page in pages for document in page]
        async with store.differences() as differences, store.memory("apel", None) as memory:
            return StoreContents(
                documents,
                [difference async for difference in differences],
                [*(await store.history("job/4")), *(await store.history("job/5"))],
                sorted(await forwarded(store, 10_000), key=str),
                await store.counts(),
                await store.aggregate(AggregateQuery(usage=())),
                await memory.load(),
            )


async def test_everything_goes_along_there_and_back(urls: tuple[str, str], tmp_path: Path) -> None:
    source, target = urls
    async with open_store(source, counted_keys=KEYS, outbox=True) as store:
        await fill(store)
    before = await seen(source)
    assert (len(before.documents), len(before.differences), len(before.history), len(before.outbox)) == (37, 2, 2, 8)
    there = await copy(source, target)
    assert (there.records, there.written) == (37, 37)
    assert await seen(target) == before
    back = f"sqlite://{tmp_path / 'back.db'}"
    again = await copy(target, back)
    assert (again.digest, await seen(back)) == (there.digest, before)


async def test_the_copy_goes_on_as_the_store_would_have(urls: tuple[str, str]) -> None:
    source, target = urls
    async with open_store(source, counted_keys=KEYS, outbox=True) as store:
        await store.add(job("first"), CLIENT, SAME_RUN)
        await store.add(job("second"), CLIENT, SAME_RUN)
        await settled(store)
        await store.forget_outbox((await store.outbox(9)).position)
    await copy(source, target)
    async with open_store(target, counted_keys=KEYS, outbox=True) as store:
        assert await store.add(job("third"), CLIENT, SAME_RUN) is Verdict.ADDED
        assert await store.add(job("first"), SLURM, SAME_RUN) is Verdict.SAME
        assert await forwarded(store) == [Insert(job("third"), None, KEPT)]
        counts = await store.counts()
        assert (counts.total, counts.per_value["user_id"]) == (3, {"a": 3, "b": 3})


async def test_records_that_a_damaged_file_has_lost_count_once_when_they_come_again(tmp_path: Path) -> None:
    """Its counts and cells still have them."""
    source, target = f"sqlite://{tmp_path / 'salvaged.db'}", f"sqlite://{tmp_path / 'records.db'}"
    jobs = [job(number) for number in range(4)]
    async with open_store(source, counted_keys=KEYS) as store:
        await store.add_all(jobs, SLURM, SAME_RUN, atomic=True)
        await store.rollups.fold()
    with closing(sqlite3.connect(tmp_path / "salvaged.db")) as damaged:
        damaged.execute("DELETE FROM records WHERE record_id IN ('job/1', 'job/2')")
        damaged.commit()
    await copy(source, target)
    async with open_store(target, counted_keys=KEYS) as store:
        await store.add_all(jobs, SLURM, SAME_RUN, atomic=True)
        await store.rollups.fold()
        counts, sums = await store.counts(), await store.aggregate(AggregateQuery())
        assert (counts.total, counts.per_value["user_id"]["a"], sums.groups[0].records) == (4, 4, 4)


async def test_a_copy_of_a_lake_with_high_batch_numbers_is_usable_at_once(tmp_path: Path) -> None:
    """PostgreSQL numbers batches by its transactions. After a copy to SQLite, no consumer reads all numbers between."""
    source, target = (f"sqlite://{tmp_path / name}" for name in ("source.db", "target.db"))
    async with open_store(source, counted_keys=KEYS) as store:
        await store.add_all([job(number) for number in range(30)], SLURM, SAME_RUN, atomic=True)
    with closing(sqlite3.connect(tmp_path / "source.db")) as connection, connection:
        connection.execute("UPDATE lake SET given = 1000000000000")
    await copy(source, target)
    async with open_store(target, counted_keys=KEYS, outbox=True) as store:
        with anyio.fail_after(60):
            await store.add(job("new"), CLIENT, SAME_RUN)
            await store.rollups.fold()
            await store.fill_lake("lake")
            batch = await store.lake_batch(0, 20_000)
            later = await store.lake_batch(batch.number, 20_000)
        assert (len(batch.records), len(later.records)) == (30, 1)
        assert await forwarded(store) == [Insert(job("new"), None, KEPT)]


async def test_changes_wait_for_senders_although_another_transaction_is_running(
    postgres_url: str, tmp_path: Path
) -> None:
    target = f"sqlite://{tmp_path / 'records.db'}"
    with psycopg.connect(postgres_url) as running:
        async with open_store(postgres_url, counted_keys=(), outbox=True) as store:
            running.execute("SELECT pg_current_xact_id()")
            await store.add(job("first"), CLIENT, SAME_RUN)
        await copy(postgres_url, target)
    async with open_store(target, counted_keys=(), outbox=True) as store:
        assert await forwarded(store) == [Insert(job("first"), None, KEPT)]


async def test_an_empty_store_is_copied(urls: tuple[str, str]) -> None:
    async with open_store(urls[0], counted_keys=()):
        pass
    assert (await copy(*urls)).records == 0
    async with open_store(urls[1], counted_keys=()) as store:
        assert (await store.counts()).total == 0


async def test_a_store_that_holds_something_is_not_touched(urls: tuple[str, str]) -> None:
    source, target = urls
    async with open_store(source, counted_keys=()) as store:
        await store.add(job(1), SLURM, SAME_RUN)
    await copy(source, target)
    for resume in (False, True):
        with pytest.raises(CopyRefused, match="is not empty"):
            await copy(source, target, resume=resume)
    async with open_store(target, counted_keys=()) as store:
        assert (await store.counts()).total == 1


async def test_a_source_of_nobody_is_refused(urls: tuple[str, str]) -> None:
    _, target = urls
    with pytest.raises(Exception, match="nowhere"):
        await copy("sqlite:///nowhere/records.db", target)


class Interrupted(Exception):
    """As if somebody had pressed Ctrl-C."""


class Interrupting:
    """Watches a copy until it has had enough."""

    def __init__(self, at: int) -> None:
        self.at = at

    def note_progress(self, phase: str, done: int, total: int) -> None:
        del phase, total
        if done >= self.at:
            raise Interrupted


@pytest.fixture
async def large(urls: tuple[str, str]) -> tuple[str, str]:
    async with open_store(urls[0], counted_keys=(), outbox=True) as store:
        await fill(store, jobs=5 * PAGE_SIZE)
    return urls


async def test_an_unfinished_copy_is_used_by_nobody_and_goes_on(large: tuple[str, str], tmp_path: Path) -> None:
    source, target = large
    with pytest.raises(Interrupted):
        await copy(source, target, progress=Interrupting(3 * PAGE_SIZE))
    with pytest.raises(SchemaMismatch, match=r"holds an unfinished copy of .* database copy --resume"):
        async with open_store(target, counted_keys=()):
            pass
    with pytest.raises(CopyRefused, match="add --resume"):
        await copy(source, target)
    other = f"sqlite://{tmp_path / 'other.db'}"
    async with open_store(other, counted_keys=()):
        pass
    with pytest.raises(CopyRefused, match="holds an unfinished copy of"):
        await copy(other, target, resume=True)
    with pytest.raises(CopyRefused, match="holds an unfinished copy"):
        await copy(target, other)
    copied = await copy(source, target, resume=True)
    assert copied.written <= copied.records - 2 * PAGE_SIZE
    assert await seen(target) == await seen(source)


async def test_what_the_source_became_meanwhile_counts(large: tuple[str, str]) -> None:
    source, target = large
    with pytest.raises(Interrupted):
        await copy(source, target, progress=Interrupting(4 * PAGE_SIZE))
    async with open_store(source, counted_keys=(), outbox=True) as store:
        await store.amend([Amendment(Action.DELETE, encode_record(job(10)), None, "why")], ALICE)
        await store.amend([Amendment(Action.CORRECT, encode_record(job(11)), job(11, meta=None), "why")], ALICE)
        await store.add(job("0new"), SLURM, SAME_RUN)
    await copy(source, target, resume=True)
    assert await seen(target) == await seen(source)


async def test_it_survives_kill_9(large: tuple[str, str]) -> None:
    source, target = large
    script = f"""
import os, signal
from datetime import UTC, datetime
import anyio
from auditord.config.model import StoreSection
from auditord.store.copying import copy_store

class Killing:
    def note_progress(self, phase, done, total):
        if done >= {3 * PAGE_SIZE}:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    ends = StoreSection(url={source!r}), StoreSection(url={target!r})
    await copy_store(*ends, resume=False, now=lambda: datetime.now(UTC), progress=Killing())

anyio.run(main)
"""
    with anyio.fail_after(60):
        killed = await anyio.run_process([sys.executable, "-c", script], check=False, env=_environment())
    assert killed.returncode == -signal.SIGKILL
    copied = await copy(source, target, resume=True)
    assert 0 < copied.written <= copied.records - 2 * PAGE_SIZE
    assert await seen(target) == await seen(source)


class Writing:
    """Writes to the source while it is being copied, through another process's eyes: a connection of its own."""

    def __init__(self, url: str) -> None:
        self.path = url.removeprefix("sqlite://")
        self.deleted = 0

    def note_progress(self, phase: str, done: int, total: int) -> None:
        del phase, done, total
        with closing(sqlite3.connect(self.path)) as connection:
            self.deleted += connection.execute("DELETE FROM records WHERE record_id = 'job/z'").rowcount
            connection.commit()


async def test_the_source_is_read_as_of_one_moment(tmp_path: Path) -> None:
    source, target = (f"sqlite://{tmp_path / name}" for name in ("source.db", "target.db"))
    async with open_store(source, counted_keys=()) as store:
        await fill(store, jobs=3 * PAGE_SIZE)
    writing = Writing(source)
    await copy(source, target, progress=writing)
    assert writing.deleted == 1
    async with open_store(target, counted_keys=()) as store:
        assert await store.get("job/z") is not None


async def test_a_difference_is_found_at_the_end_and_the_copy_is_not_used(tmp_path: Path) -> None:
    source, target = (f"sqlite://{tmp_path / name}" for name in ("source.db", "target.db"))
    async with open_store(source, counted_keys=()) as store:
        await store.add(job(1), SLURM, SAME_RUN)
        await store.add(job(2), SLURM, SAME_RUN)
    with closing(sqlite3.connect(tmp_path / "source.db")) as connection:
        connection.execute("UPDATE records SET content = content + 1 WHERE record_id = 'job/2'")
        connection.commit()
    with pytest.raises(CopyRefused, match="the record 'job/2' differs in content"):
        await copy(source, target)
    for use in (open_store(target, counted_keys=()), open_store_for_reading(target)):
        with pytest.raises(SchemaMismatch, match="holds an unfinished copy"):
            async with use:
                pass


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
