"""Records are synced to the lake as their store has them, once, whatever happens to them."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.types import StringType

from auditord.config.model import Configuration
from auditord.errors import ConfigurationError
from auditord.lake import syncing
from auditord.lake.catalog import TABLE
from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.exporting import LAYOUTS, Exported, export
from auditord.lake.opening import lake_of
from auditord.lake.positions import POSITIONS, LakePosition, beyond, positions_of
from auditord.lake.queries import LakeReader
from auditord.lake.running import LakeMetrics, lake_kind
from auditord.lake.syncing import Synced, sync
from auditord.lake.table import LakeMoved, LakeTable
from auditord.lake.writing import commit_files, merge_files, partition_of_file, write_rows
from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.lake import LakeBatch
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord.testing import FakePluginContext
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Record, RecordUpdate, Score
from auditord_hookspecs.wire import encode_record
from tests.integration.lake.killed import LOG, lake_in
from tests.integration.lake.lake_rows import rows, texts

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # some ten seconds together

_arrow: Any = import_module("pyarrow")
_compute: Any = import_module("pyarrow.compute")

START = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR = timedelta(hours=1)
SLURM = Provenance(START + HOUR, "task:slurm", "agent")


def job(record_id: str, **changes: object) -> Record:
    components = (Component("Cores", 8, (Score("HEPscore23", 12.5),)), Component("Memory", 1 << 40, ()))
    meta = {"site_id": ("S",), "group_id": ("g",), "user_id": ("u",), "odd": ("a", "b")}
    return msgspec.structs.replace(Record(record_id, START, components, START + HOUR, meta), **changes)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return lake_in(tmp_path / "lake")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RecordStore]:
    async with open_store(f"sqlite:///{tmp_path}/records.db", counted_keys=()) as opened:
        yield opened


async def put(store: RecordStore, *records: Record) -> None:
    await store.add_all(records, SLURM, Duplicates.SAME_RUN, atomic=True)


async def test_a_site_whose_name_is_too_long_for_a_folder_is_synced(store: RecordStore, table: LakeTable) -> None:
    await put(store, *[job(site, meta={"site_id": (site,)}) for site in ("x" * 256, "é" * 42, "S")])
    assert await sync(store, table, "a", LOG) == Synced(3, 1)
    assert set(rows(table, "a")) == {"x" * 256, "é" * 42, "S"}


async def test_no_text_of_a_record_keeps_its_daemon_from_syncing(store: RecordStore, table: LakeTable) -> None:
    """U+D7FF has no successor that is a character, and bounds that are cut at it would need one."""
    text = "n" * 15 + "\ud7ff" + "ame"
    names = dict.fromkeys(("site_id", "group_id", "user_id", text), (text,))
    odd = msgspec.structs.replace(job(text), components=(Component(text, 1, (Score(text, 1.0),)),), meta=names)
    await store.add(odd, Provenance(START + HOUR, text, text), Duplicates.SAME_RUN)
    assert await sync(store, table, "a", LOG) == Synced(1, 1)
    assert rows(table, "a") == {text: encode_record(odd).decode()}


async def test_every_change_arrives_and_each_record_is_there_once(store: RecordStore, table: LakeTable) -> None:
    await put(store, job("before", meta=None), job("gone"), job("moved"))
    assert await sync(store, table, "a", LOG) == Synced(3, 1)
    await put(store, job("open", stop_time=None), job("other", meta={"site_id": ("T",)}), job("redacted"))
    assert await sync(store, table, "a", LOG) == Synced(3, 1)
    await store.stop(RecordUpdate("open", (), START + HOUR), SLURM)
    await store.stop(RecordUpdate("moved", (), START + timedelta(days=40)), SLURM)
    await store.amend([Amendment(Action.DELETE, encode_record(job("gone")), None, "wrong")], SLURM)
    await store.redact(["redacted"], {"user_id"})
    await put(store, job("short"))
    await store.amend([Amendment(Action.DELETE, encode_record(job("short")), None, "wrong")], SLURM)
    assert await sync(store, table, "a", LOG) == Synced(3, 1)
    assert rows(table, "a") == await texts(store)
    assert (table.facts().records, await sync(store, table, "a", LOG)) == (5, Synced(0, 0))
    assert '"u"' not in rows(table, "a")["redacted"]


async def test_the_summary_names_position_and_rows_of_each_daemon(store: RecordStore, table: LakeTable) -> None:
    await put(store, job("job-1"))
    await sync(store, table, "a", LOG)
    state, facts = await store.lake_state(), table.facts()
    assert facts.positions == {"a": LakePosition(state.store_id, 1, rows=1)}
    assert (facts.records, facts.files, facts.size > 0, facts.committed_at is not None) == (1, 1, True, True)


async def test_two_daemons_with_the_same_ids_write_at_the_same_time(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        names = ("a", "b")
        stores = [
            await stack.enter_async_context(open_store(f"sqlite:///{tmp_path}/{name}.db", counted_keys=()))
            for name in names
        ]
        tables = [lake_in(tmp_path / "lake") for _ in names]
        for round_number in range(5):
            for number, each in enumerate(stores):
                cores = (Component("Cores", number + 1, ()),)
                await put(each, *[job(f"job-{round_number}-{job_number}", components=cores) for job_number in range(9)])
                await each.stop(RecordUpdate("job-0-1", (), START + (round_number + 2) * HOUR), SLURM)
            await asyncio.gather(
                *(sync(each, table, name, LOG) for each, table, name in zip(stores, tables, names, strict=True))
            )
        for each, table, name in zip(stores, tables, names, strict=True):
            assert rows(table, name) == await texts(each)
        assert tables[0].facts().records == 90


async def test_an_answer_says_that_a_first_sync_is_under_way(
    store: RecordStore, table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, *[job(f"job-{number}") for number in range(5)])
    reader = LakeReader(table, "a", DuckDb(EngineLimits(256 << 20, 1, tmp_path / "spill")))
    answers: list[Aggregates] = []
    write = table.write

    def write_batch(daemon: str, before: LakePosition, batch: LakeBatch) -> None:
        write(daemon, before, batch)
        answers.append(asyncio.run(reader.aggregate(AggregateQuery())))

    monkeypatch.setattr(table, "write", write_batch)
    monkeypatch.setattr(syncing, "BATCH_CHANGES", 2)
    await sync(store, table, "a", LOG)
    answers.append(await reader.aggregate(AggregateQuery()))
    await put(store, job("later"))
    await sync(store, table, "a", LOG)
    reader.close()
    seen = [(each.groups[0].records, each.snapshot is not None and each.snapshot.is_complete) for each in answers]
    assert seen == [(2, False), (4, False), (5, False), (5, True), (6, True)]


async def test_a_commit_whose_answer_was_lost_is_not_repeated(store: RecordStore, table: LakeTable) -> None:
    await sync(store, table, "a", LOG)
    await put(store, job("job-1"))
    state = await store.lake_state()
    before = LakePosition(state.store_id, 0)
    batch = await store.lake_batch(0, 100)
    table.write("a", before, batch)  # and the process ends here
    with pytest.raises(LakeMoved):
        table.write("a", before, batch)
    await put(store, job("job-2"))
    assert await sync(store, table, "a", LOG) == Synced(1, 1)
    assert rows(table, "a") == await texts(store)


async def test_a_commit_that_arrives_late_is_found_again(store: RecordStore, table: LakeTable) -> None:
    await sync(store, table, "a", LOG)
    await put(store, job("job-1"), job("open", stop_time=None))
    before = LakePosition((await store.lake_state()).store_id, 0)
    late = await store.lake_batch(0, 100)
    again = await store.lake_batch(0, 100)  # by another process, which believes that the first one is gone
    table.write("a", before, late)
    await store.stop(RecordUpdate("open", (), START + HOUR), SLURM)
    with pytest.raises(LakeMoved):
        table.write("a", before, again)
    await sync(store, table, "a", LOG)
    assert rows(table, "a") == await texts(store)


async def test_many_changes_go_in_several_commits(
    store: RecordStore, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "BATCH_CHANGES", 4)
    await put(store, *[job(f"job-{number}") for number in range(10)])
    assert await sync(store, table, "a", LOG) == Synced(10, 3)
    assert rows(table, "a") == await texts(store)


async def test_a_run_ends_although_records_keep_arriving(
    store: RecordStore, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would commit a few records at a time all day, and never release records or clean up."""
    lake_batch, late = store.lake_batch, [job(f"late-{number}") for number in range(5)]

    async def arriving(position: int, limit: int, last: int) -> LakeBatch:
        batch = await lake_batch(position, limit, last)
        if late:
            await put(store, late.pop())
        return batch

    monkeypatch.setattr(store, "lake_batch", arriving)
    await put(store, job("job-1"))
    assert await sync(store, table, "a", LOG) == Synced(1, 1)
    assert table.facts().positions["a"].is_filling is False
    late.clear()
    assert await sync(store, table, "a", LOG) == Synced(2, 1)
    assert rows(table, "a") == await texts(store)


