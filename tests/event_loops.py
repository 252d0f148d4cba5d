"""Both event loops under which the daemon may run, for tests of what the loops do differently."""

from typing import Any

import pytest
import uvloop


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"debug": False}), id="asyncio"),
        pytest.param(("asyncio", {"loop_factory": uvloop.new_event_loop}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Import it into a module to run its asynchronous tests under each."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend
