"""Waldur's tests."""

import sys
from collections.abc import Generator
from importlib.util import find_spec
from types import ModuleType
from typing import Final

import pytest
import stamina

MODELS: Final = "waldur_api_client.models"


def import_models_one_by_one() -> None:
    """Stand in for the package of the released client's models, which imports all 3,000 of them: 6 s in each worker."""
    client = find_spec("waldur_api_client")
    assert client is not None
    assert client.submodule_search_locations is not None
    package = ModuleType(MODELS)
    package.__path__ = [f"{client.submodule_search_locations[0]}/models"]
    sys.modules.setdefault(MODELS, package)


import_models_one_by_one()


@pytest.fixture(autouse=True)
def quick_retries() -> Generator[None]:
    """Attempts follow each other at once."""
    with stamina.set_testing(True, attempts=8, cap=True):
        yield
