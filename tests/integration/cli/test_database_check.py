"""``auditord database check``, and ``auditord config check --connect``."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.errors import SchemaMismatch, StoreMisconfigured
from auditord.testing.daemon import running_daemon
from tests.integration.test_database import damage

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command line with a configuration."""

    def invoke(*words: str, **sections: Any) -> Result:  # Any: a configuration's sections
        file = tmp_path / "auditord.json"
        file.write_text(json.dumps({"state_dir": str(tmp_path / "state"), **sections}))
        return CliRunner(env={"HOME": str(tmp_path)}).invoke(auditord, [*words, "--config", str(file)])

    return invoke


def test_what_is_not_there_yet_is_no_fault(run: Run, tmp_path: Path) -> None:
    done = run("database", "check")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"missing    {tmp_path}/state/spool.db: the daemon creates it",
        f"missing    {tmp_path}/state/records.db: the daemon creates it",
    ]
    assert "does not exist yet" in run("config", "check", "--connect").output


def test_a_damaged_file_is_named_with_its_remedy(run: Run, tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}):
        whole = run("database", "check")
    assert (whole.exit_code, whole.output.count("ok  ")) == (0, 2)
    damage(tmp_path / "state/spool.db")
    done = run("database", "check")
    assert done.exit_code == 1
    assert f"damaged    {tmp_path}/state/spool.db" in done.output
    assert "earliest_datetime (nothing counts twice). The quarantine is lost, and records that" in done.output
    assert f"ok         {tmp_path}/state/records.db" in done.output


def test_a_foreign_trigger_is_named_and_no_daemon_starts_with_it(run: Run, tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}):
        pass
    with closing(sqlite3.connect(tmp_path / "state/records.db")) as connection:
        connection.execute("CREATE TRIGGER spy AFTER INSERT ON records BEGIN DELETE FROM records; END")
    done = run("database", "check")
    assert done.exit_code == 1
    assert f"changed    {tmp_path}/state/records.db\n           the trigger spy is foreign\n" in done.output
    assert isinstance(run("backup", str(tmp_path / "b")).exception, SchemaMismatch)
    with pytest.raises(SchemaMismatch, match="the trigger spy is foreign"), running_daemon(tmp_path, {}):
        pass


def test_connecting_says_what_the_daemon_would_meet(run: Run, tmp_path: Path, postgres_url: str) -> None:
    with running_daemon(tmp_path, {}):
        assert "the record store answers: 0 records" in run("config", "check", "--connect").output
    assert (
        "the record store answers: 0 records" in run("config", "check", "--connect", store={"url": postgres_url}).output
    )
    elsewhere = run("config", "check", "--connect", store={"url": f"{postgres_url}_no_such"})
    assert isinstance(elsewhere.exception, StoreMisconfigured)
    assert "create it with createdb" in str(elsewhere.exception)
