"""Distributions of others, built and installed by pip, take part like the built-in ones: ours, and new-plugin's."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from auditord.cli import auditord as program
from auditord.cli.new_plugin import SHAPES

DISTRIBUTION = Path(__file__).parent / "third_party"
PAGE_LOG = """\
101 alice 2026-11-20T08:00:00+00:00 12
102 bob 2026-11-20T08:05:00+01:00 3
103 carol yesterday 7
104 alice 2026-11-20T09:00:00+00:00 1"""  # the last line is still being written


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A new distribution of each kind."""
    folder = tmp_path_factory.mktemp("made")
    for kind in SHAPES:
        done = CliRunner().invoke(program, ["new-plugin", f"new-{kind}", "--kind", kind, "--into", str(folder)])
        assert done.exit_code == 0, done.output
    return [folder / f"auditord-new-{kind}" for kind in SHAPES]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, made: list[Path]) -> Path:
    """A virtual environment with auditord as it is here, and the other distributions installed by pip."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    # What the tests run with is visible in there, so that nothing but the distribution has to be installed.
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site_packages / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip: list[str | Path] = [
        folder / "bin/pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, DISTRIBUTION, *made], check=True, env={**os.environ, "PIP_NO_INDEX": "1"})
    return folder


def auditord(environment: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [environment / "bin/python", "-c", "from auditord.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "page_log").write_text(PAGE_LOG)
    document = {
        "state_dir": str(tmp_path / "state"),
        "collectors": {"printers": {"kind": "pagelog", "path": str(tmp_path / "page_log")}},
    }
    (tmp_path / "auditord.yml").write_text(json.dumps(document))
    return tmp_path / "auditord.yml"


def test_it_is_listed_with_its_distribution(environment: Path) -> None:
    done = auditord(environment, "hooks", "--output", "json")
    assert done.returncode == 0, done.stderr
    modules: list[Mapping[str, object]] = json.loads(done.stdout)
    (module,) = (module for module in modules if module["name"] == "pagelog")
    assert (module["distribution"], module["version"]) == ("auditord-pagelog", "1.2.3")
    assert module["hooks"] == ["auditord_collectors"]


def test_new_distributions_are_listed_with_their_hooks(environment: Path) -> None:
    modules = json.loads(auditord(environment, "hooks", "--output", "json").stdout)
    hooks = {module["distribution"]: module["hooks"] for module in modules}
    expected = {
        "collector": "auditord_collectors",
        "plugin": "auditord_plugins",
        "sender": "auditord_senders",
        "authenticator": "auditord_authenticators",
        "transform": "auditord_record_transforms",
        "importer": "auditord_importers",
        "panel": "auditord_panels",
    }
    assert {kind: hooks[f"auditord-new-{kind}"] for kind in SHAPES} == {kind: [expected[kind]] for kind in SHAPES}


def assert_done(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_new_importer_imports(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "auditord.yml").write_text(json.dumps({"state_dir": str(tmp_path / "state")}))
    (tmp_path / "export").write_text("1,alice,2025-12-31T08:00:00Z,2025-12-31T09:00:00Z,8\nx\n")
    words = ("import", "new_importer", tmp_path / "export", "--site-id", "s", "--config", tmp_path / "auditord.yml")
    done = auditord(environment, *words)
    assert "unreadable: row 2: the row must look like '17,alice,2026-" in done.stderr
    assert "1 record in the store" in done.stdout


def test_the_tests_of_new_distributions_pass(environment: Path, made: list[Path]) -> None:
    pytest_words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(made[0] / "pyproject.toml")]
    assert "23 passed" in assert_done(environment / "bin/python", *pytest_words, *made)


def test_new_distributions_are_typed_and_tidy(made: list[Path], tmp_path: Path) -> None:
    ruff, config = Path(sys.executable).with_name("ruff"), made[0] / "pyproject.toml"
    assert_done(ruff, "check", *made)
    assert_done(ruff, "format", "--check", *made)
    parts = [folder / part for folder in made for part in ("src", "tests")]
    assert_done(sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", tmp_path, *parts)


def test_its_collector_runs_and_goes_on_from_its_checkpoint(environment: Path, config: Path) -> None:
    done = auditord(environment, "collect", "printers", "--config", config)
    assert (done.returncode, "2 records; 1 quarantined" in done.stderr) == (0, True), done.stderr
    with (config.parent / "page_log").open("a") as log:
        log.write("\n")
    done = auditord(environment, "collect", "printers", "--config", config)
    assert "1 record; 0 quarantined" in done.stderr, done.stderr
    shown = auditord(environment, "records", "--config", config, "--output", "json")
    pages = {record["record_id"]: record["components"][0]["amount"] for record in json.loads(shown.stdout)}
    assert pages == {"pages-101": 12, "pages-102": 3, "pages-104": 1}


def test_its_options_are_checked_like_any(environment: Path, config: Path) -> None:
    config.write_text(config.read_text().replace('"path"', '"paht"'))
    done = auditord(environment, "config", "check", "--config", config)
    assert done.returncode == 1
    assert "collectors.printers.paht" in done.stderr
    assert "path" in done.stderr


def test_what_it_cannot_convert_waits_in_quarantine(environment: Path, config: Path) -> None:
    auditord(environment, "collect", "printers", "--config", config)
    listed = json.loads(auditord(environment, "quarantine", "list", "--output", "json", "--config", config).stdout)
    assert [(entry["task"], entry["stage"]) for entry in listed] == [("printers", "job")]
    number = str(listed[0]["number"])
    retried = auditord(environment, "quarantine", "retry", number, "--config", config)
    assert (retried.returncode, "failed again" in retried.stdout) == (1, True)
    assert json.loads(auditord(environment, "quarantine", "show", number, "--config", config).stdout)["raw"].startswith(
        "103 carol yesterday"
    )
    assert auditord(environment, "quarantine", "discard", number, "--yes", "--config", config).returncode == 0
    assert auditord(environment, "quarantine", "list", "--config", config).stdout == ""
