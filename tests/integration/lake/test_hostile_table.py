"""A hostile writer of the shared lake changes its metadata: no daemon obeys, ends, or tells its secrets."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, Final
from unittest.mock import Mock

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from auditord.config.model import Configuration
from auditord.errors import StoreUnavailable
from auditord.lake import catalog as lake_catalog
from auditord.lake.data_files import LakeDamaged
from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.manifests import LakeRefused
from auditord.lake.opening import ConfiguredLake
from auditord.lake.queries import LakeReader
from auditord.lake.schema import RECORD_COLUMNS
from auditord.lake.table import LakeTable
from auditord_hookspecs import AggregateQuery, ComponentUsage, RecordQuery
from tests.integration.lake.asked_lake import asked_lake, listed
from tests.integration.lake.killed import lake_in

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

pyarrow: Any = import_module("pyarrow")  # Any: it ships no types
parquet: Any = import_module("pyarrow.parquet")  # Any: the same

CORES: Final = AggregateQuery(usage=(ComponentUsage("Cores"),))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LakeTable]:
    table = asked_lake(tmp_path)
    yield table
    table.close()


def metadata_of(table: LakeTable) -> Path:
    folder = Path(table.location.removeprefix("file://")).parents[1]
    with sqlite3.connect(folder / "catalog.db") as catalog:
        [[location]] = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    catalog.close()
    return Path(location.removeprefix("file://"))


def change(table: LakeTable, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest metadata in its file, as a hostile writer would."""
    file = metadata_of(table)
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


async def ask(table: LakeTable, folder: Path) -> None:
    """Do what a reader and a run of this daemon do."""
    reader = LakeReader(table, None, DuckDb(EngineLimits(256 << 20, 1, folder / "spill")))
    try:
        await reader.aggregate(CORES)
        await listed(reader, RecordQuery())
        table.facts()
        table.remove("b", with_released=True)
        table.compact("a")
        table.expire(datetime(9000, 1, 1, tzinfo=UTC))
        table.delete_strays(datetime(2000, 1, 1, tzinfo=UTC))
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("py-io-impl", "sys.exit"),
        ("py-io-impl", "antigravity.nothing"),
        ("write.py-location-provider.impl", "sys.exit"),
        ("write.data.path", "file:///tmp/elsewhere"),
        ("write.metadata.path", "file:///tmp/elsewhere"),
        ("write.object-storage.enabled", "true"),
        ("s3.endpoint", "http://127.0.0.1:1"),
        ("s3.access-key-id", "theirs"),
        ("warehouse", "file:///tmp/elsewhere"),
        ("commit.retry.num-retries", "99"),
        ("schema.name-mapping.default", "[]"),
        ("write.metadata.previous-versions-max", "1" * 5_000),
    ],
)
async def test_a_property_that_would_steer_the_daemon_is_refused_by_name(
    table: LakeTable, tmp_path: Path, name: str, value: str
) -> None:
    change(table, lambda metadata: metadata["properties"].update({name: value}))
    with pytest.raises(LakeRefused, match=rf"'{name}'.*UNSET TBLPROPERTIES"):
        await ask(table, tmp_path)
    with pytest.raises(LakeRefused, match=name):
        table.open()


async def test_properties_that_only_other_engines_use_are_no_reason_to_refuse(table: LakeTable, tmp_path: Path) -> None:
    ours = {"owner": "kit", "write.distribution-mode": "hash", "write.parquet.compression-level": "9"}
    change(table, lambda metadata: metadata["properties"].update(ours))
    await ask(table, tmp_path)


async def test_the_files_are_opened_with_the_settings_of_the_operator_alone(table: LakeTable) -> None:
    change(table, lambda metadata: metadata["properties"].update({"read.split.target-size": "1"}))
    with table.load() as opened:
        assert "read.split.target-size" not in opened.io.properties


async def test_another_location_is_refused(table: LakeTable, tmp_path: Path) -> None:
    change(table, lambda metadata: metadata.update({"location": (tmp_path / "elsewhere").as_uri()}))
    with pytest.raises(LakeRefused, match=r"elsewhere.*lake\.warehouse"):
        await ask(table, tmp_path)


