"""The start of most commands: load hook modules and configuration, and run the event loop."""

import logging
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, TypeVarTuple, Unpack

import anyio
import click
import msgspec

from auditord.cli.frame import config_paths
from auditord.config.merging import Place, plain_place, read_files
from auditord.errors import ConfigurationError, plain_errors

if TYPE_CHECKING:  # pydantic and the models are half of the run time of a short command
    from auditord.config.documents import Document
    from auditord.config.model import Configuration
    from auditord.hooks import Hooks

_NAME: Final = "auditord"

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

utc_now: Final[Callable[[], datetime]] = partial(datetime.now, UTC)
"""The clock of all commands."""


class Installation(msgspec.Struct, frozen=True):
    """This host's hook modules and configuration."""

    hooks: "Hooks"
    configuration: "Configuration"
    document: "Document"


def load_installation(unread_secret: Callable[[str], bool] = lambda _: True) -> Installation:
    """Load the hook modules and the configuration that ``--config`` and the environment name.

    Args:
        unread_secret: called with the reason why a secret cannot be read; returns whether to continue without it.
            Most commands need no secret: they ask the daemon or open a file.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: the configuration cannot be used.
    """
    from auditord.config.loading import load_with_sources  # noqa: PLC0415 imports the models
    from auditord.config.secrets import read_when_used  # noqa: PLC0415 the same

    hooks = load_installed_hooks()
    loaded = load_with_sources(
        config_paths(), hooks.kinds, os.environ, read_when_used(hooks.resolve_secret, unread_secret)
    )
    return Installation(hooks, loaded.configuration, loaded.document)


def load_configuration() -> "Configuration":
    """Load the configuration without its instances (collectors, plugins and others).

    Hook modules are imported only to read secrets or to explain a fault. Importing them would be most of the run time
    of a short command.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: the configuration cannot be used.
    """
    from auditord.config.loading import load_without_instances  # noqa: PLC0415 imports the models
    from auditord.config.secrets import read_when_used  # noqa: PLC0415 the same

    resolve = read_when_used(lambda reference: load_installed_hooks().resolve_secret(reference), lambda _: True)
    found = load_without_instances(config_paths(), os.environ, resolve)
    return load_installation().configuration if found is None else found


def load_place() -> Place:
    """Load the places of the state folder and the record store. Other options are checked only if models are needed.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: the configuration cannot be used.
    """
    if (place := plain_place(config_paths(), os.environ)) is not None:
        return place
    configuration = load_configuration()
    return Place(configuration.state_dir, configuration.store)


def load_installed_hooks() -> "Hooks":
    """Load the hook modules that the configuration does not disable, without checking the rest of it.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: a file cannot be read, or ``hooks`` in it is wrong.
    """
    from auditord.config.loading import read_disabled_hooks  # noqa: PLC0415 imports the models
    from auditord.hooks import load_hooks  # noqa: PLC0415 imports the kinds

    return load_hooks(read_disabled_hooks(config_paths(), os.environ))


def readable_disabled_hooks() -> tuple[Sequence[str], list[str]]:
    """Return ``hooks.disabled`` and no fault or, if the configuration cannot be read, nothing and the fault."""
    from auditord.config.loading import read_disabled_hooks  # noqa: PLC0415 imports the models

    try:
        return read_disabled_hooks(config_paths(), os.environ), []
    except ConfigurationError as error:
        return (), [str(error)]


def run_async(work: Callable[[Unpack[Ts]], Awaitable[T]], *arguments: *Ts) -> T:
    """Run a coroutine function; a single error in a task group is raised as itself."""
    logging.getLogger("stamina").setLevel(logging.ERROR)  # a command says only that it gave up
    with plain_errors():
        return anyio.run(work, *arguments, backend_options={"use_uvloop": True})
    raise AssertionError("unreachable")


def in_event_loop(command: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a command of a coroutine function. It must not ask questions: Ctrl-C would not end those."""

    @wraps(command)
    def wrapper(*arguments: P.args, **options: P.kwargs) -> T:
        return run_async(partial(command, *arguments, **options))

    return wrapper


def complete_instances(*sections: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion of instance names from the configuration files, which are not checked."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            with context.scope(cleanup=False):
                values = read_files(config_paths()).values
        except ConfigurationError:  # a shell completion cannot report errors
            return []
        names = [name for section in sections for name in values.get(section) or ()]
        return sorted(name for name in names if name.startswith(incomplete))

    return complete


def program() -> str:
    """Return the command that starts this program from the shell: its path, unless PATH leads to the same program."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{quote(sys.executable)} -m auditord"
    found = shutil.which(_NAME)
    if called.name != _NAME or not called.exists() or (found is not None and Path(found).samefile(called)):
        return _NAME
    return quote(str(called.absolute()))
