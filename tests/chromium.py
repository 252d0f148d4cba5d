"""The distribution's Chromium, for tests of the page."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest

SHAPES: Final[dict[str, dict[str, Any]]] = {  # Any: options of a browser's context
    "desktop": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light", "has_touch": True, "is_mobile": True},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
"""Screens on which pages are looked at."""

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Generator[Any, None, None]:  # Any: an extra's
    """A browser; skips the test where there is none, and fails it under CI."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("there is no Chromium: run tests/services/chromium-install")
    if found is None:
        pytest.skip("there is no Chromium: run tests/services/chromium-install")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()
