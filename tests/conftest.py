"""What every test shares."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.postgres_server", "tests.slurm_jobs", "tests.slurm_notes", "tests.slurm_session"]

# A slow machine is no fault of what is tested.
settings.register_profile("auditord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("auditord")

SLOW = ("acceptance/", "benchmark/")
"""Folders of the second leg: real processes that are started and killed, and measurements in small."""
QUICK = ("test_broken_hooks", "test_command_line", "test_daemon")
"""Of those, what is worth its time in the first leg as well: each part of the real process once."""

MEMORY: Final = Path("/dev/shm")  # noqa: S108 for folders that nobody else can guess
ROOM: Final = 8 << 30
"""Bytes that have to be free for tests to keep their files in memory."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of tests in memory, where it is large: most of what they wait for is a disk's ``fsync``.

    Measurements stay on the disk, and so does everything if ``TMPDIR`` is set. Bytecode is kept even
    where Python is told not to: each of hundreds of processes would compile all modules again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if not measures(config) and "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow by where it is; skip what is marked ``benchmark`` unless ``-m`` names it."""
    for item in items:
        if item.get_closest_marker("benchmark") and not measures(config):
            item.add_marker(pytest.mark.skip(reason="a full-size measurement: run it with -m benchmark -s"))
        name = item.path.relative_to(Path(__file__).parent).as_posix()
        if name.startswith(SLOW) and item.path.stem not in QUICK and not item.get_closest_marker("benchmark"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_configuration_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the tests' own variable, which auditord would refuse as an option that it does not know."""
    monkeypatch.delenv("AUDITORD_TEST_DATABASE_URL", raising=False)


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
