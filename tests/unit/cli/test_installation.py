"""The configuration of commands that only look: without instances, and otherwise as the daemon has it."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from auditord.cli.installation import load_configuration, load_installation
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError

FILES = {"kind": "files", "folder": "/srv/dropped"}


def loaded(folder: Path, sections: dict[str, Any]) -> Configuration:
    """Load what a file says; without its instances it is what the daemon has."""
    file = folder / "auditord.json"
    file.write_text(json.dumps({"state_dir": str(folder / "state"), **sections}))
    with click.Context(click.Command("top")) as context:
        context.meta["auditord.config"] = (file,)
        return load_configuration()


def test_all_but_instances_is_as_the_daemon_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("hunter2")
    (tmp_path / "password").chmod(0o600)
    store = {"url": "postgresql://auditor@db.example.org/auditor", "password": f"file:{tmp_path}/password"}
    sections = {"store": store, "ui": {"timezone": "Europe/Berlin"}, "collectors": {"files": FILES}}
    quick = loaded(tmp_path, sections)
    monkeypatch.setenv("AUDITORD_CONFIG", str(tmp_path / "auditord.json"))
    with click.Context(click.Command("run")):
        of_daemon = load_installation().configuration
        by_variable = load_configuration()
    assert quick == by_variable
    assert quick.store.password is not None
    assert quick.store.password.get_secret_value() == "hunter2"
    assert quick.model_dump(exclude={"collectors"}) == of_daemon.model_dump(exclude={"collectors"})
    assert (set(quick.collectors), set(of_daemon.collectors)) == (set(), {"files"})


def test_variables_of_the_environment_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDITORD_UI__TIMEZONE", "Europe/Berlin")
    monkeypatch.setenv("AUDITORD_COLLECTORS__FILES__FOLDER", "/srv/elsewhere")
    found = loaded(tmp_path, {"collectors": {"files": FILES}})
    assert found.ui.timezone == "Europe/Berlin"


def test_a_fault_of_a_collector_stops_none_of_them_and_any_other_is_told_as_ever(tmp_path: Path) -> None:
    assert loaded(tmp_path, {"collectors": {"files": {"kind": "flies"}}}).collectors == {}
    with pytest.raises(ConfigurationError, match=r"auditord\.json:1: ui\.timezon.*did you mean 'timezone'"):
        loaded(tmp_path, {"ui": {"timezon": "UTC"}})
