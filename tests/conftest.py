"""What every test shares."""

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.postgres_server", "tests.slurm_jobs", "tests.slurm_notes", "tests.slurm_session"]

# A slow machine is no fault of what is tested.
settings.register_profile("auditord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("auditord")


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the daemon does."""
    return "asyncio"
