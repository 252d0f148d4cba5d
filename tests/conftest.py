"""What every test shares."""

import pytest

pytest_plugins = ["tests.postgres_server", "tests.slurm_jobs", "tests.slurm_notes", "tests.slurm_session"]


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the daemon does."""
    return "asyncio"
