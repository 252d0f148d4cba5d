"""The pytest plugin: fixtures for tests of collectors, plugins and senders. It imports auditord only when asked to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:  # or every pytest run on this Python would load the daemon
    from auditord.testing import FakeCollectorContext, FakeCommandContext, FakePluginContext, FakeSenderContext
    from auditord.testing.daemon import TestDaemon

StartDaemon: TypeAlias = "Callable[..., TestDaemon]"


@pytest.fixture
def collector_context() -> "FakeCollectorContext":
    """A collector's context over memory."""
    from auditord.testing import FakeCollectorContext  # noqa: PLC0415 see the module

    return FakeCollectorContext()


@pytest.fixture
def plugin_context() -> "FakePluginContext":
    """A plugin's context over a list of records."""
    from auditord.testing import FakePluginContext  # noqa: PLC0415 see the module

    return FakePluginContext()


@pytest.fixture
def command_context() -> "FakeCommandContext":
    """A command's context, over a list of records."""
    from auditord.testing import FakeCommandContext  # noqa: PLC0415 see the module

    return FakeCommandContext()


@pytest.fixture
def sender_context() -> "FakeSenderContext":
    """A sender's context whose store is a list."""
    from auditord.testing import FakeSenderContext  # noqa: PLC0415 see the module

    return FakeSenderContext()


@pytest.fixture
def auditord_daemon(tmp_path: Path) -> "Iterator[StartDaemon]":
    """Start a daemon: ``auditord_daemon({"collectors": {…}}, modules=[my_module])``; it ends with the test.

    Called again in one test, the next daemon finds the state of the one before; that one is stopped first.
    """
    from auditord.testing.daemon import running_daemon  # noqa: PLC0415 see the module

    with ExitStack() as stack:

        def start(sections: Mapping[str, Any] | None = None, modules: Sequence[ModuleType] = ()) -> "TestDaemon":
            stack.close()
            return stack.enter_context(running_daemon(tmp_path, sections or {}, modules))

        yield start
