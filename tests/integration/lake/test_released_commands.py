"""Released records in commands on a host's own records, and other programs that read what it writes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import duckdb
import pandas as pd
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from auditord.cli import auditord
from auditord.client import Client
from auditord.store.opening import open_store_for_reading
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import AggregateQuery, ComponentUsage
from auditord_hookspecs.wire import encode_record
from tests.integration.lake.host import CORES, RECORDS, Host, ids, job
from tests.integration.lake.killed import lake_in
from tests.integration.lake.test_hostile_rows import delete


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    made = Host(tmp_path_factory.mktemp("host"))
    made.run("lake", "run", "--dry-run")
    made.run("lake", "run")
    return made


def test_it_lists_months_and_sites_and_verifies_them(host: Host) -> None:
    listed = host.run("lake", "list").output
    assert all(text in listed for text in ("2021-01", "2021-04", "KIT", "a/b c"))
    assert "90 of 90 released records were read back" in host.run("lake", "verify").output


def test_sums_and_single_records_are_there_as_ever(host: Host) -> None:
    used = host.run("report", "usage", "--from", "2021-01-01", "--to", "2021-12-31", "--by", "none", "--output", "json")
    assert f'"core-hours": {2 * CORES}' in used.stdout


def test_duckdb_and_pandas_read_an_export_with_the_same_sums(host: Host, tmp_path: Path) -> None:
    host.run("lake", "export", str(tmp_path / "out"))
    assert "is not empty" in str(host.run("lake", "export", str(tmp_path / "out"), fails=True).exception)
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
    host.run("lake", "export", "--layout", "auditor", str(tmp_path / "out"))
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


def test_a_month_comes_back_and_moves_again(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run("lake", "run")
    assert "9 records are back" in host.run("lake", "recall", "2021-02", "--site", "KIT").output
    assert "81 of 81 released records" in host.run("lake", "verify").output
    host.run("lake", "run")
    assert "90 of 90 released records" in host.run("lake", "verify").output
    for command in (("forget", "kit"), ("end", "--yes")):
        host.configure(enabled=False)
        refused = host.run("lake", *command, fails=True)
        assert "lake recall" in f"{refused.output}{refused.exception}"


@pytest.mark.parametrize("year", [1, 1970])
def test_the_first_month_of_the_calendar_comes_back(tmp_path: Path, year: int) -> None:
    first = datetime(year, 1, 1, tzinfo=UTC)
    host = Host(tmp_path, [replace(job(0), start_time=first, stop_time=first + timedelta(hours=1))])
    host.run("lake", "run")
    assert "1 record is back" in host.run("lake", "recall", f"{year:04}-01").output


def test_a_stop_time_at_the_end_of_the_calendar_is_exported(tmp_path: Path) -> None:
    host = Host(tmp_path, [replace(job(0), stop_time=datetime(9999, 12, 31, tzinfo=UTC)), job(1)])
    host.run("lake", "run")
    assert "wrote 2 records to 2 files" in host.run("lake", "export", str(tmp_path / "out")).output


def test_sites_whose_last_months_are_released_are_looked_at_without_the_lake(tmp_path: Path) -> None:
    ended = [datetime.now(UTC) - timedelta(days=number) for number in range(120)]
    host = Host(tmp_path, [replace(job(0), record_id=f"{stop}", stop_time=stop) for stop in ended], keep_months=1)
    host.run("lake", "run")
    assert "records in 90 days" in host.run("doctor", "--all", fails=True).output  # no daemon is running
    assert "120" in host.run("status", fails=True).output


async def counts_of_sites(host: Host) -> Mapping[str, int]:
    async with open_store_for_reading(f"sqlite://{host.folder / 'records.db'}") as store:
        return (await store.counts()).per_value["site_id"]


def test_a_lost_spool_is_replaced_without_the_lake_and_released_records_stay_counted(tmp_path: Path) -> None:
    host = Host(tmp_path, [job(1), replace(job(2), meta={"site_id": ("a", "b")})])
    host.run("lake", "run")
    for file in tmp_path.glob("spool.db*"):
        file.unlink()
    assert "created    without a backup" in host.run("restore", "--without-backup").output
    assert anyio.run(counts_of_sites, host) == {"a/b c": 1, "a": 1, "b": 1}


def test_a_site_s_records_move_at_an_age_of_their_own(tmp_path: Path) -> None:
    host = Host(tmp_path, keep_months=None, sites={"KIT": {"keep_months": 6}, "a/b c": {"keep_months": 1_100}})
    assert "would keep 6 months of site KIT" in host.run("lake", "run", "--dry-run").output
    host.run("lake", "run")
    stored = ids(host.run("records", "--output", "ndjson").stdout)
    assert stored == [each.record_id for number, each in enumerate(RECORDS) if number % 3]
    both = host.run("records", "--include", "lake", "--output", "ndjson").stdout
    assert ids(both) == [each.record_id for each in RECORDS]


def test_a_running_daemon_moves_them_by_itself_and_on_demand(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {"lake": {"enabled": True, "name": "kit", "keep_months": 6}}) as daemon:
        Client(daemon.url).add_all(RECORDS)
        config = str(tmp_path / "auditord.json")
        done = CliRunner().invoke(auditord, ["lake", "run", "--config", config])
        assert done.exit_code == 0, done.output
        metrics = urlopen(f"{daemon.url}/metrics").read().decode()  # noqa: S310 a test's own daemon
        assert "auditord_lake_released_records 90.0" in metrics
        (group,) = Client(daemon.url).aggregate(AggregateQuery(usage=(ComponentUsage("Cores"),))).groups
        assert (group.records, group.usage[0].sums.amount) == (90, CORES)
        assert Client(daemon.url).get("job-7") == RECORDS[7]
        assert listed(daemon.url, "?limit=40") == []
        assert listed(daemon.url, "?limit=40&include=lake") == [each.record_id for each in RECORDS]
        assert listed(daemon.url, "?limit=40&include=lake") == [each.record_id for each in RECORDS]  # its former name
        shown = ("records", "--output", "ndjson", "--include", "lake", "--url", daemon.url, "--config", config)
        assert ids(CliRunner().invoke(auditord, shown).stdout) == [each.record_id for each in RECORDS]
        pages_of_the_lake(daemon.url)


def pages_of_the_lake(url: str) -> None:
    """The page offers the lake, shows its records on request, keeps that while one leafs, and shows a single record."""
    first = page(url, "/jobs")
    assert 'name="include" value="lake">' in first
    assert "job-89" not in first
    second = page(url, "/jobs?site=KIT&include=lake")
    assert 'value="lake" checked>' in second
    assert re.findall(r'href="/jobs/(job-\d+)"', second) == [each.record_id for each in RECORDS[87::-3]]
    following = re.search(r'href="(/jobs\?[^"]*cursor=[^"]*)"', page(url, "/jobs?include=lake"))
    assert following
    third = page(url, following[1].replace("&amp;", "&"))
    assert re.findall(r'href="/jobs/(job-\d+)"', third) == [each.record_id for each in RECORDS[39::-1]]
    assert 'href="/jobs?include=lake"' in third
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


def refusal(daemon: TestDaemon, path: str) -> tuple[int, str]:
    """The status and the text of an answer that is an error."""
    with pytest.raises(HTTPError) as refused:
        daemon.get(path)
    with refused.value as answer:
        return answer.code, unescape(answer.read().decode())


def test_runs_sums_and_verify_name_the_same_fault_of_the_lake(tmp_path: Path) -> None:
    def run(command: str, *, fails: bool) -> str:
        done = CliRunner().invoke(auditord, ["lake", command, "--config", str(tmp_path / "auditord.json")])
        assert done.exit_code == fails, done.output
        return f"{done.output}{done.exception}"

    section = {"enabled": True, "name": "kit", "keep_months": 6, "warehouse": str(tmp_path / "lake")}
    hour, now = timedelta(hours=1), datetime.now(UTC)
    new = [replace(RECORDS[n], record_id=f"new-{n}", start_time=now - hour, stop_time=now) for n in range(3)]
    by_user = "by=meta:user_id&usage=Cores&runtime[gt]=60"
    with running_daemon(tmp_path, {"lake": {**section, "schedule": "0 0 1 1 *"}}) as daemon:
        Client(daemon.url).add_all([*RECORDS, *new])
        run("run", fails=False)
        assert "90 of 90 released records" in run("verify", fails=False)
        with closing(lake_in(tmp_path / "lake")) as table, table.load() as theirs:
            delete(theirs, "new-1")
        for command in ("run", "verify"):
            assert "has 92 rows of kit, which has written 93: another program has deleted 1" in run(command, fails=True)
        status, text = refusal(daemon, "/api/v1/aggregates?source=lake")
        assert (status, "lake (table auditord.lake) has fewer or more rows" in text) == (503, True), text
        assert "run `auditord lake verify`" in text

        file = next(tmp_path.glob("lake/**/*2021-02/site=KIT/*.parquet"))
        file.write_bytes(file.read_bytes()[:-9])
        assert file.name in run("verify", fails=True)
        for path in (f"/api/v1/aggregates?{by_user}", "/record/job-18", "/jobs/job-18"):
            status, text = refusal(daemon, path)
            assert status == (500 if path.startswith("/record/") else 503)
            assert "a data file of the lake (table auditord.lake) is damaged" in text
            assert "run `auditord lake verify`" in text
            assert str(tmp_path) not in text
