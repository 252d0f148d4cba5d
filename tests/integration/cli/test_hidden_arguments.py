"""Secrets in the arguments and variables of programs: no command and no log shows them, and each says so."""

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.config.loading import load
from auditord.config.shown import HIDDEN_REMARK, compare
from auditord.hooks import load_hooks
from auditord_hookspecs.arguments import HIDDEN

SACCT = """#!/bin/sh
echo "sacct: error: unrecognized option '$1', nor --token SECRET" >&2
exit 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sacct").write_text(SACCT)
    (tmp_path / "sacct").chmod(0o755)
    path = tmp_path / "auditord.yml"
    path.write_text(configuration(tmp_path, "SECRET"))
    return path


def configuration(folder: Path, secret: str) -> str:
    sacct = [str(folder / "sacct"), f"--password={secret} and {secret}", "--token", secret]
    environment = {"DB_PASSWORD": secret, "PLAIN": "shown"}
    slurm = {"kind": "slurm", "sacct": sacct, "environment": environment, "sites": [{"name": "s"}]}
    commands = [f"scontrol --api-key {secret} update priority={{priority}}", f"env PGPASSWORD='{secret} x' psql"]
    priority = {"kind": "priority", "group_mapping": {"g": ["p"]}, "commands": commands}
    state = str(folder / "state")
    return json.dumps({"state_dir": state, "collectors": {"slurm": slurm}, "plugins": {"fair": priority}})


@pytest.mark.parametrize(
    "words",
    [
        ("config", "show"),
        ("config", "show", "--output", "json"),
        ("doctor", "--all"),
        ("doctor", "--output", "json"),
        ("collect", "slurm", "--from", "2026-01-01"),
        ("collect", "slurm", "--from", "2026-01-01", "--dry-run"),
    ],
    ids=" ".join,
)
def test_no_command_shows_a_secret_in_arguments(
    file: Path, words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    done = CliRunner().invoke(auditord, ["--config", str(file), *words])
    assert not isinstance(done.exception, (TypeError, ValueError)), done.output
    assert HIDDEN in done.output
    assert "SECRET" not in done.output + caplog.text + str(done.exception)
    if words in {("config", "show"), ("doctor", "--all")}:
        assert HIDDEN_REMARK in done.output
    if words[1:] == ("show",):
        assert "PLAIN: shown" in done.output


def test_a_comparison_with_the_running_daemon_shows_none(file: Path) -> None:
    kinds = load_hooks([]).kinds
    before = load([file], kinds, {}, lambda _: None)
    file.write_text(configuration(file.parent, "SECRET2").replace('"PLAIN": "shown"', '"PLAIN": "other"'))
    changes = compare(before, load([file], kinds, {}, lambda _: None))
    assert {each.option for each in changes.differences} == {"collectors.slurm.environment.PLAIN", "plugins.fair"}
    assert "SECRET" not in repr(changes)
