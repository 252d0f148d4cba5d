"""A hostile writer of the shared lake deletes, doubles and takes back rows: no sum is silently wrong."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import sqlite3
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, ManifestFile, write_manifest
from pyiceberg.table import Table

from auditord.lake.data_files import LakeDamaged
from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.manifests import LakeRefused
from auditord.lake.positions import POSITIONS, positions_of
from auditord.lake.queries import LakeReader
from auditord.lake.schema import SCHEMA
from auditord.lake.syncing import verify
from auditord.lake.table import LakeTable
from auditord.lake.writing import commit_files, month_number, remove_rows, write_rows
from auditord.store import Duplicates
from auditord.store.lake import LakeMiscounted, LakeOvertaken
from auditord.store.store import RecordStore
from auditord_hookspecs import Aggregates, RecordQuery
from tests.integration.lake.killed import opened, run
from tests.integration.lake.test_releasing import BY_MONTH, DAY, ONE_BY_ONE, SENT, START, job
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RECORDS: Final = [job(number) for number in range(1, 80)]
RELEASED: Final = sum(
    each.stop_time is not None and month_number(each.stop_time) < month_number(START) + 2 for each in RECORDS
)
arrow: Any = import_module("pyarrow")  # Any: it ships no types
compute: Any = import_module("pyarrow.compute")
NAME: Final = "a-daemon-with-a-long-name"


@dataclass
class World:
    """A daemon that has released records, and the folder of its lake."""

    store: RecordStore
    table: LakeTable
    folder: Path
    reader: LakeReader
    all: LakeReader

    async def run(self) -> int:
        return await run(self.store, self.table, NAME, month_number(START) + 2)

    async def ask(self) -> Aggregates:
        """Sum up the newest snapshot as a daemon does."""
        return await self.reader.aggregate(BY_MONTH, await self.store.list_released())

    def theirs(self) -> Table:
        """The table, as another program opens it."""
        at = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": self.folder.as_uri()}
        return load_catalog("auditord", type="sql", **at).load_table("auditord.lake")

    def location(self) -> str:
        with sqlite3.connect(self.folder / "catalog.db") as catalog:
            [[location]] = catalog.execute("SELECT metadata_location FROM iceberg_tables")
        catalog.close()
        return str(location)

    def set_back(self, location: str) -> None:
        with sqlite3.connect(self.folder / "catalog.db") as catalog:
            catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))
        catalog.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World, None]:
    folder = tmp_path / "lake"
    async with opened(folder, NAME, f"sqlite:///{tmp_path}/records.db") as (store, table):
        await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
        limits = EngineLimits(256 << 20, 1, tmp_path / "spill")
        one = World(
            store, table, folder, LakeReader(table, NAME, DuckDb(limits)), LakeReader(table, None, DuckDb(limits))
        )
        assert await one.run() == RELEASED
        assert replace(await one.ask(), snapshot=None) == aggregate_records(RECORDS, BY_MONTH)
        yield one
        one.reader.close()
        one.all.close()


def forged(table: Table, fewer: int) -> Mapping[str, str]:
    """The positions after some rows less, as a writer who knows of them sets them."""
    ours = positions_of(table)[NAME]
    return {POSITIONS: msgspec.json.encode({NAME: replace(ours, rows=ours.rows - fewer)}).decode()}


def delete(table: Table, *record_ids: str, properties: Mapping[str, str] | None = None) -> None:
    """Delete rows as Spark does, by new files without them."""

    def are_gone(rows: Any) -> Any:
        return compute.is_in(rows["record_id"], value_set=arrow.array(record_ids, rows["record_id"].type))

    rewritten = remove_rows(table, table.scan().plan_files(), are_gone)
    commit_files(table, properties or {}, rewritten.removed, rewritten.added)


def append_again(table: Table, record_id: str, daemon: str = NAME) -> None:
    """Append a copy of a row."""
    rows = table.scan(f"record_id = '{record_id}'").to_arrow()
    place = rows.schema.get_field_index("daemon")
    named = rows.set_column(place, rows.schema.field(place), arrow.array([daemon], rows["daemon"].type))
    [row] = msgspec.convert(rows.select(["stop_time", "site"]).to_pylist(), list[dict[str, Any]])
    partition = month_number(row["stop_time"]), row["site"]
    commit_files(table, {}, (), list(write_rows(table, partition, named)))


@pytest.mark.parametrize("is_forger", [False, True])
async def test_deleted_released_rows_make_no_sum_too_small(world: World, *, is_forger: bool) -> None:
    theirs = world.theirs()
    delete(theirs, "job-3", "job-4", properties=forged(theirs, 2) if is_forger else {})
    with pytest.raises(LakeMiscounted, match="deleted 2"):
        await world.ask()
    with pytest.raises(LakeMiscounted, match="deleted 2"):
        async with world.reader.stream(RecordQuery(), await world.store.list_released()):
            pass
    with pytest.raises(LakeMiscounted, match=rf"{RELEASED - 2} of {RELEASED} records.*deleted 2 rows.*lake verify"):
        await world.run()
    assert await world.store.aggregate(ONE_BY_ONE) == aggregate_records(RECORDS, ONE_BY_ONE), "from its own snapshot"
    world.theirs().manage_snapshots().rollback_to_snapshot((await world.store.lake_state()).snapshot_id).commit()
    assert replace(await world.ask(), snapshot=None) == aggregate_records(RECORDS, BY_MONTH)
    assert await world.run() == 0


async def test_doubled_rows_make_no_sum_too_large(world: World) -> None:
    append_again(world.theirs(), "job-3")
    for asked in (world.reader, world.all):
        with pytest.raises(LakeMiscounted, match=f"{len(RECORDS) + 1} rows of {NAME}.*added 1"):
            await asked.aggregate(BY_MONTH)
    with pytest.raises(LakeMiscounted, match="added 1 row"):
        await world.run()


async def test_a_row_that_is_repeated_in_place_of_another_is_found_by_verification(world: World) -> None:
    assert (await verify(world.store, world.table, NAME)).findings == []
    delete(world.theirs(), "job-3")
    append_again(world.theirs(), "job-4")
    verified = await verify(world.store, world.table, NAME)
    assert (verified.records, verified.findings) == (
        RELEASED - 1,
        [
            "released records have 1 row too many",
            f"the lake has {RELEASED - 1} of {RELEASED} released records",
        ],
    )


async def test_a_data_file_that_is_listed_twice_is_noticed(world: World) -> None:
    theirs = world.theirs()
    [first, *_] = theirs.scan().plan_files()
    with theirs.transaction() as transaction, transaction.update_snapshot().fast_append() as files:
        files.append_data_file(first.file)
    with pytest.raises(LakeMiscounted, match=f"added {first.file.record_count}"):
        await world.ask()


async def test_data_files_that_were_exchanged_are_named(world: World) -> None:
    one, other, *_ = sorted(world.folder.rglob("*.parquet"))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(LakeDamaged, match=r"\.parquet of the lake does not have the size"):
        await world.store.aggregate(ONE_BY_ONE)


async def test_a_data_file_that_was_replaced_by_another_of_its_size_and_number_of_rows_is_named(world: World) -> None:
    by_rows: defaultdict[int, list[Path]] = defaultdict(list)
    released = [task.file for task in world.theirs().scan("release IS NOT NULL").plan_files()]
    for file in sorted(released, key=lambda each: each.file_size_in_bytes):
        by_rows[file.record_count].append(Path(file.file_path.removeprefix("file://")))
    one, other = next(paths[:2] for paths in by_rows.values() if len(paths) > 1)
    content = one.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")  # of the columns; the footer follows
    other.write_bytes(content[:end] + bytes(other.stat().st_size - len(content)) + content[end:])
    with pytest.raises(LakeDamaged, match=rf"{other.name} of the lake has other values"):
        await world.store.aggregate(ONE_BY_ONE)
    assert other.name in str((await verify(world.store, world.table, NAME)).findings)


def exchange_manifests(metadata: Path) -> None:
    """Give the newest snapshot the manifests of the first one with all rows, in which none is released."""
    content = msgspec.json.decode(metadata.read_bytes())
    first, *_, newest = (
        each for each in content["snapshots"] if each["summary"].get("total-records") == str(len(RECORDS))
    )
    newest["manifest-list"] = first["manifest-list"]
    metadata.write_bytes(msgspec.json.encode(content))


async def test_a_counted_snapshot_that_gets_other_manifests_is_counted_again(world: World) -> None:
    exchange_manifests(Path(world.location().removeprefix("file://")))
    with pytest.raises(LakeMiscounted, match=f"has 0 of {RELEASED} records"):
        await world.ask()
    with pytest.raises(LakeMiscounted, match=f"has 0 of {RELEASED} records"):
        await world.store.aggregate(ONE_BY_ONE)


def claim_bounds(column: str, value: bytes) -> Callable[[DataFile], None]:
    number = SCHEMA.find_field(column).field_id

    def forge(file: DataFile) -> None:
        for bounds in (file.lower_bounds, file.upper_bounds):
            bounds.update({number: value} if number in bounds else {})

    return forge


def claim_no_values(column: str) -> Callable[[DataFile], None]:
    at = [field.name for field in DATA_FILE_TYPE[2].fields].index("null_value_counts")

    def forge(file: DataFile) -> None:
        counts = {number: file.null_value_counts[number] for number in range(1, 25) if number in file.null_value_counts}
        file[at] = {**counts, SCHEMA.find_field(column).field_id: file.record_count}

    return forge


def claim_month(change: int | None) -> Callable[[DataFile], None]:
    def forge(file: DataFile) -> None:
        if file.partition[0] is not None:
            file.partition[0] = None if change is None else file.partition[0] + change

    return forge


@pytest.mark.parametrize(
    "forge",
    [
        *(claim_bounds("user_name", b"zzz"), claim_bounds("runtime", bytes(8))),
        *(claim_bounds("stop_time", bytes(8)), claim_bounds("daemon", b"zzz")),
        *(claim_no_values("stop_time"), claim_no_values("user_name"), claim_month(1), claim_month(None)),
    ],
)
async def test_verify_names_a_file_with_false_statistics_for_which_queries_skip_it(
    world: World, forge: Callable[[DataFile], None]
) -> None:
    theirs = world.theirs()
    files, false = ([task.file for task in theirs.scan().plan_files()] for _ in range(2))
    for file in false:
        forge(file)
    with (
        theirs.transaction() as transaction,
        transaction.update_snapshot({POSITIONS: forged(theirs, 0)[POSITIONS]}).overwrite() as changed,
    ):
        for old, new in zip(files, false, strict=True):
            changed.delete_data_file(old)
            changed.append_data_file(new)
    [finding, *_] = (await verify(world.store, world.table, NAME)).findings
    assert "other values than those that were written" in finding


def leave_out_an_entry(table: Table, manifest: ManifestFile) -> None:
    """Replace a manifest by one without its first data file, and of the same size."""
    path = Path(manifest.manifest_path.removeprefix("file://"))
    [_, *others] = manifest.fetch_manifest_entry(table.io)
    shorter = path.with_name("shorter.avro")
    with write_manifest(2, table.spec(), table.schema(), table.io.new_output(shorter.as_uri()), 1, "deflate") as new:
        for entry in others:
            new.existing(entry)
    left = manifest.manifest_length - shorter.stat().st_size
    path.write_bytes(shorter.read_bytes() + bytes(left))


async def test_verify_names_a_manifest_with_fewer_rows_than_its_list_says(world: World) -> None:
    theirs = world.theirs()
    snapshot = theirs.current_snapshot()
    assert snapshot is not None
    largest = max(snapshot.manifests(theirs.io), key=lambda each: each.manifest_length)
    leave_out_an_entry(theirs, largest)
    name = largest.manifest_path.rpartition("/")[2]
    assert name in str((await verify(world.store, world.table, NAME)).findings)


async def test_a_manifest_that_was_replaced_by_an_earlier_one_is_named(world: World) -> None:
    by_age = sorted(world.folder.rglob("*-m*.avro"), key=lambda each: each.stat().st_mtime)
    by_age[-1].write_bytes(by_age[0].read_bytes())
    with pytest.raises(LakeRefused, match=by_age[-1].name):
        await world.ask()


async def test_deleted_copies_of_stored_records_are_noticed(world: World) -> None:
    delete(world.theirs(), "job-79")
    for asked in (world.reader, world.all):
        with pytest.raises(LakeMiscounted, match=f"which has written {len(RECORDS)}: another program has deleted 1"):
            await asked.aggregate(BY_MONTH)
    assert await world.run() == 0, "the record store has these"


async def test_rows_of_another_name_refuse_the_sums_of_all_and_not_those_of_this_daemon(world: World) -> None:
    append_again(world.theirs(), "job-3", "nobody")
    assert replace(await world.ask(), snapshot=None) == aggregate_records(RECORDS, BY_MONTH)
    with pytest.raises(LakeMiscounted, match=r"1 row of nobody.*written 0.*added 1"):
        await world.all.aggregate(BY_MONTH)


@pytest.mark.parametrize("by_catalog", [True, False])
async def test_a_table_that_was_set_back_is_noticed_and_the_next_run_syncs_again(
    world: World, *, by_catalog: bool
) -> None:
    before, location = world.theirs().current_snapshot(), world.location()
    assert before is not None
    new = [job(number, start_time=START + number * DAY) for number in range(80, 90)]
    await world.store.add_all(new, SENT, Duplicates.SAME_RUN, atomic=True)
    assert await world.run() == 0
    assert replace(await world.ask(), snapshot=None) == aggregate_records([*RECORDS, *new], BY_MONTH)
    if by_catalog:
        world.set_back(location)
    else:
        world.theirs().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    with pytest.raises(LakeOvertaken, match="set back"):
        await world.ask()
    await world.run()
    assert replace(await world.ask(), snapshot=None) == aggregate_records([*RECORDS, *new], BY_MONTH)


async def test_the_count_of_released_rows_reads_no_data_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a data file was read")

    monkeypatch.setattr("auditord.lake.data_files.LakeScan.to_table", fail)
    world.table.check_released(NAME, replace(await world.store.list_released(), recalled=frozenset()))
    await world.ask()
