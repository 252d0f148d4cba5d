"""Fixtures and options that every test shares."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    *("pytester", "tests.postgres_server", "tests.scheduling"),
    *("tests.slurm_jobs", "tests.slurm_notes", "tests.slurm_session"),
]

# A slow machine is no fault of what is tested.
settings.register_profile("auditord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("auditord")

SLOW_SECONDS = 1_200
"""The time limit of a slow test: only one that hangs takes that long, also on a loaded machine."""

SLOW = (
    "acceptance/",
    "benchmark/",
    "builtin/htcondor/test_hostile_ads.py",
    "builtin/htcondor/test_real_program.py",
    "integration/cli/test_hostile_text.py",
)
"""Folders and files of the second leg: real processes that are started and killed, and measurements in small."""
QUICK = ("test_broken_hooks", "test_command_line", "test_daemon")
"""Of those, what is worth its time in the first leg as well: each part of the real process once."""

TESTS: Final = Path(__file__).parent
_SLOW_ALONE: Final = re.compile(r"slow( and not \w+)*")

MEMORY: Final = Path("/dev/shm")  # noqa: S108 for folders that nobody else can guess
OURS: Final = ("AUDITORD_TEST_", "AUDITORD_BENCHMARK_", "AUDITORD_FUZZ_", "AUDITORD_ATTACK_", "AUDITORD_SCREENSHOTS")
"""Variables of the tests themselves, read when their modules are imported."""

ROOM: Final = 8 << 30
"""Bytes that have to be free for tests to keep their files in memory."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of tests in memory, where it is large: most of what they wait for is a disk's ``fsync``.

    Measurements stay on the disk, and so does everything if ``TMPDIR`` is set. Bytecode is kept even
    where Python is told not to: each of hundreds of processes would compile all modules again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name in options_in(os.environ):
        if not name.startswith(OURS):  # of whoever runs the tests: it would reach every daemon that they start
            del os.environ[name]
    if not measures(config) and "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


def options_in(environment: Iterable[str]) -> list[str]:
    """Return the variables that auditord would take for options, or refuse as such."""
    return [name for name in environment if name.startswith("AUDITORD_")]


def measures(config: pytest.Config) -> bool:
    """Return whether ``-m`` asks for measurements."""
    return "benchmark" in str(config.getoption("-m")).replace("not benchmark", "")


def _has_room(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    usable = not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)  # fakes of sacct and others are programs
    return usable and found.f_bavail * found.f_frsize >= ROOM


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of the other leg: each process would do so for seconds, and run none of its tests."""
    if not collection_path.name.startswith("test_") or not collection_path.is_file():
        return None
    wanted = str(config.getoption("-m"))
    if "not slow" in wanted:
        return True if _is_slow_by_place(collection_path) else None
    return True if _SLOW_ALONE.fullmatch(wanted) and not _may_be_slow(collection_path) else None


def _is_slow_by_place(path: Path) -> bool:
    return path.stem not in QUICK and _below_the_tests(path).startswith(SLOW)


def _may_be_slow(path: Path) -> bool:
    """Return whether a file can have slow tests: by its place, or if it or a conftest.py of its folders marks some."""
    folders = [each for each in path.parents if each.is_relative_to(TESTS) and each != TESTS]
    return _is_slow_by_place(path) or any(map(_marks_slow, [path, *(each / "conftest.py" for each in folders)]))


@cache
def _marks_slow(path: Path) -> bool:
    return path.is_file() and "mark.slow" in path.read_text()


def _below_the_tests(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow by where it is; skip what is marked ``benchmark`` unless ``-m`` names it.

    Raises:
        pytest.UsageError: a test is marked ``slow`` by a module that :func:`_may_be_slow` does not read, so that the
            second leg would never find it.
    """
    marked = {item.path for item in items if item.get_closest_marker("slow")}
    if strays := sorted(str(path) for path in marked if not _may_be_slow(path)):
        raise pytest.UsageError(f"mark slow tests in their own file, or in a conftest.py of their folders: {strays}")
    for item in items:
        if item.get_closest_marker("benchmark") and not measures(config):
            item.add_marker(pytest.mark.skip(reason="a full-size measurement: run it with -m benchmark -s"))
        if _is_slow_by_place(item.path) and not item.get_closest_marker("benchmark"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture(autouse=True)
def no_configuration_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the tests' own variables as well, which auditord would refuse."""
    for name in options_in(os.environ):
        monkeypatch.delenv(name)


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the daemon does."""
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    new: Callable[[], str] = request.getfixturevalue("new_postgres_url")
    return new()
