"""``auditord archive`` on a host's own records, and other programs that read what it writes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import duckdb
import msgspec
import pandas as pd
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

from auditord.cli import auditord
from auditord.cli.collect import Watcher
from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import AggregateQuery, ComponentUsage
from auditord_hookspecs.wire import encode_record
from tests.integration.archive.host import CORES, RECORDS, Host, ids, job


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    made = Host(tmp_path_factory.mktemp("host"))
    made.run("archive", "run", "--dry-run")
    made.run("archive", "run")
    return made


def test_it_lists_months_and_sites_and_verifies_them(host: Host) -> None:
    listed = host.run("archive", "list").output
    assert all(text in listed for text in ("2021-01", "2021-04", "KIT", "a/b c", "90 records are archived"))
    assert "90 of 90 archived records were read back" in host.run("archive", "verify").output


def test_a_run_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fractions = list[float]()

    def progressed(_watcher: Watcher, fraction: float) -> None:
        fractions.append(fraction)

    monkeypatch.setattr(Watcher, "progressed", progressed)
    monkeypatch.setattr("auditord.archive.archiver.CHUNK_RECORDS", 20)
    Host(tmp_path).run("archive", "run")
    assert len(fractions) == 6, "five chunks and the end"
    assert fractions == sorted(fractions)
    assert fractions[0] > 0
    assert fractions[-1] == 1.0


def test_sums_and_single_records_are_there_as_ever(host: Host) -> None:
    used = host.run("report", "usage", "--from", "2021-01-01", "--to", "2021-12-31", "--by", "none", "--output", "json")
    assert f'"core-hours": {2 * CORES}' in used.stdout


def test_records_of_the_archive_are_listed_alone_or_with_the_others(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run("archive", "run")
    late = msgspec.structs.replace(job(90), stop_time=datetime.now(UTC))
    host.add(late)
    listing = ("--output", "ndjson", "--meta", "site_id=KIT", "--started-since", "2021-04-01")
    archived = [each.record_id for each in RECORDS[78::3]]
    assert ids(host.run("archive", "query", *listing).stdout) == archived
    assert ids(host.run("archive", "query", *listing, "--limit", "2", "--descending").stdout) == archived[:-3:-1]
    assert ids(host.run("records", *listing).stdout) == ["job-90"]
    assert ids(host.run("records", *listing, "--include", "archive").stdout) == [*archived, "job-90"]
    assert "0 records" in host.run("archive", "query", "--open").output
    assert json.loads(host.run("archive", "query", "--id", "job-7", "--output", "json").stdout) == [
        json.loads(encode_record(RECORDS[7]))
    ]


def test_duckdb_and_pandas_read_an_export_with_the_same_sums(host: Host, tmp_path: Path) -> None:
    host.run("archive", "export", str(tmp_path / "out"))
    assert "is not empty" in str(host.run("archive", "export", str(tmp_path / "out"), fails=True).exception)
    files = f"{tmp_path}/out/*/*/*.parquet"
    question = (
        f"SELECT count(*), sum(cores), count(DISTINCT site) FROM read_parquet('{files}', hive_partitioning = true)"  # noqa: S608 a test's own folder
    )
    answer: Any = duckdb.sql(question)
    assert answer.fetchall() == [(90, CORES, 2)]
    arrow: Any = import_module("pyarrow")  # Any: it ships no types
    columns = arrow.schema([("site", arrow.string()), ("month", arrow.string())])
    partitioning = import_module("pyarrow.dataset").partitioning(
        columns, flavor="hive"
    )  # without it, pandas stumbles over no site
    frame = pd.read_parquet(tmp_path / "out", engine="pyarrow", partitioning=partitioning)
    assert (len(frame), frame["cores"].sum()) == (90, CORES)
    assert frame[frame["site"] == "a/b c"]["cores"].sum() == sum(range(1, 90, 3))


def test_an_export_in_auditors_layout_is_an_archive_of_auditor(host: Host, tmp_path: Path) -> None:
    host.run("archive", "export", "--layout", "auditor", str(tmp_path / "out"))
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"auditor_2021_{month:02}.parquet" for month in (1, 2, 3, 4)]
    parquet = import_module("pyarrow.parquet")
    assert [(field.name, str(field.type), field.nullable) for field in parquet.read_schema(files[0])] == [
        *((name, "string", False) for name in ("record_id", "meta", "components")),
        *((name, "timestamp[ms, tz=UTC]", False) for name in ("start_time", "stop_time")),
        ("runtime", "int64", False),
    ]
    assert parquet.read_metadata(files[0]).row_group(0).column(0).compression == "GZIP"
    target = Host(tmp_path, [])
    target.run("import", "auditor", str(tmp_path / "out"))
    stored = target.run("records", "--output", "ndjson").stdout.splitlines()
    assert stored == [encode_record(each).decode() for each in RECORDS]


def test_pyiceberg_reads_the_table_itself_without_us(host: Host) -> None:
    catalog = SqlCatalog("auditord", uri=f"sqlite:///{host.folder}/archive/catalog.db")
    rows = catalog.load_table("auditord.records").scan(selected_fields=("cores", "record_id")).to_arrow()
    assert (rows.num_rows, sum(rows.column("cores").to_pylist())) == (90, CORES)
    catalog.close()


def test_a_month_comes_back_and_moves_again(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run("archive", "run")
    assert "9 records are back" in host.run("archive", "restore", "2021-02", "--site", "KIT").output
    assert "81 of 81 archived records" in host.run("archive", "verify").output
    host.run("archive", "run")
    assert "90 of 90 archived records" in host.run("archive", "verify").output


def test_a_site_s_records_move_at_an_age_of_their_own(tmp_path: Path) -> None:
    host = Host(tmp_path, after_months=1_200, sites={"KIT": {"months": 6}, "a/b c": {"months": 1_100}})
    assert re.search("those of site KIT: before 20", host.run("archive", "run", "--dry-run").output)
    host.run("archive", "run")
    assert ids(host.run("archive", "query", "--output", "ndjson").stdout) == [each.record_id for each in RECORDS[::3]]


def test_without_an_archive_it_says_what_to_do(tmp_path: Path) -> None:
    assert "there is no archive yet" in str(Host(tmp_path).run("archive", "list", fails=True).exception)


def test_a_running_daemon_moves_them_by_itself_and_on_demand(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {"archive": {"enabled": True, "after_months": 6}}) as daemon:
        Client(daemon.url).add_all(RECORDS)
        config = str(tmp_path / "auditord.json")
        done = CliRunner().invoke(auditord, ["archive", "run", "--config", config])
        assert done.exit_code == 0, done.output
        metrics = urlopen(f"{daemon.url}/metrics").read().decode()  # noqa: S310 a test's own daemon
        assert "auditord_archived_records 90.0" in metrics
        assert re.search(r"auditord_archive_last_success_timestamp_seconds 1\.\d+e\+09", metrics)
        (group,) = Client(daemon.url).aggregate(AggregateQuery(usage=(ComponentUsage("Cores"),))).groups
        assert (group.records, group.usage[0].sums.amount) == (90, CORES)
        assert Client(daemon.url).get("job-7") == RECORDS[7]
        assert listed(daemon.url, "?limit=40") == []
        assert listed(daemon.url, "?limit=40&include=archive") == [each.record_id for each in RECORDS]
        shown = ("records", "--output", "ndjson", "--include", "archive", "--url", daemon.url, "--config", config)
        assert ids(CliRunner().invoke(auditord, shown).stdout) == [each.record_id for each in RECORDS]
        pages_of_the_archive(daemon.url)
    with running_daemon(tmp_path, {"archive": {"enabled": True, "after_months": 6, "schedule": "0 0 1 1 *"}}) as daemon:
        metrics = daemon.get("/metrics").decode()
        assert "auditord_archived_records 90.0" in metrics
        assert re.search(r"auditord_archive_last_success_timestamp_seconds 1\.\d+e\+09", metrics)


def pages_of_the_archive(url: str) -> None:
    """The page offers the archive, shows it on request, keeps that while one leafs, and shows a single record."""
    first = page(url, "/jobs")
    assert 'name="include" value="archive">' in first
    assert "job-89" not in first
    second = page(url, "/jobs?site=KIT&include=archive")
    assert 'value="archive" checked>' in second
    assert re.findall(r'href="/jobs/(job-\d+)"', second) == [each.record_id for each in RECORDS[87::-3]]
    following = re.search(r'href="(/jobs\?[^"]*cursor=[^"]*)"', page(url, "/jobs?include=archive"))
    assert following
    third = page(url, following[1].replace("&amp;", "&"))
    assert re.findall(r'href="/jobs/(job-\d+)"', third) == [each.record_id for each in RECORDS[39::-1]]
    assert 'href="/jobs?include=archive"' in third
    assert "site_id" in page(url, "/jobs/job-6")


def page(url: str, path: str) -> str:
    text: str = urlopen(Request(f"{url}{path}", headers={"Accept": "text/html"})).read().decode()  # noqa: S310 a test's own daemon
    return text


def listed(url: str, query: str) -> Sequence[str]:
    """The ids on all pages, of 40 records each."""
    place, found = f"/api/v1/records{query}", list[str]()
    while place:
        page = json.loads(urlopen(f"{url}{place}").read())  # noqa: S310 a test's own daemon
        found += [record["record_id"] for record in page["records"]]
        place = page["next"]
    return found
