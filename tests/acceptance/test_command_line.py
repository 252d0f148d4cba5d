"""The installed program, in a process of its own."""

import subprocess
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import pytest

from auditord import __version__

PROGRAM = Path(sys.executable).with_name("auditord")


def auditord(*words: str, home: Path) -> "subprocess.CompletedProcess[str]":
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False, env=environ, timeout=60)


def test_the_program_is_installed(tmp_path: Path) -> None:
    result = auditord("--version", home=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"auditord {__version__}\n")


def test_a_fault_goes_to_standard_error_with_exit_code_1(tmp_path: Path) -> None:
    result = auditord("config", "check", "--config", "missing.yml", home=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "cannot read the configuration file missing.yml: No such file" in result.stderr
    assert len(result.stderr.splitlines()) == 1


SERVING: Final = {"aiohttp.web", "auditord.supervisor", "auditord.web.server", "apscheduler", "jinja2"}
DATABASES: Final = {"psycopg", "psycopg_pool", "pyarrow", "pyiceberg", "pandas", "cryptography"}
WORK: Final = {
    f"auditord_builtin.{each}.config" for each in ("apel", "htcondor", "kubernetes", "utilisation", "waldur")
}
METRICS: Final = {"prometheus_client", "auditord.metrics"}
STORES: Final = {"auditord.store.sqlite", "auditord.store.rollups", "auditord.store.planning"}
HEAVY: Final = SERVING | DATABASES | WORK | METRICS | {"pydantic_settings", "regex"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        pytest.param(["--version"], {*HEAVY, "pydantic", "aiohttp", "rich", "pluggy"}, id="version"),
        pytest.param(["--help"], {*HEAVY, "aiohttp", "rich"}, id="help"),
        pytest.param(["status"], {*HEAVY, *STORES, "aiohttp"}, id="status"),
        pytest.param(["records"], {*HEAVY, "aiohttp"}, id="records"),
        pytest.param(["trigger", "slurm", "--url", "unix:/nowhere"], {*HEAVY, *STORES, "aiohttp"}, id="trigger"),
    ],
)
def test_a_command_imports_what_it_needs(tmp_path: Path, words: Sequence[str], heavy: AbstractSet[str]) -> None:
    (tmp_path / "auditord.yml").write_text(f"state_dir: {tmp_path}\ncollectors: {{slurm: {{kind: slurm}}}}\n")
    code = (
        "import sys, auditord.cli\n"
        "try: auditord.cli.main()\n"
        "except SystemExit: pass\n"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, "--config", "auditord.yml", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60)
    assert result.stderr.splitlines()[-1] == "[]"


def test_help_lists_the_commands_of_hook_modules_whatever_the_configuration(tmp_path: Path) -> None:
    result = auditord("--config", "missing.yml", "--help", home=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "open-records" in result.stdout
    assert auditord("open-records", "--config", "missing.yml", "--help", home=tmp_path).returncode == 0
