"""The browser of the page's tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chromium import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:  # Any: an extra's
    """Chromium, for the tests of a module."""
    with chromium() as opened:
        yield opened
