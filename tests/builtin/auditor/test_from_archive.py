"""AUDITOR's archive of Parquet files into a store."""

import json
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_hookspecs import Record
from tests.builtin.auditor.conftest import Target

pa: Any = import_module("pyarrow")  # it ships no types
pq: Any = import_module("pyarrow.parquet")

MONTH = timedelta(days=31)
MILLISECONDS = pa.timestamp("ms", tz="UTC")
# As AUDITOR writes them.
SCHEMA = pa.schema(
    [
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("meta", pa.string(), nullable=False),
        pa.field("components", pa.string(), nullable=False),
        pa.field("start_time", MILLISECONDS, nullable=False),
        pa.field("stop_time", MILLISECONDS, nullable=False),
        pa.field("runtime", pa.int64(), nullable=False),
    ]
)


def row(record: Record) -> dict[str, Any]:
    return {
        "record_id": record.record_id,
        "meta": msgspec.json.encode(record.meta).decode(),
        "components": msgspec.json.encode(record.components).decode(),
        "start_time": record.start_time,
        "stop_time": record.stop_time,
        "runtime": record.runtime,
    }


def archive(file: Path, rows: Sequence[dict[str, Any]], schema: Any = SCHEMA, **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), file, compression="gzip", **options)
    return file


def month(number: int, count: int = 20) -> list[Record]:
    start = EPOCH + number * MONTH + timedelta(milliseconds=123)
    return [make_record(f'job-{number}-{n}/ü"\\', start=start, site_id="S") for n in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "archive"
    made.mkdir()
    for number in range(3):
        archive(made / f"auditor_2026_{number + 1:02}.parquet", list(map(row, month(number))), row_group_size=8)
    return made


def everything() -> dict[str, Record]:
    return {record.record_id: record for number in range(3) for record in month(number)}


def test_a_folder_of_months(target: Target, folder: Path) -> None:
    done = target.run(folder)
    assert done.exit_code == 0, done.output
    assert target.stored() == everything()
    assert "60 are in the store, with equal times and content hashes" in done.stdout


def test_a_runtime_that_the_times_cannot_tell_is_listed(sqlite_target: Target, folder: Path) -> None:
    start, stop = EPOCH + timedelta(microseconds=900), EPOCH + timedelta(seconds=1, microseconds=500)
    rounded, shorter, longer = (make_record(name, start=start, runtime=stop - start) for name in ("a", "b", "c"))
    assert rounded.runtime == 0, "the archive's times without microseconds tell one second"
    file = archive(
        folder / "more.parquet", [row(rounded), row(shorter) | {"runtime": 2}, row(longer) | {"runtime": -1}]
    )
    done = sqlite_target.run(file)
    assert done.exit_code == 1
    assert "1 are in the store, with equal times and content hashes\n2 have another runtime" in done.stdout
    assert "another runtime: more.parquet, row 2: b: the source has a runtime of 2 s" in done.stderr


def test_single_files_with_missing_meta(sqlite_target: Target, folder: Path) -> None:
    bare = msgspec.structs.replace(make_record("bare"), components=())
    archive(folder / "snappy.parquet", [row(bare)])
    done = sqlite_target.run(folder / "snappy.parquet", folder / "auditor_2026_02.parquet")
    assert done.exit_code == 0, done.output
    assert sqlite_target.stored() == {record.record_id: record for record in [bare, *month(1)]}


def damage(file: Path) -> bytes:
    """Make the second group of rows unreadable; return the whole file."""
    whole = file.read_bytes()
    place = pq.read_metadata(file).row_group(1).column(0).data_page_offset
    file.write_bytes(whole[: place - 4] + b"\xff" * 64 + whole[place + 60 :])
    return whole


def test_it_goes_on_in_the_middle_of_a_file(
    sqlite_target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord_builtin.auditor.parquet.PAGE_ROWS", 4)
    whole = damage(folder / "auditor_2026_02.parquet")
    done = sqlite_target.run(folder)
    assert done.exit_code == 1
    assert "auditor_2026_02.parquet cannot be read" in str(done.exception)
    (position,) = sqlite_target.positions()
    name, reached = json.loads(json.loads(position.read_text())["position"])
    assert name.endswith(("auditor_2026_01.parquet", "auditor_2026_02.parquet"))
    assert len(sqlite_target.stored()) >= reached + (20 if name.endswith("02.parquet") else 0) > 0
    (folder / "auditor_2026_02.parquet").write_bytes(whole)
    done = sqlite_target.run(folder)
    assert done.exit_code == 0, done.output
    assert sqlite_target.stored() == everything()


def test_it_goes_on_into_a_folder_whose_name_begins_with_that_of_the_first(
    sqlite_target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord_builtin.auditor.parquet.PAGE_ROWS", 4)
    old = folder.parent / "archive-old"
    old.mkdir()
    (folder / "auditor_2026_01.parquet").rename(old / "auditor_2026_01.parquet")
    whole = damage(folder / "auditor_2026_03.parquet")
    assert sqlite_target.run(folder, old).exit_code == 1
    (folder / "auditor_2026_03.parquet").write_bytes(whole)
    done = sqlite_target.run(folder, old)
    assert done.exit_code == 0, done.output
    assert sqlite_target.stored() == everything()


def test_rows_that_are_no_records_are_set_aside_alone(sqlite_target: Target, folder: Path) -> None:
    rows = list(map(row, month(4, 3)))
    rows[1]["meta"] = '{"a":'
    archive(folder / "bad.parquet", rows)
    done = sqlite_target.run(folder / "bad.parquet")
    assert done.exit_code == 1
    assert "unreadable: bad.parquet, row 2: " in done.stderr
    assert len(sqlite_target.stored()) == 2


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (SCHEMA.remove(2), "it has no column components"),
        (SCHEMA.set(3, pa.field("start_time", pa.timestamp("ms"))), "start_time should be a time with a zone"),
    ],
)
def test_other_parquet_files_are_refused(sqlite_target: Target, tmp_path: Path, schema: Any, words: str) -> None:
    file = archive(tmp_path / "other.parquet", [], schema)
    assert words in str(sqlite_target.run(file).exception)


def test_what_is_no_file_is_said(sqlite_target: Target, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("nothing of the kind")
    assert "there is no such file" in str(sqlite_target.run(tmp_path / "gone").exception)
    assert "has no *.parquet" in str(sqlite_target.run(tmp_path / "empty").exception)
    assert "restore it from a backup" in str(sqlite_target.run(tmp_path / "text.parquet").exception)