async def test_a_restored_store_syncs_everything_again(tmp_path: Path, table: LakeTable) -> None:
    url, copy = f"sqlite:///{tmp_path}/records.db", tmp_path / "copy.db"
    async with open_store(url, counted_keys=()) as store:
        await put(store, job("job-1"))
        await sync(store, table, "a", LOG)
        with closing(sqlite3.connect(tmp_path / "records.db")) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        await put(store, job("lost"))
        await sync(store, table, "a", LOG)
    for name in ("records.db-wal", "records.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    copy.replace(tmp_path / "records.db")
    async with open_store(url, counted_keys=()) as store:
        await put(store, job("new"))
        assert (await sync(store, table, "a", LOG)).records == 2
        assert rows(table, "a") == await texts(store)
        assert sorted(rows(table, "a")) == ["job-1", "new"]


async def test_another_lake_gets_everything(store: RecordStore, table: LakeTable, tmp_path: Path) -> None:
    await put(store, job("job-1"))
    await sync(store, table, "a", LOG)
    other = lake_in(tmp_path / "other")
    await sync(store, other, "a", LOG)
    assert rows(other, "a") == await texts(store)


async def test_one_name_is_one_store(store: RecordStore, table: LakeTable, tmp_path: Path) -> None:
    await sync(store, table, "a", LOG)
    async with open_store(f"sqlite:///{tmp_path}/other.db", counted_keys=()) as other:
        with pytest.raises(ConfigurationError, match="another record store under the name a"):
            await sync(other, table, "a", LOG)
    await store.begin_lake()
    with pytest.raises(ConfigurationError, match="under the name a: they would be there twice"):
        await sync(store, table, "b", LOG)


async def test_small_files_are_put_together_and_old_snapshots_go(store: RecordStore, table: LakeTable) -> None:
    for number in range(9):
        await put(store, job(f"job-{number}"))
        await sync(store, table, "a", LOG)
    assert (table.compact("a"), table.facts().files, table.facts().records) == (8, 1, 9)
    position = table.position("a")
    assert table.compact("a") == 0
    now = datetime.now(UTC) + timedelta(seconds=1)
    assert table.expire(now - timedelta(days=1)) == 0
    assert table.expire(now) > 9
    assert table.delete_strays(now) == 0, "all files of expired snapshots were known"
    with table.load() as opened:
        assert len(opened.snapshots()) == 1
    assert (rows(table, "a"), table.position("a")) == (await texts(store), position)


@pytest.mark.parametrize("rewrites", [False, True])
async def test_small_files_are_put_together_although_another_daemon_commits_meanwhile(
    store: RecordStore, table: LakeTable, monkeypatch: pytest.MonkeyPatch, *, rewrites: bool
) -> None:
    """Merging takes seconds to minutes, and every commit of another daemon would throw it away."""
    for number in range(8):
        await put(store, job(f"job-{number}"))
        await sync(store, table, "a", LOG)
    await put(store, job("other", meta={"site_id": ("T",)}))
    if rewrites:
        await store.amend([Amendment(Action.DELETE, encode_record(job("job-3")), None, "wrong")], SLURM)
    position = table.position("a")
    assert position is not None
    batch = await store.lake_batch(position.batch, 100)

    def joining(*arguments: Any) -> Any:  # Any: those of merge_files
        merged = merge_files(*arguments)
        table.write("a", position, batch)
        return merged

    monkeypatch.setattr("auditord.lake.table.merge_files", joining)
    assert table.compact("a") == (0 if rewrites else 7)
    assert rows(table, "a") == await texts(store)


async def test_snapshots_expire_although_the_clock_was_ahead_once(store: RecordStore, tmp_path: Path) -> None:
    options = {"state_dir": tmp_path, "lake": {"enabled": True, "name": "a"}}
    configuration, context = Configuration.model_validate(options), FakePluginContext()
    with lake_of(store, configuration) as lake:
        kind = lake_kind(store, lake, LakeMetrics())
        for days in (4_000, 2):
            await put(store, job(f"job-{days}"))
            context.moment = datetime.now(UTC) + timedelta(days=days)
            await kind.run(configuration.lake, context)
            with lake.table.load() as opened:
                assert len(opened.snapshots()) == 1


async def test_an_export_is_of_one_snapshot(store: RecordStore, table: LakeTable, tmp_path: Path) -> None:
    loop, later = asyncio.get_running_loop(), START + timedelta(days=40)
    await put(store, job("moved"), job("other", stop_time=later))
    await sync(store, table, "a", LOG)

    async def move() -> None:
        await store.stop(RecordUpdate("moved", (), later), SLURM)
        await sync(store, table, "a", LOG)

    def progressed(done: int, _: int) -> None:
        if done == 1:
            asyncio.run_coroutine_threadsafe(move(), loop).result()

    arguments = (table, "a", tmp_path / "out", LAYOUTS["hive"], progressed)
    assert await asyncio.to_thread(export, *arguments) == Exported(2, 2)


async def test_statistics_that_another_engine_has_made_stay(store: RecordStore, table: LakeTable) -> None:
    await sync(store, table, "a", LOG)
    with table.load() as opened:
        file, snapshot = f"{opened.location()}/metadata/of-trino.stats", opened.current_snapshot()
        assert snapshot is not None
        with opened.io.new_output(file).create() as output:
            output.write(b"PFA1")
        made = StatisticsFile(
            snapshot_id=snapshot.snapshot_id, statistics_path=file, file_size_in_bytes=4, file_footer_size_in_bytes=0,
            blob_metadata=[],
        )  # fmt: skip
        with opened.update_statistics() as update:
            update.set_statistics(made)
    assert table.delete_strays(datetime.now(UTC) + timedelta(seconds=1)) == 0


@pytest.mark.parametrize("conflict", [CommitFailedException, ValidationException])
async def test_a_batch_is_written_again_after_a_conflict(
    store: RecordStore, table: LakeTable, monkeypatch: pytest.MonkeyPatch, conflict: type[Exception]
) -> None:
    await put(store, job("job-1"))
    conflicts = iter([conflict("another process was faster")])

    def commit(*arguments: Any) -> None:  # Any: those of commit_files
        for each in conflicts:
            raise each
        commit_files(*arguments)

    monkeypatch.setattr("auditord.lake.table.commit_files", commit)
    await sync(store, table, "a", LOG)
    assert not list(conflicts)
    assert rows(table, "a") == await texts(store)


async def test_a_snapshot_of_another_engine_keeps_the_positions(store: RecordStore, table: LakeTable) -> None:
    await put(store, job("job-1"))
    await sync(store, table, "a", LOG)
    before = table.position("a")
    with table.load() as opened:
        opened.append(opened.scan().to_arrow().slice(0, 0))
        summary = opened.current_snapshot()
        assert summary is not None
        assert POSITIONS not in json.dumps(summary.model_dump(mode="json"))
    assert table.position("a") == before
    table.expire(datetime.now(UTC) + timedelta(seconds=1))  # nothing came for days
    assert table.position("a") == before
    await put(store, job("job-2"))
    assert await sync(store, table, "a", LOG) == Synced(1, 1)


async def test_a_lake_that_forgot_its_positions_is_filled_again(store: RecordStore, table: LakeTable) -> None:
    await put(store, job("job-1"))
    await sync(store, table, "a", LOG)
    with table.load() as opened:
        opened.append(opened.scan().to_arrow().slice(0, 0))
        mine = [each.snapshot_id for each in opened.snapshots()][:-1]
        opened.maintenance.expire_snapshots().by_ids(mine).commit()
    assert table.position("a") is None
    await sync(store, table, "a", LOG)
    assert rows(table, "a") == await texts(store)


async def test_rows_that_no_batch_of_their_daemon_brought_are_found_from_the_files_statistics(
    store: RecordStore, table: LakeTable
) -> None:
    await put(store, *(job(f"job-{number}") for number in range(3)))
    await sync(store, table, "kit", LOG)
    await put(store, job("later"))
    await sync(store, table, "kit", LOG)
    assert table.count_unaccounted() == {}
    with table.load() as opened:
        suspects = list(opened.scan(beyond(positions_of(opened))).plan_files())
        assert suspects == [], "a sound lake is known to be so without a look into its files"
        [task, *_] = opened.scan().plan_files()
        known: Any = opened.scan().to_arrow()
        later = _compute.add(known["batch"], 1_000)
        for name, column in (("batch", later), ("daemon", _texts("", known)), ("daemon", _texts("klt", known))):
            forged = known.set_column(known.schema.get_field_index(name), known.schema.field(name), column)
            files = list(write_rows(opened, partition_of_file(task.file), forged))
            with table.load() as newest:  # pyiceberg copies metadata that its threads still complete in `opened`
                commit_files(newest, {}, (), files)
    assert table.count_unaccounted() == {"kit": 4, "klt": 4, "": 4}
    assert (await sync(store, table, "kit", LOG)).records == 0, "positions are found behind these snapshots"


def _texts(text: str, like: Any) -> Any:
    return _arrow.array([text] * like.num_rows, like.schema.field("daemon").type)


async def test_columns_of_sites_are_kept(store: RecordStore, table: LakeTable) -> None:
    table.open()
    with table.load() as opened, opened.update_schema() as update:
        update.add_column("cost_centre", StringType())
    await put(store, job("job-1"))
    await sync(store, lake_in(Path(table.location.removeprefix("file://")).parents[1]), "a", LOG)
    with table.load() as opened:
        assert opened.scan().to_arrow()["cost_centre"].to_pylist() == [None]
    await put(store, job("new", meta={"a new key": ("x",)}, components=(Component("FPGA", 3, ()),)))
    await sync(store, table, "a", LOG)
    assert rows(table, "a") == await texts(store)


def test_the_table_is_partitioned_by_site_and_month(table: LakeTable) -> None:
    table.open()
    with table.load() as opened:
        assert [field.name for field in opened.spec().fields] == ["month", "site"]
        assert opened.name() == tuple(TABLE.split("."))
    assert table.facts().snapshot_id == 0
