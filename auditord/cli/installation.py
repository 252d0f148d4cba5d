"""The beginning of most commands: hook modules, their configuration, the clock and the event loop."""

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple, Unpack

import anyio
import click

from auditord.cli.frame import config_paths
from auditord.config.documents import Document
from auditord.config.loading import disabled_hooks, load_with_sources, load_without_instances, read_files
from auditord.config.model import Configuration
from auditord.config.secrets import read_when_used
from auditord.errors import ConfigurationError, plain_errors

if TYPE_CHECKING:
    from auditord.hooks import Hooks

_NAME: Final = "auditord"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

utc_now: Final[Callable[[], datetime]] = partial(datetime.now, UTC)
"""The clock; commands read it here alone."""


@dataclass(frozen=True, slots=True)
class Installation:
    """This host's hook modules and configuration."""

    hooks: "Hooks"
    configuration: Configuration
    document: Document


def load_installation(unread_secret: Callable[[str], bool] = lambda _: True) -> Installation:
    """Load the hook modules and then the configuration that the user's ``--config`` and the environment say.

    Args:
        unread_secret: called with the reason why a secret cannot be read; returns whether to go on without it. Most
            commands have no use for any: they ask the daemon, or open a file.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: the configuration cannot be used.
    """
    hooks = load_installed_hooks()
    loaded = load_with_sources(
        config_paths(), hooks.kinds, os.environ, read_when_used(hooks.resolve_secret, unread_secret)
    )
    return Installation(hooks, loaded.configuration, loaded.document)


def load_configuration() -> Configuration:
    """Load the configuration for a command that has no use for its instances (collectors, plugins and others).

    They are left out, and hook modules are imported only to read secrets, or where something has to be said about a
    fault. That is most of what a short command costs.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: the configuration cannot be used.
    """
    resolve = read_when_used(lambda reference: load_installed_hooks().resolve_secret(reference), lambda _: True)
    found = load_without_instances(config_paths(), os.environ, resolve)
    return load_installation().configuration if found is None else found


def load_installed_hooks() -> "Hooks":
    """Load the hook modules that the configuration does not disable; the rest of it is not looked at.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: a file cannot be read, or ``hooks`` in it is wrong.
    """
    from auditord.hooks import load_hooks  # noqa: PLC0415 with the kinds, where instances count

    return load_hooks(disabled_hooks(config_paths(), os.environ))


def readable_disabled_hooks() -> tuple[Sequence[str], list[str]]:
    """``hooks.disabled`` and no fault; nothing, and the fault, where the configuration cannot be read."""
    try:
        return disabled_hooks(config_paths(), os.environ), []
    except ConfigurationError as error:
        return (), [str(error)]


def run_async(work: Callable[[Unpack[Ts]], Awaitable[T]], *arguments: *Ts) -> T:
    """Run something asynchronous to its end; one fault in a background task is raised as that fault."""
    with plain_errors():
        return anyio.run(work, *arguments, backend_options={"use_uvloop": True})
    raise AssertionError("unreachable")


def complete_instances(*sections: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Make a completion of instances' names, as the files of the configuration have them, without checking those."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            with context.scope(cleanup=False):
                values = read_files(config_paths()).values
        except ConfigurationError:  # a shell that completes words has no place for it
            return []
        names = [name for section in sections for name in values.get(section) or ()]
        return sorted(name for name in names if name.startswith(incomplete))

    return complete


def program() -> str:
    """This program as one types it in the shell that called it: by its path where PATH leads to none, or to another."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{quote(sys.executable)} -m auditord"
    found = shutil.which(_NAME)
    if called.name != _NAME or not called.exists() or (found is not None and Path(found).samefile(called)):
        return _NAME
    return quote(str(called.absolute()))
