"""Every command that prints data prints it as JSON as well; the others are named here, with the reason."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from tests.terminal import on_terminal

WITHOUT: Final = {
    "apel publish": "sends messages; --dry-run prints them as they are signed",
    "apel republish": "sends messages; --dry-run prints them as they are signed",
    "config import": "prints a configuration in YAML, with remarks",
    "demo": "serves",
    "init": "asks",
    "manual": "is text to read",
    "new-plugin": "writes files",
    "run": "serves",
    "waldur load-history": "sends amounts; --dry-run prints the requests as they are sent",
    "waldur report": "sends amounts; --dry-run prints the requests as they are sent",
}
"""Commands that print nothing that a program would read, and the reason."""


def leaves(command: click.Command, context: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its words; ``records`` is one that works alone as well."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, click.Context(below, parent=context, info_name=name), f"{path} {name}".strip())


COMMANDS: Final = dict(leaves(auditord, click.Context(auditord)))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_that_prints_a_result_prints_json(name: str) -> None:
    formats = [
        list(option.type.choices)
        for option in COMMANDS[name].params
        if "--output" in option.opts and isinstance(option.type, click.Choice)
    ]
    assert "json" in formats[0] if formats else name in WITHOUT, "give it terminal.output_option, or json_option"
    assert not (formats and name in WITHOUT)


def test_no_command_is_excused_that_is_not_there() -> None:
    assert WITHOUT.keys() <= COMMANDS.keys()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration whose collector finds one job, and a line that is none."""
    (tmp_path / "dropped").mkdir()
    good = '{"record_id":"a","start_time":"2026-01-01T00:00:00Z","stop_time":"2026-01-01T01:00:00Z","components":[]}'
    (tmp_path / "dropped/a.ndjson").write_text(f"{good}\nnothing\n")
    file = tmp_path / "a.yml"
    collector = {"kind": "files", "folder": str(tmp_path / "dropped"), "settle": "0s"}
    file.write_text(json.dumps({"state_dir": str(tmp_path / "state"), "collectors": {"files": collector}}))
    return file


def call(file: Path, *words: str) -> Result:
    return CliRunner().invoke(auditord, [*words, "--config", str(file)])


def test_reports_of_runs_and_of_retries(site: Path) -> None:
    collected = call(site, "collect", "files", "--output", "json")
    report = json.loads(collected.stdout)
    assert (report["task"], report["records"], report["quarantined"], report["error"]) == ("files", 1, 1, None)
    again = json.loads(call(site, "trigger", "files", "--output", "json").stdout)
    assert (again["records"], again["quarantined"]) == (0, 0)
    retried = call(site, "quarantine", "retry", "--all", "--output", "json")
    found = json.loads(retried.stdout)
    assert (retried.exit_code, found["settled"], list(found["failed"])) == (1, 0, ["1"])
    refused = call(site, "collect", "files", "--dry-run", "--output", "json")
    assert (refused.exit_code, "remove --output" in refused.output) == (2, True)


def test_a_check_of_the_configuration(site: Path, tmp_path: Path) -> None:
    assert json.loads(call(site, "config", "check", "--output", "json").stdout) == {
        "fine": True,
        "faults": [],
        "remarks": [],
    }
    (tmp_path / "b.yml").write_text("api: {listen: nowhere}\nspool: 1\n")
    checked = call(tmp_path / "b.yml", "config", "check", "--output", "json")
    found = json.loads(checked.stdout)
    assert (checked.exit_code, found["fine"], len(found["faults"]) > 1) == (1, False, True)


def test_a_token(site: Path) -> None:
    made = json.loads(call(site, "token", "create", "alice", "--role", "reader", "--output", "json").stdout)
    (listed,) = json.loads(call(site, "token", "list", "--output", "json").stdout)
    assert made.pop("token")
    assert listed == made
    revoked = json.loads(call(site, "token", "revoke", made["id"], "--output", "json").stdout)
    assert revoked == {"revoked": [made["id"]]}


def test_quarantine(site: Path) -> None:
    call(site, "collect", "files")
    (listed,) = json.loads(call(site, "quarantine", "list", "--output", "json").stdout)
    shown = json.loads(call(site, "quarantine", "show", str(listed["number"]), "--output", "json").stdout)
    assert (shown["number"], shown["task"]) == (1, "files")
    asked = call(site, "quarantine", "discard", "1", "--output", "json")
    assert (asked.exit_code, asked.stdout, "give --yes" in asked.stderr) == (2, "", True)
    assert json.loads(call(site, "quarantine", "discard", "1", "--yes", "--output", "json").stdout) == {"discarded": 1}


def test_changes_of_records(site: Path) -> None:
    call(site, "collect", "files")
    why = ("a", "--reason", "a test", "--yes", "--output", "json")
    tried = json.loads(call(site, "records", "correct", "--meta", "group_id=g", *why, "--dry-run").stdout)
    assert (tried["before"][0]["record_id"], tried["after"][0]["meta"], tried["outcomes"]) == (
        "a", {"group_id": ["g"]}, [],
    )  # fmt: skip
    done = json.loads(call(site, "records", "correct", "--meta", "group_id=g", *why).stdout)
    assert done["outcomes"] == [{"record_id": "a", "outcome": "done", "detail": None}]
    refused = call(site, "records", "close", "--runtime", "1h", *why)
    assert (refused.exit_code, json.loads(refused.stdout)["outcomes"][0]["outcome"]) == (1, "refused")
    deleted = json.loads(call(site, "records", "delete", *why).stdout)
    assert (deleted["before"], deleted["outcomes"][0]["outcome"]) == (done["after"], "done")


def test_files_of_the_state_folder(site: Path) -> None:
    call(site, "collect", "files")
    state = site.parent / "state"
    assert json.loads(call(site, "database", "check", "--output", "json").stdout) == {
        "database": None,
        "files": [
            {"path": str(state / name), "state": "ok", "findings": [], "remedy": None}
            for name in ("spool.db", "records.db")
        ],
    }
    copied = call(site, "database", "copy", "--to", f"sqlite://{site.parent}/other.db", "--output", "json")
    assert json.loads(copied.stdout)["records"] == 1
    assert json.loads(call(site, "database", "adopt", "--yes", "--output", "json").stdout) == {
        "collect_again": ["files"]
    }


def test_a_bar_is_for_the_terminal_alone(site: Path) -> None:
    call(site, "collect", "files")
    command = [sys.executable, "-m", "auditord", "backup", str(site.parent / "backups"), "--output", "json"]
    screen, out = on_terminal([*command, "--config", str(site)], only_errors=True)
    assert (json.loads(out)["store"]["records"], "100%" in screen, "{" in screen) == (1, True, False)


def test_a_restore(site: Path) -> None:
    call(site, "collect", "files")
    made = json.loads(call(site, "backup", str(site.parent / "backups"), "--output", "json").stdout)
    restored = json.loads(call(site, "restore", "--force", "--output", "json").stdout)
    assert (restored["backup"], restored["records"], restored["behind"]) == (made["folder"], 1, None)
    assert list(restored["collect_since"]) == ["files"]
    (site.parent / "state/spool.db").unlink()
    anew = json.loads(call(site, "restore", "--without-backup", "--output", "json").stdout)
    assert (anew["backup"], anew["behind"]) == (None, "spool")