async def test_a_snapshot_that_follows_itself_does_not_hang(table: LakeTable, tmp_path: Path) -> None:
    def edit(metadata: dict[str, Any]) -> None:
        for snapshot in metadata["snapshots"]:
            snapshot["parent-snapshot-id"] = metadata["current-snapshot-id"]
            snapshot["summary"] = {"operation": "append"}

    change(table, edit)
    with anyio.fail_after(60), pytest.raises(LakeRefused, match="follows itself"):
        await ask(table, tmp_path)


async def test_two_newest_snapshots_are_refused_before_a_run_adds_all_rows_again(table: LakeTable) -> None:
    def edit(metadata: dict[str, Any]) -> None:
        main = metadata["refs"]["main"]["snapshot-id"]
        other = next(each["snapshot-id"] for each in metadata["snapshots"] if each["snapshot-id"] != main)
        metadata["current-snapshot-id"] = other

    change(table, edit)
    with pytest.raises(LakeRefused, match="two newest snapshots"):
        table.partitions()


async def test_a_cut_manifest_is_refused(table: LakeTable) -> None:
    file = manifest_of(table)
    os.truncate(file, file.stat().st_size - 200)
    with pytest.raises(LakeRefused, match="cannot be used"):
        table.partitions()


def named(table: LakeTable, where: str) -> Callable[[dict[str, Any]], object]:
    def edit(metadata: dict[str, Any]) -> None:
        for snapshot in metadata["snapshots"]:
            snapshot["manifest-list"] = where.format(table.location)

    return edit


@pytest.mark.parametrize(
    "where", ["file:///etc/passwd", "{}/../../catalog.db", "{}/a/link", "{}/a/far", "http://127.0.0.1:1/x"]
)
async def test_a_file_outside_of_the_table_is_refused(table: LakeTable, tmp_path: Path, where: str) -> None:
    folder = Path(table.location.removeprefix("file://")) / "a"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "far").symlink_to("/" + "x" * 300)  # no system can look there
    change(table, named(table, where))
    with pytest.raises(LakeRefused, match="not one of its files"):
        await ask(table, tmp_path)


def change_column(table: LakeTable, name: str, new: str | None) -> None:
    """Rename or remove a column in the newest schema, as another engine does."""

    def edit(metadata: dict[str, Any]) -> None:
        [newest] = [each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]]
        kept = [each for each in newest["fields"] if new is not None or each["name"] != name]
        newest["fields"] = [{**each, "name": new} if each["name"] == name else each for each in kept]

    change(table, edit)


@pytest.mark.parametrize("column", ["release", "batch", "document", "core_seconds", "stop_time"])
async def test_a_removed_column_is_refused_and_not_created_again(table: LakeTable, tmp_path: Path, column: str) -> None:
    change_column(table, column, None)
    with pytest.raises(LakeRefused, match=rf"removed.*: {column}\."):
        table.open()
    with pytest.raises(LakeRefused, match=column):
        await ask(table, tmp_path)


async def test_a_column_that_was_removed_and_created_again_is_refused(table: LakeTable, tmp_path: Path) -> None:
    with table.load() as opened, opened.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("release")
        update.add_column("release", LongType())
    with pytest.raises(LakeRefused, match=r": release\."):
        await ask(table, tmp_path)


@pytest.mark.parametrize(("one", "other"), [("cores", "memory"), ("user_group", "user_name"), ("release", "batch")])
async def test_exchanged_columns_are_refused(table: LakeTable, tmp_path: Path, one: str, other: str) -> None:
    for name, new in ((one, "spare"), (other, one), ("spare", other)):
        change_column(table, name, new)
    with pytest.raises(LakeRefused, match=f"{one}.*{other}|{other}.*{one}"):
        await ask(table, tmp_path)


