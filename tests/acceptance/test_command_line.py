"""The installed program, in a process of its own."""

import subprocess
import sys
from pathlib import Path

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


def test_the_version_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, auditord.cli\n"
        "try: auditord.cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pydantic', 'aiohttp', 'rich', 'pluggy', 'msgspec'} & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60
    )
    assert result.stderr == "[]\n"


def test_help_lists_the_commands_of_hook_modules_whatever_the_configuration(tmp_path: Path) -> None:
    result = auditord("--config", "missing.yml", "--help", home=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "open-records" in result.stdout
    assert auditord("open-records", "--config", "missing.yml", "--help", home=tmp_path).returncode == 0
