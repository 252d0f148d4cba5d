"""``auditord status --all``."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.testing.daemon import running_daemon


def status(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(auditord, ["--config", str(folder / "auditord.json"), "status", "--all", *words])


def test_every_daemon_of_a_database_is_listed(tmp_path: Path, postgres_url: str) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    sections = {"store": {"url": postgres_url}}
    with running_daemon(folders[0], sections):
        with running_daemon(folders[1], sections) as other:
            other.get("/health_check")
        listed = json.loads(status(folders[0], "--output", "json").output)
        text = status(folders[0]).output
    assert {each["state_dir"]: each["state"] for each in listed} == {
        str(folders[0] / "state"): "running",
        str(folders[1] / "state"): "ended",
    }
    assert "running" in text
    assert "ended" in text


def test_a_store_without_daemons_says_so(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "auditord.json").write_text(json.dumps({"state_dir": str(tmp_path), "store": {"url": postgres_url}}))
    assert "No daemon has registered itself" in status(tmp_path).output
