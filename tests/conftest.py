"""What every test shares."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.postgres_server", "tests.slurm_jobs", "tests.slurm_notes", "tests.slurm_session"]

# A slow machine is no fault of what is tested.
settings.register_profile("auditord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("auditord")

SLOW = ("acceptance/", "benchmark/")
"""Folders of the second leg: real processes that are started and killed, and measurements in small."""
QUICK = ("test_broken_hooks", "test_command_line", "test_daemon")
"""Of those, what is worth its time in the first leg as well: each part of the real process once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by where it is."""
    for item in items:
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
