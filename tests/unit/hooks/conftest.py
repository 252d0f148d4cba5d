"""Hook modules that are made in a test, and entry points that load them."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from auditord.hooks import HookEntry, HookModule

Install = Callable[..., HookEntry]


def install(name: str, *functions: Callable[..., Any], distribution: str = "acme", module_name: str = "") -> HookEntry:
    """An entry point ``name`` whose module ``acme_<name>`` holds the functions."""
    module = ModuleType(module_name or f"acme_{name}")
    for function in functions:
        function.__module__ = module.__name__
        setattr(module, function.__name__, function)
    return HookEntry(HookModule(name, module.__name__, distribution, "1.2"), lambda: module)


def broken(name: str, error: BaseException) -> HookEntry:
    """An entry point whose module raises while it is imported."""

    def load() -> object:
        raise error

    return HookEntry(HookModule(name, f"acme_{name}", "acme", "1.2"), load)


@pytest.fixture(name="install")
def install_fixture() -> Install:
    return install


@pytest.fixture(name="broken")
def broken_fixture() -> Callable[[str, BaseException], HookEntry]:
    return broken
