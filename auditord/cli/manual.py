"""``auditord manual``: read and search the manual on the terminal.

The reference of all commands is generated from their help and includes the commands of installed hook modules.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Final

import click
from rich.console import Console
from rich.markdown import Markdown

from auditord.cli import auditord
from auditord.cli.tables import new_table, print_table
from auditord.manual import find, text_of, topics
from auditord.manual.topics import INDEX
from auditord_hookspecs import AuditordError
from auditord_hookspecs.terminal import say, write

_LINK: Final = re.compile(r"\[([^]]+)\]\((?:([\w-]+)\.md)?(?:#[\w-]*)?\)")
"""A link to another topic or within the same one; not to the web."""


@click.command("manual")
@click.argument("words", nargs=-1, metavar="[TOPIC | WORD…]")
@click.option("--search", is_flag=True, help="Search even if a topic has that name.")
def manual_command(words: Sequence[str], *, search: bool) -> None:
    """Read a topic of the manual, or list the sections that contain all WORDs.

    Without arguments, lists the topics. Prints plain Markdown into a pipe.
    """
    topic = words[0].removesuffix(".md") if len(words) == 1 else None
    if not words:
        lines, chapter = [text_of(INDEX).partition("\n## ")[0].rstrip()], ""
        for each in topics().values():
            if each.chapter != chapter:
                chapter = each.chapter
                lines.append(f"\n## {chapter}\n")
            lines.append(f"- `auditord manual {each.name}`: {each.title}")
        _show("\n".join(lines) + "\n")
    elif topic in topics() and not search:
        _show(text_of(topic))
    else:
        table = new_table("topic", "section", "")
        for found in find(words):
            table.add_row(found.topic.name, found.heading, found.line)
        if not table.row_count:
            raise AuditordError(f"the manual has nothing about '{' '.join(words)}'; topics: {', '.join(topics())}")
        print_table(table)
        if sys.stdout.isatty():
            say()
            say("auditord manual TOPIC shows a topic.")


def _show(text: str) -> None:
    """Print Markdown: unchanged in a pipe, formatted and paged on a terminal."""
    if not sys.stdout.isatty():
        write(text)
        return
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=min(Console().width, 120))
    console.print(Markdown(_LINK.sub(_with_command, text), hyperlinks=False))
    click.echo_via_pager(screen.getvalue())


def _with_command(link: re.Match[str]) -> str:
    """Return the text of a link, with the command that shows the other topic."""
    return f"{link[1]} (`auditord manual {link[2]}`)" if link[2] else link[1]


_EVERYWHERE: Final = frozenset({"--config", "--help"})

_BEGINNING: Final = """\
# Every command

`auditord [OPTIONS] COMMAND [ARGUMENTS]`

Every command takes `--help`, and `--config FILE`, which reads this file instead of `/etc/auditord/auditord.yml`;
several files are merged.
"""


def markdown() -> str:
    context = click.Context(auditord, info_name="auditord", **auditord.context_settings)
    names = auditord.list_commands(context)
    return "\n".join([_BEGINNING, *(command_markdown(name) for name in names)])


def command_markdown(name: str) -> str:
    """Return usage, help and options of a command and its subcommands.

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
    """Yield a list item for each option."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None and not left_out.intersection(parameter.opts):
            yield f"- `{record[0]}`: {record[1]}"
