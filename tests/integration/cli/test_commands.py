"""The command line in this process, with the hook modules that are really installed."""

import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from auditord import __version__, hooks
from auditord.cli import auditord, main
from auditord.cli.frame import Commands, Registered, config_paths

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line with an empty home and an empty environment."""
    monkeypatch.chdir(tmp_path)
    return lambda *words, **environ: CliRunner(env={"HOME": str(tmp_path), **environ}).invoke(
        auditord, [str(word) for word in words], prog_name="auditord"
    )


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "a.yml"
        path.write_text(text)
        return path

    return write


def fails(arguments: Sequence[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run ``main`` itself; what it printed on standard error before it ended with exit code 1."""
    monkeypatch.setattr("sys.argv", ["auditord", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    return capsys.readouterr().err


def test_the_version_names_what_it_is_made_of(run: Run) -> None:
    lines = run("--version").output.splitlines()
    assert lines[0] == f"auditord {__version__}"
    assert {"Python", "aiohttp", "pluggy", "pydantic-settings"} <= {line.split()[0] for line in lines}
    assert not any(line.startswith(("pytest", "mypy")) for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collect", "slrum"], "no enabled collector 'slrum'; there are: slurm"),
        (["audit", "slrum"], "no enabled collector 'slrum'; there are: slurm"),
        (["trigger", "slrum"], "no enabled collector or plugin 'slrum'; there are: slurm, nightly"),
        (["trigger", "idle"], "no enabled collector or plugin 'idle'; there are: slurm, nightly"),
        (["quarantine", "discard", "1", "--yes"], "there is no record store, so there is nothing to change"),
    ],
)
def test_a_mistyped_name_creates_no_store(
    run: Run, written: Callable[[str], Path], tmp_path: Path, words: Sequence[str], message: str
) -> None:
    plugins = {"nightly": {"kind": "open_records"}, "idle": {"kind": "open_records", "enabled": False}}
    sections = {"collectors": {"slurm": {"kind": "files", "folder": str(tmp_path)}}, "plugins": plugins}
    config = written(json.dumps({"state_dir": str(tmp_path / "state"), **sections}))
    failed = run("--config", config, *words)
    assert (failed.exit_code, message in str(failed.exception)) == (1, True), failed.exception
    assert not (tmp_path / "state").exists()


def test_wrong_usage_ends_with_2(run: Run) -> None:
    assert run("nonsense").exit_code == 2
    assert run("config", "show", "--output", "xml").exit_code == 2


def test_help_lists_every_command_as_its_own_help_begins(run: Run) -> None:
    listed = run("--help").output
    for name in auditord.list_commands(click.Context(auditord)):
        assert name in listed
        assert run(name, "--help").exit_code == 0
        assert "--config FILE" in run(name, "--help").output


@click.group("outer")
def outer_command() -> None: ...


@outer_command.command("inner")
@click.option("--other")
def inner_command(other: str | None) -> None:
    click.echo([*(str(path) for path in config_paths() or ()), other])


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["outer", "inner"], []),
        (["--config", "a", "outer", "inner"], ["a"]),
        (["outer", "--config", "a", "inner"], ["a"]),
        (["outer", "inner", "--config", "a"], ["a"]),
        (["--config", "a", "outer", "inner", "--config", "b", "--config", "c"], ["a", "b", "c"]),
    ],
)
def test_config_may_stand_before_and_after_a_command(
    words: list[str], files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("acme_outer")
    setattr(module, "outer_command", outer_command)  # noqa: B010 a module has no such attribute for the type checker
    monkeypatch.setitem(sys.modules, "acme_outer", module)
    group = Commands("auditord", registered=[Registered("outer", "acme_outer", "A test.")])
    result = CliRunner().invoke(group, words)
    assert result.output.strip() == str([*files, None])


CREDENTIAL = "state_dir: {}\nsenders: {{far: {{kind: remote, url: http://127.0.0.1:9, token: credential:far}}}}\n"
"""A secret that only the service can read, as etc/auditord.service has it."""


def test_commands_that_use_no_secret_need_none(run: Run, written: Callable[[str], Path], tmp_path: Path) -> None:
    file = written(CREDENTIAL.format(tmp_path / "state"))
    assert "not running, state in" in run("status", "--config", file).output
    shown = run("config", "show", "--config", file)
    assert (shown.exit_code, 'token: "**********"' in shown.output) == (0, True)


def test_check_says_which_secret_it_could_not_read(run: Run, written: Callable[[str], Path], tmp_path: Path) -> None:
    file = written(CREDENTIAL.format(tmp_path / "state"))
    checked = run("config", "check", "--config", file)
    assert checked.exit_code == 0
    assert (
        "remark: not checked: 'credential:far' is only available in a unit with LoadCredential=far:" in checked.output
    )
    inside = run("config", "check", "--config", file, CREDENTIALS_DIRECTORY=str(tmp_path))
    assert inside.exit_code == 1


def test_the_daemon_needs_every_secret(
    written: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = written(CREDENTIAL.format(tmp_path / "state"))
    error = fails(["run", "--config", file], monkeypatch, capsys)
    assert "senders.far.token: 'credential:far' is only available in a unit" in error


def test_check_says_what_there_is(run: Run, written: Callable[[str], Path]) -> None:
    path = written("collectors: {a: {kind: slurm}}\nstate_dir: /srv/a\n")
    result = run("config", "check", "--config", path)
    counts = "1 collector"
    assert (result.exit_code, result.stdout) == (0, f"the configuration is fine: {counts}; state in /srv/a\n")
    assert result.stderr.startswith("remark: collectors.a: sites is missing")


def test_a_broken_configuration_is_one_clear_message(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("collectors:\n  a:\n    kind: slurm\n    intervall: 5m\n")
    text = fails(["config", "check", "--config", path], monkeypatch, capsys)
    assert text.startswith(f"auditord: the configuration cannot be used: {path}:4: collectors.a.intervall: ")
    assert "did you mean 'interval'?" in text
    assert "Traceback" not in text


def test_the_schema_holds_every_installed_kind(run: Run) -> None:
    schema = json.loads(run("config", "schema").output)
    kinds = {
        each["properties"].get("kind", {}).get("const") for each in schema["$defs"].values() if "properties" in each
    }
    assert {"slurm", "local", "open_records"} <= kinds
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["ApiSection"]["properties"]["listen"]["default"] == ["127.0.0.1:8000", "[::1]:8000"]


def test_show_names_each_values_source_and_masks_secrets(run: Run, written: Callable[[str], Path]) -> None:
    path = written("api:\n  max_body: 1MiB\nstore: {url: 'postgresql://me:geheim@host/x'}\n")
    output = run("config", "show", "--config", path, AUDITORD_SHUTDOWN__GRACE="1m").output
    assert f"  max_body: 1MiB  # {path}:2\n" in output
    assert "  grace: 1m  # environment variable AUDITORD_SHUTDOWN__GRACE\n" in output
    assert "  enabled: true  # default\n" in output
    assert "geheim" not in output


def test_what_show_prints_can_be_loaded_and_shows_the_same(run: Run, written: Callable[[str], Path]) -> None:
    environ = {"AUDITORD_COLLECTORS__HPC__KIND": "slurm", "AUDITORD_COLLECTORS__HPC__INTERVAL": "90s"}
    shown = json.loads(run("config", "show", "--output", "json", **environ).output)
    path = written(run("config", "show", **environ).output)
    again = json.loads(run("config", "show", "--output", "json", "--config", path).output)
    assert again["configuration"] == shown["configuration"]
    assert again["sources"]["api.enabled"].startswith(f"{path}:")
    assert shown["sources"]["api.enabled"] == "default"


def test_hooks_are_listed(run: Run) -> None:
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(run("hooks", "--output", "json").output)}
    assert rows["secrets"] == {
        "name": "secrets",
        "module": "auditord_builtin.secrets",
        "distribution": "auditord",
        "version": __version__,
        "hooks": ["auditord_resolve_secret"],
        "contract": None,
        "disabled": False,
    }
    (line,) = [line for line in run("hooks").output.splitlines() if line.startswith("secrets ")]
    assert line.split() == ["secrets", "auditord_builtin.secrets", "auditord", __version__, "auditord_resolve_secret"]


def test_a_disabled_module_is_listed_as_such(run: Run, written: Callable[[str], Path]) -> None:
    path = written("hooks: {disabled: [slurm]}\ncollectors: {a: {kind: slurm}}\n")
    rows = json.loads(run("hooks", "--output", "json", "--config", path).output)
    assert [row["name"] for row in rows if row["disabled"]] == ["slurm"]
    assert "(disabled)" in run("hooks", "--config", path).output


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a hook module ``acme_NAME`` with this code, beside the built-in ones."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])

    def install(name: str, code: str) -> None:
        (tmp_path / f"acme_{name}.py").write_text(code)
        entry = EntryPoint(name, f"acme_{name}", "auditord.hooks")
        described = hooks.HookModule(name, f"acme_{name}", "acme", "1.2")
        found = [*hooks.find_entries(), hooks.HookEntry(described, entry.load)]
        monkeypatch.setattr("auditord.hooks.loading.find_entries", lambda: found)

    return install


@pytest.fixture
def broken_module(install: Callable[[str, str], None]) -> None:
    install("broken", "import sys\n\nsys.exit('no printer')\n")


PAGES = """\
from auditord_hookspecs import hookimpl
{}
@hookimpl
def auditord_panels():
    return []
"""


@pytest.mark.parametrize(
    ("name", "declared", "remarks"), [("bare", "", 1), ("declared", 'AUDITORD_CONTRACT = "1.0"', 0)]
)
def test_a_module_without_a_contract_is_remarked_on(
    run: Run, install: Callable[[str, str], None], name: str, declared: str, remarks: int
) -> None:
    install(name, PAGES.format(declared))
    said = f"remark: acme_{name} (entry point {name} of acme 1.2) declares no AUDITORD_CONTRACT, and counts as "
    done = run("hooks")
    assert (done.exit_code, done.stderr.count(said)) == (0, remarks)
    assert done.stderr.count("remark: ") == remarks


@pytest.mark.usefixtures("broken_module")
def test_a_broken_module_is_a_fault_and_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--help").exit_code == 0
    assert run("config", "check", AUDITORD_HOOKS__DISABLED='["broken"]').exit_code == 0
    for words in (["config", "check"], ["hooks"], ["config", "schema"]):
        text = fails(words, monkeypatch, capsys)
        assert "acme_broken (entry point broken of acme 1.2) cannot be imported: SystemExit: no printer" in text
        assert "acme_broken.py:3)" in text
        assert "hooks.disabled" in text
    assert {row["name"] for row in json.loads(run("hooks", "--output", "json").stdout)} >= {"slurm", "secrets"}


def test_hooks_are_listed_even_if_the_configuration_is_no_yaml(run: Run, written: Callable[[str], Path]) -> None:
    path = written("a: [\n")
    result = run("hooks", "--config", path)
    assert "auditord_builtin.secrets" in result.stdout
    assert f"{path}:2: not YAML" in str(result.exception)


@pytest.mark.parametrize(
    "words",
    [
        ["apel", "publish", "--dry-run"],
        ["apel", "show"],
        ["report", "usage"],
        ["report", "efficiency"],
        ["records"],
        ["records", "--differences"],
        ["records", "history", "x"],
        ["records", "delete", "--reason", "x", "--yes", "x"],
        ["quarantine", "list"],
        ["quarantine", "show", "1"],
        ["status", "--all"],
        ["top"],
    ],
    ids=" ".join,
)
def test_before_the_first_run_commands_say_that_nothing_has_been_collected_yet(
    written: Callable[[str], Path], run: Run, words: Sequence[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    section = {
        "kind": "apel",
        "site": {"sites_to_report": {"A": "a"}, "publish_since": "2026-01-01T00:00:00Z"},
        "messaging": {"client_cert": "/c", "client_key": "/k"},
        "summary_fields": {
            "mandatory": {name: {"type": "MetaField", "name": "voms"} for name in ("VO", "SubmitHost")},
        },
    }
    configuration = {
        "state_dir": str(state),
        "store": {"url": f"sqlite:///{state}/records.db"},
        "plugins": {"apel": section},
    }
    result = run("--config", written(json.dumps(configuration)), *words)
    assert result.exception is not None
    said = f"{result.output}{result.exception}"
    assert f"there is no {state}" in said.lower()
    assert "nothing has been collected yet" in said
    assert not state.exists()
