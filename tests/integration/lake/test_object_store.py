"""A lake whose files are in an object store: asked by DuckDB as one on the disk is."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from auditord.errors import StoreUnavailable
from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.queries import LakeReader
from auditord.lake.table import LakeTable
from auditord_hookspecs import AggregateQuery, ComponentUsage, RecordQuery
from tests.integration.lake.asked_lake import (
    BY_DAEMON,
    asked_lake,
    check_listings,
    check_sums,
    listed,
)
from tests.integration.lake.killed import lake_in
from tests.s3_server import S3Server, s3_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def lake(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakeTable]:
    monkeypatch.setenv("LAKE_TEST_S3", server.endpoint)
    table = asked_lake(tmp_path, lake_in(tmp_path / "lake"))
    yield table
    table.close()


def reader(table: LakeTable, daemon: str | None, folder: Path) -> LakeReader:
    return LakeReader(table, daemon, DuckDb(EngineLimits(256 << 20, 2, folder / "spill")))


def test_sums_and_records_equal_a_plain_evaluation(lake: LakeTable, tmp_path: Path) -> None:
    assert lake.location.startswith("s3://")
    readers = {daemon: reader(lake, daemon, tmp_path) for daemon in BY_DAEMON}
    check_sums(readers, lake, 25)
    check_listings(readers, 25)


async def test_objects_that_no_snapshot_needs_are_deleted(lake: LakeTable, tmp_path: Path) -> None:
    lake.remove("a")
    assert lake.expire(datetime.now(UTC)) > 0
    with lake.load() as table:
        table.io.new_output(f"{lake.location}/data/stray.parquet").create().close()
    assert lake.delete_strays(datetime.now(UTC).replace(year=9000)) > 0
    assert len(await listed(reader(lake, "b", tmp_path), RecordQuery())) == len(BY_DAEMON["b"])


async def test_a_file_that_is_gone_is_an_error(lake: LakeTable, server: S3Server, tmp_path: Path) -> None:
    with lake.load() as table:
        paths = [task.file.file_path for task in table.scan().plan_files()]
    for path in paths:
        assert server.request("DELETE", path.removeprefix("s3:/")) == 204
    asked = reader(lake, "b", tmp_path)
    with pytest.raises(StoreUnavailable, match=r"cannot be read: .*\.parquet"):
        await listed(asked, RecordQuery())
    with pytest.raises(StoreUnavailable, match=r"cannot be read: .*\.parquet"):
        await asked.aggregate(AggregateQuery(usage=(ComponentUsage("Cores"),)))
