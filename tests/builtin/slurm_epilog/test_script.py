"""``auditord-epilog`` as it is installed: it notes every job, and Slurm never sees it fail."""

import ast
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import auditord_builtin.slurm.epilog as package

SOURCE: Final = Path(package.__file__).with_name("script.py")
SCRIPT: Final = Path(sys.executable).with_name("auditord-epilog")
FIRST_LINE: Final = "#!/usr/bin/python3 -IS"


def call(
    *arguments: str, before: Callable[[], None] | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run it with these variables alone; ``before`` runs in the child."""
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        preexec_fn=before,
    )


def test_it_is_installed_with_its_own_first_line() -> None:
    assert SCRIPT.read_text() == SOURCE.read_text(), "run pip install again"
    assert SCRIPT.read_text().splitlines()[0] == FIRST_LINE
    assert os.access(SCRIPT, os.X_OK)


def test_any_python_from_3_6_on_can_run_it() -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 6))


def test_it_imports_nothing_that_the_interpreter_has_not_loaded() -> None:
    imports = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [name.name for node in imports for name in node.names] == ["os", "sys"]


def test_it_notes_the_job_and_slurms_variables(tmp_path: Path) -> None:
    done = call(str(tmp_path), SLURM_JOB_ID="12", SLURM_JOB_NAME="two\nlines=1", HOME="/secret")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [file] = tmp_path.iterdir()
    assert file.name.split(".")[0] == "12"
    assert file.suffix == ".job"
    assert file.read_bytes() == b"SLURM_JOB_ID=12\0SLURM_JOB_NAME=two\nlines=1\0\0"
    assert file.stat().st_mode & 0o777 == 0o660


def test_the_folder_may_come_from_the_environment(tmp_path: Path) -> None:
    assert call(SLURM_JOB_ID="12", AUDITORD_EPILOG_SPOOL=str(tmp_path)).returncode == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_many_at_once_each_have_their_file(tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_COMMENT": "x" * 100_000}
    running = [subprocess.Popen([SCRIPT, tmp_path], env=environment) for _ in range(40)]
    assert [process.wait(30) for process in running] == [0] * 40
    assert [file.read_bytes()[-2:] for file in tmp_path.iterdir()] == [b"\0\0"] * 40


@pytest.mark.parametrize("job_id", ["", "12; rm", "../../etc/x", "٣", "9" * 11])
def test_what_is_no_job_id_never_becomes_a_file(tmp_path: Path, job_id: str) -> None:
    done = call(str(tmp_path), SLURM_JOB_ID=job_id)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert list(tmp_path.iterdir()) == []


def close_stderr() -> None:
    os.close(2)


@pytest.mark.parametrize("before", [None, close_stderr])
def test_without_a_folder_it_still_exits_with_0(tmp_path: Path, before: Callable[[], None] | None) -> None:
    done = call(str(tmp_path / "missing"), before=before, SLURM_JOB_ID="12")
    assert done.returncode == 0
    assert before or len(done.stderr.splitlines()) == 1


def no_more_blocks() -> None:
    """The first byte that is written fails, as on a full disk that has a free inode left."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_on_a_full_disk_the_name_alone_says_which_job(tmp_path: Path) -> None:
    done = call(str(tmp_path), before=no_more_blocks, SLURM_JOB_ID="12")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert [(file.name.split(".")[0], file.stat().st_size) for file in tmp_path.iterdir()] == [("12", 0)]


def loaded() -> ModuleType:
    spec = spec_from_file_location("epilog_script", SOURCE)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_file_and_folder_are_on_the_disk_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []

    def fsync(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        synced.append((str(path), path.stat().st_size))

    def umask(mask: int) -> int:
        return mask  # that of this process stays as it is for other tests

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "environb", {b"SLURM_JOB_ID": b"12"})
    monkeypatch.setattr(os, "umask", umask)
    loaded().note(str(tmp_path), "12")
    [file] = tmp_path.iterdir()
    assert synced == [(str(file), len(b"SLURM_JOB_ID=12\0\0")), (str(tmp_path), tmp_path.stat().st_size)]


def test_a_write_that_is_cut_short_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_: int, content: bytes) -> int:
        written.append(content[:3])
        return len(written[-1])

    monkeypatch.setattr(os, "write", write)
    loaded().write(1, b"eight by")
    assert b"".join(written) == b"eight by"


def test_trouble_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12\n13")
    loaded().complain(OSError("a\nb" * 1_000))
    lines: Sequence[str] = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert len(lines[0]) <= 400
