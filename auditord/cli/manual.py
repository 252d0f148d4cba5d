"""``auditord manual``: read and search the manual on the terminal, or write man pages."""

import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from auditord.cli.reference import man_pages
from auditord.cli.tables import new_table, print_table
from auditord.manual import find, text_of, topics
from auditord.manual.topics import INDEX
from auditord_hookspecs import AuditordError
from auditord_hookspecs.terminal import say, write


@click.command("manual")
@click.argument("words", nargs=-1, metavar="[TOPIC | WORD…]")
@click.option("--search", is_flag=True, help="Search even if a topic has that name.")
@click.option(
    "--man-pages",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write man pages into a folder: one per command, auditord-epilog(1) and auditord.yml(5).",
)
def manual_command(words: Sequence[str], folder: Path | None, *, search: bool) -> None:
    """Read a topic of the manual, or list the sections that contain all WORDs.

    Without arguments, lists the topics. Prints plain Markdown into a pipe.
    """
    topic = words[0].removesuffix(".md") if len(words) == 1 else None
    if folder is not None:
        _write_man_pages(folder)
    elif not words:
        _show(_contents())
    elif topic in topics() and not search:
        _show(text_of(topic))
    else:
        _list_found(words)


def _contents() -> str:
    """Return the contents page, with the command for each topic."""
    lines = [text_of(INDEX).partition("\n## ")[0].rstrip()]
    chapter = ""
    for topic in topics().values():
        if topic.chapter != chapter:
            chapter = topic.chapter
            lines.append(f"\n## {chapter}\n")
        lines.append(f"- `auditord manual {topic.name}`: {topic.title}")
    return "\n".join(lines) + "\n"


def _show(text: str) -> None:
    """Print Markdown: unchanged in a pipe, formatted and paged on a terminal."""
    if not sys.stdout.isatty():
        write(text)
        return
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=min(Console().width, 120))
    console.print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(screen.getvalue())


def _list_found(words: Sequence[str]) -> None:
    table = new_table("topic", "section", "")
    for found in find(words):
        table.add_row(found.topic.name, found.heading, found.line)
    if not table.row_count:
        raise AuditordError(f"the manual has nothing about '{' '.join(words)}'; topics: {', '.join(topics())}")
    print_table(table)
    if sys.stdout.isatty():
        say()
        say("auditord manual TOPIC shows a topic.")


def _write_man_pages(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in man_pages().items():
        (folder / name).write_text(page)
    say(f"{len(man_pages())} man pages are in {folder}")
