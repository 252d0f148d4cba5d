"""Waldur's tests."""

from collections.abc import Generator

import pytest
import stamina


@pytest.fixture(autouse=True)
def quick_retries() -> Generator[None]:
    """Attempts follow each other at once."""
    with stamina.set_testing(True, attempts=8, cap=True):
        yield