@pytest.mark.parametrize(
    ("at", "forged"),
    [(0, {"transform": "day"}), (0, {"source-id": 2}), (1, {"source-id": 6}), (1, {"transform": "bucket[4]"})],
)
async def test_another_partitioning_by_which_queries_would_skip_files_is_refused(
    table: LakeTable, tmp_path: Path, at: int, forged: Mapping[str, object]
) -> None:
    file = metadata_of(table)
    metadata = json.loads(file.read_bytes())
    metadata["partition-specs"][0]["fields"][at].update(forged)
    file.write_text(json.dumps(metadata))
    with pytest.raises(LakeRefused, match=r"partitioned by something else.*: (month|site)"):
        await ask(table, tmp_path)


def folder_of(table: LakeTable) -> Path:
    return Path(table.location.removeprefix("file://"))


def replace_with_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def data_file(table: LakeTable) -> Path:
    return min(folder_of(table).glob("data/**/*.parquet"))


def manifest_of(table: LakeTable) -> Path:
    with table.load() as opened:
        snapshot = opened.current_snapshot()
        assert snapshot is not None
        [newest, *_] = snapshot.manifests(opened.io)
    return Path(newest.manifest_path.removeprefix("file://"))


@pytest.mark.parametrize("which", [data_file, metadata_of, manifest_of])
async def test_a_fifo_among_the_files_does_not_block(
    table: LakeTable, tmp_path: Path, which: Callable[[LakeTable], Path]
) -> None:
    replace_with_fifo(which(table))
    with anyio.fail_after(60), pytest.raises(LakeRefused, match="no regular file"):
        await ask(table, tmp_path)


@pytest.mark.parametrize("which", [metadata_of, manifest_of])
async def test_metadata_that_would_fill_the_memory_is_refused(
    table: LakeTable, tmp_path: Path, which: Callable[[LakeTable], Path]
) -> None:
    os.truncate(which(table), 100 << 30)  # sparse
    with pytest.raises(LakeRefused, match="larger than 64 MiB"):
        await ask(table, tmp_path)


def list_of(table: LakeTable) -> Path:
    with table.load() as opened:
        snapshot = opened.current_snapshot()
        assert snapshot is not None
    return Path(snapshot.manifest_list.removeprefix("file://"))


def number(value: int) -> bytes:
    """A number as Avro writes it."""
    value, written = value << 1, bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def rewrite_avro(file: Path, change: Callable[[dict[str, str]], object], entries: int, block: bytes) -> None:
    """Write an Avro file with the changed header of a file and one block."""
    with AvroFile[Record](PyArrowFileIO().new_input(str(file))) as original:
        header = original.header
    meta = dict(header.meta)
    change(meta)
    pairs = b"".join(text(name.encode()) + text(value.encode()) for name, value in meta.items())
    start = b"Obj\x01" + number(len(meta)) + pairs + number(0) + header.sync
    file.write_bytes(start + number(entries) + text(block) + header.sync)


def deflate(size: int) -> bytes:
    """Return some compressed zeros."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(bytes(size)) + compressor.flush()


def without_elements(table: LakeTable, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a manifest with a changed schema, in which an entry begins with a length of 2**60."""

    def edit(meta: dict[str, str]) -> None:
        schema = json.loads(meta["avro.schema"])
        change(schema)
        meta.update({"avro.schema": json.dumps(schema), "avro.codec": "null"})

    rewrite_avro(manifest_of(table), edit, 1, number(1 << 60))


@pytest.mark.parametrize("which", [manifest_of, list_of])
@pytest.mark.parametrize(
    ("codec", "entries", "block", "reason"),
    [
        ("deflate", 1, deflate(40 << 20), "32 MiB decompressed"),
        ("null", 10_000_000, b"x", "100,000 entries"),
        ("zstandard", 1, b"x", "'zstandard'"),
        ("snappy", 1, b"x", "'snappy'"),
    ],
    ids=["deflate", "entries", "zstandard", "snappy"],
)
async def test_a_small_manifest_that_would_fill_the_memory_is_refused_by_name(
    table: LakeTable, *, which: Callable[[LakeTable], Path], codec: str, entries: int, block: bytes, reason: str
) -> None:
    file = which(table)
    rewrite_avro(file, lambda meta: meta.update({"avro.codec": codec}), entries, block)
    with pytest.raises(LakeRefused, match=rf"{file.name}.*{reason}"):
        table.partitions()


