"""Full-size measurements run only when they are asked for."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked ``benchmark`` unless ``-m`` names it."""
    if "benchmark" in str(config.getoption("-m")):
        return
    for item in items:
        if item.get_closest_marker("benchmark"):
            item.add_marker(pytest.mark.skip(reason="a full-size measurement: run it with -m benchmark -s"))
