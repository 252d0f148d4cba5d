"""Every command that prints a result prints it as JSON as well; the others are named here, with the reason."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord

WITHOUT: Final = {
    "apel publish": "messages go to a broker",
    "apel republish": "messages go to a broker",
    "apel show": "shows messages as they are signed",
    "archive export": "writes files",
    "archive restore": "writes records",
    "config import": "writes YAML",
    "config schema": "is JSON",
    "database adopt": "asks",
    "database check": "has an exit code, and remedies in sentences",
    "database copy": "writes records",
    "database migrate": "writes tables",
    "demo": "serves",
    "import auditor": "writes records",
    "init": "asks",
    "manual": "is text to read",
    "new-plugin": "writes files",
    "open-records": "auditord records --open --output json",
    "quarantine discard": "asks",
    "quarantine show": "is JSON",
    "records close": "asks",
    "records correct": "asks",
    "records delete": "asks",
    "restore": "writes files",
    "run": "serves",
    "token revoke": "changes a file",
    "waldur diagnose": "has an exit code, and remedies in sentences",
    "waldur explain": "has cells with tabs between them",
    "waldur load-history": "writes to Waldur",
    "waldur report": "writes to Waldur",
}


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
    assert "json" in formats[0] if formats else name in WITHOUT, "give it terminal.output_option"
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
    assert (refused.exit_code, "leave --output out" in refused.output) == (2, True)


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
