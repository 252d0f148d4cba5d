"""Fixtures and options that every test shares."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
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
    """Import nothing of the second leg for the first one: each of its processes would, and run none of it."""
    is_test = collection_path.name.startswith("test_") and collection_path.stem not in QUICK
    leaves_out = "not slow" in str(config.getoption("-m"))
    return True if is_test and leaves_out and _below_the_tests(collection_path).startswith(SLOW) else None


def _below_the_tests(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).as_posix()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow by where it is; skip what is marked ``benchmark`` unless ``-m`` names it."""
    for item in items:
        if item.get_closest_marker("benchmark") and not measures(config):
            item.add_marker(pytest.mark.skip(reason="a full-size measurement: run it with -m benchmark -s"))
        is_slow = _below_the_tests(item.path).startswith(SLOW) and item.path.stem not in QUICK
        if is_slow and not item.get_closest_marker("benchmark"):
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
