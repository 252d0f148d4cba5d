"""What every test shares."""

import pytest

pytest_plugins = ["tests.postgres_server", "tests.slurm_jobs"]


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the daemon does."""
    return "asyncio"
