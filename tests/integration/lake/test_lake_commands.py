"""The lake of a daemon: synced by the clock and on demand, shown by commands and metrics."""

import json
import re
from contextlib import closing
from pathlib import Path
from time import sleep

import msgspec
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.client import Client
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import Order, SortField
from tests.integration.lake.host import RECORDS
from tests.integration.lake.killed import lake_in
from tests.integration.lake.lake_rows import rows


def assert_reports_agree(folder: Path, daemon: TestDaemon) -> None:
    """That usage of the lake is that of the store, read here and at the daemon, and that its state is named."""
    options = ["--by", "site", "--output", "csv", "--from", "2000-01-01", "--to", "2100-01-01", "--bin", "year"]
    of_store, of_lake, asked = [
        CliRunner().invoke(auditord, ["report", "usage", *options, *more, "--config", str(folder / "auditord.json")])
        for more in ([], ["--source", "lake"], ["--source", "lake", "--url", daemon.url])
    ]
    assert len(of_store.stdout.splitlines()) > 2, of_store.output
    assert (of_lake.stdout, asked.stdout) == (of_store.stdout, of_store.stdout), of_lake.output + asked.output
    snapshot = json.loads(daemon.get("/api/v1/aggregates?source=lake"))["snapshot"]
    for each in (of_lake, asked):
        assert f"as of the lake's snapshot {snapshot['id']} of {snapshot['committed_at']}" in each.stderr
    assert "the configuration has no lake" in without_lake(folder, "report", "usage").output


def assert_listings_agree(folder: Path, daemon: TestDaemon) -> None:
    """That records of the lake are those of the store, byte for byte, read here and at the daemon."""
    options = ["--output", "ndjson", "--sort", "start_time", "--descending", "--started-since", "2000-01-01"]
    of_store, of_lake, asked = [
        CliRunner().invoke(auditord, ["--config", str(folder / "auditord.json"), "records", *options, *more])
        for more in ([], ["--source", "lake"], ["--source", "lake", "--url", daemon.url])
    ]
    assert len(of_store.stdout.splitlines()) > 2, of_store.output
    assert (of_lake.stdout, asked.stdout) == (of_store.stdout, of_store.stdout), of_lake.output + asked.output
    both = ["records", "--source", "lake", "--include", "lake", "--config", str(folder / "auditord.json")]
    assert CliRunner().invoke(auditord, both).exit_code == 2
    assert "the configuration has no lake" in without_lake(folder, "records").output
    client, query = Client(daemon.url), RecordQuery(order=Order(SortField.START))
    with client.stream(query) as stored, client.stream(query, source="lake") as synced:
        assert list(synced) == list(stored)


def assert_pages_agree(daemon: TestDaemon) -> None:
    """That Usage shows the same of both, says which state of the lake it is, and leads to no record of the store."""
    view = "measure=core-hours&by=site&bin=year&from=2000-01-01&to=2100-01-01"
    of_store, of_lake = [daemon.get(f"/usage.csv?{view}&source={source}") for source in ("store", "lake")]
    assert len(of_store.splitlines()) > 2
    assert of_lake == of_store
    store, lake = [daemon.get(f"/usage?{view}&source={source}").decode() for source in ("store", "lake")]
    assert "snapshot" not in store
    assert re.search(r"As of the lake&#39;s snapshot \d+ of \d", lake)
    assert "--source lake" in lake
    assert "source=lake" in lake
    assert ("/jobs?" in store, "/jobs?" in lake) == (True, False)


def without_lake(folder: Path, *command: str) -> Result:
    (folder / "other.json").write_text("{}")
    arguments = [*command, "--source", "lake", "--config", str(folder / "other.json")]
    return CliRunner().invoke(auditord, arguments)


def test_a_daemon_syncs_its_records_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def command(*arguments: str, exit_code: int = 0) -> Result:
        done = CliRunner().invoke(auditord, ["lake", *arguments, "--config", str(tmp_path / "auditord.json")])
        assert done.exit_code == exit_code, done.output
        return done

    section = {"enabled": True, "name": "kit", "warehouse": str(tmp_path / "lake"), "schedule": "0 0 1 1 *"}
    with running_daemon(tmp_path, {"lake": section}) as daemon:
        Client(daemon.url).add_all(RECORDS)
        command("run")
        assert re.search(r"would sync 0 changes to file:///.* as kit", command("run", "--dry-run").output)
        metrics = daemon.get("/metrics").decode()
        assert "auditord_lake_records 90.0" in metrics
        assert re.search(r"auditord_lake_complete_timestamp_seconds 1\.\d+e\+09", metrics)
        shown = command("status")
        assert shown.stdout.splitlines()[0].split() == ["daemon", "feed", "position", "records"]
        assert re.search(r"^kit ", shown.stdout, re.MULTILINE)
        assert re.search(r"last commit [\dT:.-]+Z$", shown.stderr, re.MULTILINE)
        status = json.loads(command("status", "--output", "json").stdout)
        assert (status["records"], status["waiting"], status["daemons"]) == (90, 0, {"kit": 90})
        assert_reports_agree(tmp_path, daemon)
        assert_listings_agree(tmp_path, daemon)
        assert_pages_agree(daemon)
    with closing(lake_in(tmp_path / "lake")) as table:
        assert len(rows(table, "kit")) == 90
    assert "set it to false first" in command("end", "--yes", exit_code=2).output
    with running_daemon(tmp_path, {}) as daemon:
        Client(daemon.url).add(msgspec.structs.replace(RECORDS[0], record_id="later"))
    with running_daemon(tmp_path, {}):
        while "1 change waits for a lake that is not enabled" not in caplog.text:
            sleep(0.02)  # it looks once it has started
    assert "1 pending change discarded" in command("end", "--yes").output
    assert "0 pending changes discarded" in command("end", "--yes").output
    (tmp_path / "auditord.json").write_text(json.dumps({"state_dir": str(tmp_path / "state"), "lake": section}))
    assert "90 records were removed" in command("forget", "kit").output
    assert json.loads(command("status", "--output", "json").stdout)["daemons"] == {}
