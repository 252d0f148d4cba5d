"""The pytest plugin: fixtures for tests of hook modules. It imports auditord only when a fixture is used.

Asynchronous tests that use a context of :mod:`auditord.testing`, or whose file imports something from there, run on
asyncio like the daemon, without further set-up.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:  # otherwise every pytest run on this Python would load the daemon
    from auditord.testing import (
        FakeAuthenticatorContext,
        FakeCollectorContext,
        FakeCommandContext,
        FakePluginContext,
        FakeSenderContext,
    )
    from auditord.testing.daemon import StartDaemon, TestDaemon

_CONTEXTS: Final = frozenset({"authenticator_context", "collector_context", "plugin_context", "sender_context"})


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Let anyio's plugin run an asynchronous test of a hook module, unless another plugin should run it."""
    if not (inspect.iscoroutinefunction(obj) and collector.istestfunction(obj, name)):
        return
    named = {mark.name for mark in (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))}
    config = collector.config
    runs_all = config.pluginmanager.has_plugin("asyncio") and config.getini("asyncio_mode") == "auto"
    if runs_all or not named.isdisjoint({"anyio", "asyncio", "trio"}):
        return
    values = vars(sys.modules[obj.__module__]).values()
    uses_us = any(str(getattr(each, "__module__", "")).startswith("auditord.testing") for each in values)
    if uses_us or not _CONTEXTS.isdisjoint(inspect.signature(obj).parameters):
        pytest.mark.parametrize("anyio_backend", ["asyncio"])(pytest.mark.usefixtures("anyio_backend")(obj))


@pytest.fixture
def authenticator_context(tmp_path: Path) -> "FakeAuthenticatorContext":
    """Return an authenticator's context with a folder of its own."""
    from auditord.testing import FakeAuthenticatorContext  # noqa: PLC0415 see the module

    return FakeAuthenticatorContext(folder=tmp_path)


@pytest.fixture
def collector_context(tmp_path: Path) -> "FakeCollectorContext":
    """Return a collector's context over memory, with a folder of its own."""
    from auditord.testing import FakeCollectorContext  # noqa: PLC0415 see the module

    return FakeCollectorContext(folder=tmp_path)


@pytest.fixture
def plugin_context() -> "FakePluginContext":
    """Return a plugin's context over a list of records."""
    from auditord.testing import FakePluginContext  # noqa: PLC0415 see the module

    return FakePluginContext()


@pytest.fixture
def command_context() -> "FakeCommandContext":
    """Return a command's context over a list of records."""
    from auditord.testing import FakeCommandContext  # noqa: PLC0415 see the module

    return FakeCommandContext()


@pytest.fixture
def sender_context() -> "FakeSenderContext":
    """Return a sender's context whose store is a list."""
    from auditord.testing import FakeSenderContext  # noqa: PLC0415 see the module

    return FakeSenderContext()


@pytest.fixture
def auditord_daemon(tmp_path: Path) -> "Iterator[StartDaemon]":
    """Start a daemon: ``auditord_daemon({"collectors": {…}}, modules=[my_module])``. It ends with the test.

    A second call in a test stops the first daemon, and starts another with its state.
    """
    from auditord.testing.daemon import running_daemon  # noqa: PLC0415 see the module

    with ExitStack() as stack:

        def start(sections: Mapping[str, Any] | None = None, modules: Sequence[ModuleType] = ()) -> "TestDaemon":
            stack.close()
            return stack.enter_context(running_daemon(tmp_path, sections or {}, modules))

        yield start
