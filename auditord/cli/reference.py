"""The reference of all commands as Markdown, made of what they say about themselves.

Commands that hook modules provide are in it, as far as they are installed.
"""

import inspect
from collections.abc import Iterator
from typing import Final

import click

from auditord.cli import auditord

_EVERYWHERE: Final = frozenset({"--config", "--help"})

_BEGINNING: Final = """\
# Every command

`auditord [OPTIONS] COMMAND [ARGUMENTS]`

Every command takes `--help`, and `--config FILE`, which reads this file instead of `/etc/auditord/auditord.yml`;
several are merged.
"""


def markdown() -> str:
    """The whole reference."""
    context = click.Context(auditord, info_name="auditord", **auditord.context_settings)
    names = auditord.list_commands(context)
    return "\n".join([_BEGINNING, *(command_markdown(name) for name in names)])


def command_markdown(name: str) -> str:
    """A command, and those below it: usage, help and options.

    Raises:
        KeyError: there is no such command.
    """
    context = click.Context(auditord, info_name="auditord", **auditord.context_settings)
    command = auditord.get_command(context, name)
    if command is None:
        raise KeyError(name)
    return "\n".join(_lines(command, click.Context(command, info_name=name, parent=context), 2))


def _lines(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {context.command_path}", "")
    if isinstance(command, click.Group):
        yield from (*_paragraphs(command), "")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _lines(below, click.Context(below, info_name=name, parent=context), level + 1)
        return
    usage = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    yield from (f"`{' '.join([context.command_path, '[OPTIONS]', *usage])}`", "", *_paragraphs(command), "")
    yield from (*option_lines(command, context, _EVERYWHERE), "")


def _paragraphs(command: click.Command) -> Iterator[str]:
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        yield from (("", " ".join(paragraph.split())) if number else (" ".join(paragraph.split()),))


def option_lines(
    command: click.Command, context: click.Context, left_out: frozenset[str] = frozenset()
) -> Iterator[str]:
    """An item of a list for each option."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None and not left_out.intersection(parameter.opts):
            yield f"- `{record[0]}`: {record[1]}"