async def test_a_list_whose_elements_have_no_bytes_is_refused(table: LakeTable) -> None:
    def change(schema: dict[str, Any]) -> None:
        [file] = [each["type"] for each in schema["fields"] if each["name"] == "data_file"]
        [offsets] = [each for each in file["fields"] if each["name"] == "split_offsets"]
        offsets["type"] = {**offsets["type"][1], "items": "null"}

    without_elements(table, change)
    with pytest.raises(LakeRefused, match="elements without bytes"):
        table.partitions()


async def test_a_schema_of_a_manifest_that_cannot_be_read_is_refused(table: LakeTable) -> None:
    elements = {"type": "array", "items": "int", "element-id": 900}
    without_elements(table, lambda schema: schema["fields"].insert(0, {"name": "x", "type": elements, "field-id": 901}))
    with pytest.raises(LakeRefused, match="cannot be used"):
        table.partitions()


def test_metadata_with_the_name_of_a_data_file_is_not_read(table: LakeTable) -> None:
    file = metadata_of(table)
    other = file.rename(file.with_suffix(".parquet"))
    os.truncate(other, 100 << 30)  # sparse
    with sqlite3.connect(folder_of(table).parents[1] / "catalog.db") as catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (other.as_uri(),))
    catalog.close()
    with pytest.raises(LakeRefused, match="as metadata"):
        table.facts()


def with_text_as_cores(file: Path) -> None:
    columns = parquet.read_table(file, partitioning=None)
    at = columns.schema.get_field_index("cores")
    parquet.write_table(columns.set_column(at, "cores", pyarrow.array(["x"] * len(columns))), file)


def with_other_bytes(file: Path) -> None:
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    content[-8 - length : -8] = bytes(each ^ 0x81 for each in content[-8 - length : -8])
    file.write_bytes(content)


def remove_all(table: LakeTable) -> None:
    for daemon in ("a", "b"):
        table.remove(daemon, with_released=True)


def with_fewer_bytes(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def with_fewer_rows(file: Path) -> None:
    parquet.write_table(parquet.read_table(file, partitioning=None).slice(1), file)


@pytest.mark.parametrize("damage", [with_text_as_cores, with_other_bytes, with_fewer_bytes, with_fewer_rows])
async def test_a_damaged_or_replaced_data_file_is_named(
    table: LakeTable, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    file = data_file(table)
    damage(file)
    with pytest.raises(StoreUnavailable, match=file.name):
        await ask(table, tmp_path)
    with pytest.raises(LakeDamaged, match=file.name):
        list(table.rows(AlwaysTrue(), RECORD_COLUMNS))  # as `lake verify` does
    with pytest.raises(LakeDamaged, match=file.name):
        remove_all(table)


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.9])
async def test_a_truncated_manifest_is_refused(table: LakeTable, tmp_path: Path, kept: float) -> None:
    manifest = manifest_of(table)
    os.truncate(manifest, int(manifest.stat().st_size * kept))
    with pytest.raises(LakeRefused, match="does not have the size"):
        await ask(table, tmp_path)


