"""The group of all commands, which imports each command when it is used and gives it the option ``--config``."""

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec
from typing_extensions import override

from auditord import __version__
from auditord.config.documents import FILES_VARIABLE

_CONFIG = "auditord.config"
_PROVIDED = "auditord.provided"
_CONTEXT = "auditord.cli.command_context"
LONGEST_SUMMARY = 200
"""The longest summary of a command in the help of its group. click cuts those that do not fit a line."""

_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Registered(msgspec.Struct, frozen=True):
    """A command that is imported when it is used.

    Args:
        name: the name that the user types. The module defines ``NAME_command``, with ``_`` instead of ``-``.
        help: the text in ``auditord --help``, which can then list the commands without importing them.
        extensible: whether it is an :class:`ExtensibleGroup`.
    """

    name: str
    module: str
    help: str
    extensible: bool = False


class Provided(msgspec.Struct, frozen=True):
    """A command of a hook module."""

    help: str
    load: Callable[[], click.Command]


class GuessingGroup(click.Group):
    """A group that suggests commands for a misspelt one without importing them."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from error


class LazyGroup(GuessingGroup):
    """A group whose commands are in another module, which is imported when one of them is used.

    Args:
        names: the names that the user types; the module defines ``NAME_command`` for each.
    """

    def __init__(self, *args: Any, module: str, names: Sequence[str], **kwargs: Any) -> None:  # Any: click's own
        super().__init__(*args, **kwargs)
        self._module = module
        self._names = names

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._names, *super().list_commands(ctx)})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._names:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(self._module), f"{cmd_name}_command")
        add_config_option(command)
        return command


class ExtensibleGroup(GuessingGroup):
    """A group of the host that includes the commands of a hook module's group of the same name."""

    further: Callable[[click.Context], click.Command | None] | None = None

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        more = self._further(ctx)
        return sorted({*super().list_commands(ctx), *(more.list_commands(ctx) if more else ())})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the host's command or, if there is none, a hook module's."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        more = self._further(ctx)
        return None if more is None else more.get_command(ctx, cmd_name)

    def _further(self, ctx: click.Context) -> click.Group | None:
        found = None if self.further is None else self.further(ctx)
        return found if isinstance(found, click.Group) else None


class Commands(GuessingGroup):
    """The group of all commands. Each gets ``--config``, so that it works before and after the command's name."""

    def __init__(
        self,
        *args: Any,  # Any: click's own
        registered: Sequence[Registered],
        provided: str | None = None,
        **kwargs: Any,  # Any: click's own
    ) -> None:
        super().__init__(*args, **kwargs)
        self._registered = {each.name: each for each in registered}
        self._provided_by = provided
        add_config_option(self)

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._registered, *super().list_commands(ctx), *self._find_provided(ctx)})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (registered := self._registered.get(cmd_name)) is None:
            return super().get_command(ctx, cmd_name) or self._load_provided(ctx, cmd_name)
        command: click.Command = getattr(import_module(registered.module), f"{cmd_name.replace('-', '_')}_command")
        add_config_option(command)
        if isinstance(command, ExtensibleGroup):
            command.further = partial(self._load_provided, name=cmd_name)
        return command

    def _load_provided(self, ctx: click.Context, name: str) -> click.Command | None:
        if (provided := self._find_provided(ctx).get(name)) is None:
            return None
        command = provided.load()
        ctx.find_root().obj = import_module(_CONTEXT).HostCommandContext()
        add_config_option(command)
        return command

    def _find_provided(self, ctx: click.Context) -> Mapping[str, Provided]:
        """Return the commands of hook modules, searched once."""
        if self._provided_by is None:
            return {}
        if _PROVIDED not in ctx.meta:
            taken = [name for name, each in self._registered.items() if not each.extensible]
            with ctx.scope(cleanup=False):  # so that --config counts
                ctx.meta[_PROVIDED] = import_module(self._provided_by).find_commands(taken)
        found: Mapping[str, Provided] = ctx.meta[_PROVIDED]
        return found

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing the host's commands."""
        helps = {name: each.help for name, each in self._find_provided(ctx).items()}
        helps |= {name: each.help for name, each in self._registered.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, helps.get(name, "")) for name in self.list_commands(ctx)])


def add_config_option(command: click.Command) -> None:
    """Add ``--config`` to a command and its subcommands, and keep click from cutting their summaries; idempotent."""
    if not any(parameter.name == "config_files" for parameter in command.params):
        command.params.append(config_option())
    command.short_help = command.get_short_help_str(LONGEST_SUMMARY)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        add_config_option(below)


def config_option(
    text: str = f"Read this file instead of {FILES_VARIABLE} or /etc/auditord/auditord.yml; several files are merged.",
) -> click.Option:
    """Return the option ``--config`` with this help."""
    return click.Option(
        ["--config", "config_files"],
        type=click.Path(path_type=Path, readable=False),  # reading it says more
        multiple=True,
        expose_value=False,
        callback=_remember,
        metavar="FILE",
        help=text,
    )


def _remember(ctx: click.Context, _: click.Parameter, value: tuple[Path, ...]) -> None:
    if value:
        ctx.meta[_CONFIG] = (*ctx.meta.get(_CONFIG, ()), *value)


def config_paths() -> Sequence[Path] | None:
    """Return the files that the user named, in order; None for the default file. Works only within a command."""
    paths: Sequence[Path] | None = click.get_current_context().meta.get(_CONFIG)
    return paths or [Path(each) for each in os.environ.get(FILES_VARIABLE, "").split(os.pathsep) if each] or None


def print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 click's signature
    """Print the versions of auditord, Python and all required distributions, and exit."""
    if not value:
        return
    sys.stdout.write(f"auditord {__version__}\n")
    sys.stdout.write(f"Python {platform.python_version()}\n")
    from importlib.metadata import PackageNotFoundError, requires, version  # noqa: PLC0415 slow, needed only here

    try:
        declared = requires("auditord") or []
    except PackageNotFoundError:  # auditord is not installed, but run from its sources
        declared = []
    names = [match[0] for each in declared if "extra ==" not in each and (match := _REQUIREMENT_NAME.match(each))]
    for name in sorted(names, key=str.lower):
        sys.stdout.write(f"{name} {version(name)}\n")
    ctx.exit()
