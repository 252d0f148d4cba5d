"""Wheel and source distribution: the same bytes each time, sound, and at work in fresh environments."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Final

import pytest

import auditord

ROOT: Final = Path(__file__).parents[3]
NAME: Final = f"auditord-{auditord.__version__}"


def build(source: Path, target: Path) -> dict[str, str]:
    """The contents of what hatchling makes of a tree: file names and digests."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    subprocess.run(command, cwd=source, capture_output=True, check=True, env=os.environ | {"TZ": "Asia/Tokyo"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in target.iterdir()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def wheel_in(folder: Path) -> Path:
    return folder / f"{NAME}-py3-none-any.whl"


def test_what_is_built_from_the_source_distribution_elsewhere_and_later_is_the_same(
    distributions: Path, tmp_path: Path
) -> None:
    with tarfile.open(distributions / f"{NAME}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / NAME
    for path in source.rglob("*"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
    first = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in distributions.iterdir()}
    assert set(first) == {f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"}
    assert build(source, tmp_path / "dist") == first


def test_they_pass_the_check_of_those_who_publish_them(distributions: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_version_comes_from_one_place(distributions: Path) -> None:
    with zipfile.ZipFile(wheel_in(distributions)) as wheel:
        metadata = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    assert metadata["Version"] == auditord.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert auditord.__version__ not in (ROOT / "rpm/auditord.spec").read_text()


def test_they_are_typed_and_whole(distributions: Path) -> None:
    with zipfile.ZipFile(wheel_in(distributions)) as wheel:
        names = set(wheel.namelist())
    assert {f"{package}/py.typed" for package in ("auditord", "auditord_hookspecs", "auditord_builtin")} <= names
    assert f"{NAME}.data/scripts/auditord-epilog" in names
    assert not [name for name in names if name.startswith(("tests/", "etc/", "rpm/"))]
    with tarfile.open(distributions / f"{NAME}.tar.gz") as archive:
        files = set(archive.getnames())
    wanted = {"etc/auditord.service", "etc/container/Containerfile", "rpm/auditord.spec", "rpm/build", "README.md"}
    assert {f"{NAME}/{name}" for name in wanted} <= files


def pythons() -> list[str]:
    """Every Python from 3.11 on that can be found here, one of each minor version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    folders = [Path(sys.executable).resolve().parent, *pyenv.glob("versions/3.*/bin"), Path("/usr/bin")]
    named = [
        path for folder in folders for path in folder.glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name)
    ]
    found = {path.name: str(path) for path in reversed(named) if int(path.suffix[1:]) >= 11}
    return [found[name] for name in sorted(found)]


def pip_install(python: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*command, "--disable-pip-version-check", *words], check=True)


OTHERS: Final = [path for path in pythons() if Path(path).name != f"python3.{sys.version_info.minor}"]


def name_of(python: str) -> str:
    return Path(python).name


@pytest.mark.parametrize("python", OTHERS, ids=name_of)
def test_the_other_pythons_here_have_wheels_of_all_that_it_needs(
    python: str, distributions: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    pip_install(environment / "bin/python", "--dry-run", "--only-binary", ":all:", str(wheel_in(distributions)))


@pytest.mark.parametrize(
    "python",
    [
        pytest.param(path, marks=[pytest.mark.benchmark] if path in OTHERS else [], id=name_of(path))
        for path in pythons()
    ],
)
def test_a_fresh_environment_passes_the_demo(python: str, distributions: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    pip_install(environment / "bin/python", "--no-compile", str(wheel_in(distributions)))
    program = environment / "bin/auditord"
    versions = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert versions[0] == f"auditord {auditord.__version__}"
    assert versions[1].startswith(f"Python {Path(python).name.removeprefix('python')}.")
    assert {"aiohttp", "msgspec", "psycopg", "pydantic"} <= {line.split()[0] for line in versions[2:]}
    done = subprocess.run([program, "demo", "--check"], capture_output=True, text=True, check=False)
    assert "The demo succeeded." in done.stdout, done.stdout + done.stderr
    shutil.rmtree(environment)


def test_a_configuration_that_anybody_could_write_through_is_refused_with_the_two_lines(tmp_path: Path) -> None:
    file = tmp_path / "auditord.yml"
    file.write_text(f'state_dir: {tmp_path}\napi:\n  listen: ["0.0.0.0:8000"]\n')
    command = [str(Path(sys.executable).with_name("auditord")), "run", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert {'listen: ["127.0.0.1:8000"]', "allow_insecure: true"} <= set(lines)