async def test_a_table_behind_a_link_is_refused(table: LakeTable, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    folder_of(table).rename(elsewhere)
    folder_of(table).symlink_to(elsewhere)
    with pytest.raises(LakeRefused, match="a link"):
        await ask(table, tmp_path)


def test_strays_are_not_deleted_behind_a_link(table: LakeTable, tmp_path: Path) -> None:
    precious, stray = tmp_path / "elsewhere" / "precious", folder_of(table) / "data" / "stray"
    for file in (precious, stray):
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
    (folder_of(table) / "data" / "link").symlink_to(precious.parent)
    assert table.delete_strays(datetime(9000, 1, 1, tzinfo=UTC)) == 1
    assert precious.exists()
    assert not stray.exists()


async def test_a_catalog_that_was_replaced_by_a_link_is_refused(table: LakeTable, tmp_path: Path) -> None:
    catalog, other = folder_of(table).parents[1] / "catalog.db", tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE records (x)")
    database.close()
    catalog.unlink()
    catalog.symlink_to(other)
    before = other.read_bytes()
    reopened = lake_in(catalog.parent)
    with pytest.raises(LakeRefused, match=r"catalog\.db is a link"):
        await ask(reopened, tmp_path)
    reopened.close()
    assert other.read_bytes() == before


def test_a_catalog_that_was_restored_beneath_the_daemon_gets_the_next_commits(table: LakeTable, tmp_path: Path) -> None:
    """Commits to the file that it replaced would be lost with that file."""
    catalog, backup = folder_of(table).parents[1] / "catalog.db", tmp_path / "backup.db"
    shutil.copy(catalog, backup)
    table.remove("a", with_released=True)
    backup.replace(catalog)
    assert table.position("a") is not None, "as of the backup"
    table.remove("a", with_released=True)
    reopened = lake_in(catalog.parent)
    assert reopened.position("a") is None
    reopened.close()


def test_a_missing_catalog_is_named_and_no_empty_one_is_in_the_way_of_its_backup(table: LakeTable) -> None:
    assert table.position("a") is not None
    catalog = folder_of(table).parents[1] / "catalog.db"
    away = catalog.rename(catalog.with_suffix(".away"))
    with pytest.raises(StoreUnavailable, match="is missing: restore it from its backup"):
        table.position("a")
    assert not catalog.exists()
    away.rename(catalog)
    assert table.position("a") is not None


async def test_a_metadata_file_outside_of_the_table_is_not_read(table: LakeTable, tmp_path: Path) -> None:
    folder = Path(table.location.removeprefix("file://")).parents[1]
    with sqlite3.connect(folder / "catalog.db") as catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = 'file:///etc/passwd'")
    catalog.close()
    with pytest.raises(LakeRefused, match="/etc/passwd"):
        await ask(table, tmp_path)


def test_only_files_of_the_table_are_deleted(table: LakeTable, tmp_path: Path) -> None:
    """Metadata that a commit no longer needs is deleted: a list of it may name any file."""
    precious = tmp_path / "precious"
    precious.write_text("x")
    outdated = [{"metadata-file": precious.as_uri(), "timestamp-ms": 1}]

    def edit(metadata: dict[str, Any]) -> None:
        metadata["metadata-log"] = outdated + metadata["metadata-log"]
        metadata["properties"]["write.metadata.previous-versions-max"] = "1"

    change(table, edit)
    with pytest.warns(UserWarning, match="not one of its files"):
        table.remove("a")
    assert precious.exists()


class RestCatalogServer(BaseHTTPRequestHandler):
    """A REST catalog that knows one table, and hands out credentials for its files."""

    protocol_version = "HTTP/1.1"
    metadata: Path

    def do_GET(self) -> None:
        answer: dict[str, Any] = {"defaults": {}, "overrides": {}}
        if not self.path.startswith("/v1/config"):
            given = {"s3.access-key-id": "handed out", "s3.endpoint": "http://given", "py-io-impl": "sys.exit"}
            where = f"file://{self.metadata}"
            answer = {"metadata-location": where, "metadata": json.loads(self.metadata.read_text()), "config": given}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's name
        """Say nothing."""


@pytest.fixture
def rest_table(table: LakeTable) -> Iterator[LakeTable]:
    """The same table, by way of a REST catalog."""
    RestCatalogServer.metadata = metadata_of(table)
    with ThreadingHTTPServer(("127.0.0.1", 0), RestCatalogServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        warehouse = table.location.removesuffix("/auditord/lake")
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}", "warehouse": warehouse}
        asked = LakeTable({**catalog, "s3.endpoint": "http://ours"}, warehouse)
        yield asked
        asked.close()
        server.shutdown()


def test_a_rest_catalog_hands_out_credentials_and_nothing_else(rest_table: LakeTable) -> None:
    with rest_table.load() as opened:
        properties = opened.io.properties
    assert properties["s3.access-key-id"] == "handed out"
    assert properties["s3.endpoint"] == "http://ours", "what the operator has set stays"
    assert properties["py-io-impl"].endswith(".LakeFileIO")
    assert rest_table.facts().records > 0


def test_properties_are_refused_by_way_of_a_rest_catalog_too(table: LakeTable, rest_table: LakeTable) -> None:
    change(table, lambda metadata: metadata["properties"].update({"s3.endpoint": "http://theirs"}))
    with pytest.raises(LakeRefused, match=r"s3\.endpoint"):
        rest_table.facts()


HANGING: Final = (
    "CREATE TRIGGER hang AFTER UPDATE ON iceberg_tables BEGIN SELECT RAISE(IGNORE); END",
    "CREATE VIEW hang AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n",
)


@pytest.mark.parametrize("statement", HANGING)
def test_a_catalog_with_programs_of_others_is_refused(table: LakeTable, statement: str) -> None:
    folder = change_catalog(table, statement)
    other = lake_in(folder)
    for asked in (table, other):  # with an open connection, and without
        with pytest.raises(LakeRefused, match="'hang'"):
            asked.facts()
    other.close()


def change_catalog(table: LakeTable, *statements: str) -> Path:
    """Run statements in the catalog while the table has a connection to it, and return the warehouse."""
    table.facts()
    folder = Path(table.location.removeprefix("file://")).parents[1]
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as catalog:
        for statement in statements:
            catalog.execute(statement)
    return folder


def test_an_endless_statement_on_the_catalog_is_interrupted(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_catalog, "_PATIENCE", 0.2)
    monkeypatch.setattr(lake_catalog.CatalogTable, "_check_file", Mock())  # the view was made just after it
    change_catalog(
        table,
        "ALTER TABLE iceberg_tables RENAME TO moved",
        "CREATE VIEW iceberg_tables AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i FROM n) "
        "SELECT moved.* FROM moved WHERE (SELECT max(i) FROM n) > 0",
    )
    with pytest.raises(StoreUnavailable, match="interrupted"):
        table.facts()


def paths_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all values in a JSON document."""
    yield path
    match value:
        case dict():
            members: dict[str, Any] = value
            for key, member in members.items():
                yield from paths_in(member, (*path, key))
        case list():
            elements: list[Any] = value
            for place, element in enumerate(elements):
                yield from paths_in(element, (*path, place))
        case _:
            pass


@pytest.mark.filterwarnings("ignore::UserWarning")  # pyiceberg warns of a part of what it finds
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_the_metadata_ends_the_process(table: LakeTable, data: st.DataObject) -> None:
    original = metadata_of(table).read_text()
    content = json.loads(original)
    *way, last = data.draw(st.sampled_from([path for path in paths_in(content) if path]))
    target: Any = content
    for step in way:
        target = target[step]
    hostile = st.sampled_from([None, "sys.exit", -1, 2**70, [], {}, "file:///etc/passwd", [[1]], {"x": 1}, True])
    target[last] = data.draw(hostile)
    metadata_of(table).write_text(json.dumps(content))
    other = lake_in(Path(table.location.removeprefix("file://")).parents[1])
    with suppress(Exception):  # a failed run, or a failed request
        other.facts()
        other.partitions()
        other.count_unaccounted()
    other.close()
    metadata_of(table).write_text(original)


@pytest.mark.parametrize("catalog", ["http://127.0.0.1:1", "postgresql://auditord@127.0.0.1:1/lake"])
def test_secrets_show_as_dots_wherever_the_properties_of_the_catalog_are_printed(catalog: str) -> None:
    lake = {"warehouse": "s3://bucket/lake", "catalog": catalog, "token": "hidden-1", "password": "hidden-2"}
    section = {**lake, "s3": {"access_key_id": "key", "secret_access_key": "hidden-3"}}
    configuration = Configuration.model_validate({"state_dir": "/x", "store": {"url": "sqlite:////x"}, "lake": section})
    properties = ConfiguredLake(configuration).catalog()
    assert "hidden-" not in f"{properties!r} {properties} {list(properties.values())}"
    assert properties["s3.secret-access-key"] == "hidden-3"
