"""Write the man pages into a folder: ``python man_pages.py FOLDER``, with the python of an installed auditord.

There is one for each command, auditord-epilog(1) and auditord.yml(5). click-man would only write the texts of
``--help``, without files, environment and exit status. markdown-it parses the Markdown, as it does for the page.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from markdown_it.token import Token

from auditord import __version__
from auditord.cli import auditord
from auditord.cli.manual import command_markdown, option_lines
from auditord.manual import text_of
from auditord.manual.html import markdown_reader

_FONTS: Final = {
    "strong_open": r"\fB", "strong_close": r"\fR", "em_open": r"\fI", "em_close": r"\fR", "softbreak": "\n",
    "hardbreak": "\n.br\n",
}  # fmt: skip
_PLAIN: Final = {
    "bullet_list_close": (".RE",), "ordered_list_close": (".RE",), "bullet_list_open": (".RS 0",),
    "ordered_list_open": (".RS 0",),
}  # fmt: skip


def man_page(name: str, section: int, summary: str, text: str, version: str) -> str:
    """Return a man page.

    Args:
        name: of the page, such as ``auditord-run``.
        section: of the system's manual.
        summary: one line, for apropos.
        text: Markdown; headings of the second level become sections, a heading of the first level is left out.
        version: of the program, for the footer.
    """
    blocks = list(_blocks(markdown_reader().parse(text)))
    lines = [
        f'.TH {escaped(name.upper())} {section} "" "auditord {escaped(version)}" "auditord"',
        ".SH NAME",
        rf"{escaped(name)} \- {escaped(summary)}",
        *([".SH DESCRIPTION"] if blocks and not blocks[0].startswith(".SH") else ()),
        *blocks,
    ]
    return "".join(f"{line}\n" for line in lines)


def _blocks(tokens: Sequence[Token]) -> Iterator[str]:
    begins_item, cells = False, list[str]()
    for at, token in enumerate(tokens):
        match token.type:
            case "heading_open" if token.tag != "h1":
                yield f".SS {_inline(tokens[at + 1])}" if token.tag != "h2" else f".SH {_inline(tokens[at + 1])}"
            case "list_item_open":
                begins_item = True
            case "inline" if tokens[at - 1].type in {"td_open", "th_open"}:
                cells.append(_inline(token))
            case "tr_close":
                yield from (".TP", cells[0] or r"\&", " ".join(cells[1:]) or r"\&")
                cells = []
            case "inline" if tokens[at - 1].type == "paragraph_open":
                yield from _item(token) if begins_item else (".IP" if token.level > 1 else ".PP", _inline(token))
                begins_item = False
            case "fence" | "code_block":
                yield from (".RS 4", ".EX", *map(escaped, token.content.splitlines()), ".EE", ".RE")
            case _:
                yield from _PLAIN.get(token.type, ())


def _item(token: Token) -> Iterator[str]:
    """Yield the first paragraph of a list item: as a term and its text, if it begins with code and a colon."""
    children = token.children or []
    rest = children[1:]
    if children and children[0].type == "code_inline" and rest and rest[0].content.startswith(":"):
        rest[0].content = rest[0].content.removeprefix(":").lstrip()
        yield from (".TP", _spans(children[:1]), _spans(rest) or r"\&")
    else:
        yield from (r".IP \(bu 2", _inline(token))


def _inline(token: Token) -> str:
    return _spans(token.children or [])


def _spans(spans: Sequence[Token]) -> str:
    written = "".join(_span(each) for each in spans)
    return rf"\&{written}" if written.startswith((".", "'")) else written


def _span(span: Token) -> str:
    text = escaped(span.content).removeprefix(r"\&")
    return rf"\fB{text}\fR" if span.type == "code_inline" else _FONTS.get(span.type, text)


def escaped(text: str) -> str:
    r"""Escape a text for roff: ``\``, ``-`` (which would become a hyphen), quotes, and a leading dot."""
    safe = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...").replace("'", r"\(aq")
    return rf"\&{safe}" if safe.startswith(".") else safe


_DESCRIPTION: Final = """\
## SYNOPSIS

**auditord** [*OPTIONS*] *COMMAND* [*ARGUMENTS*]

## DESCRIPTION

auditord collects finished jobs from batch systems, keeps them as records, serves them over the REST API of AUDITOR and
reports them. One daemon, `auditord run`, does all of this; the other commands inspect and control it.
`auditord manual` shows the manual.
"""

_ENDING: Final = """\
## FILES

- `/etc/auditord/auditord.yml`: The configuration, see **auditord.yml**(5).
- `/etc/auditord/conf.d/*.yml`: Merged into it in the order of their names.
- `/etc/auditord/credentials`: Secrets for the service; credential:secret_NAME in the configuration is file NAME.
- `/var/lib/auditord`: The queue, the collectors' checkpoints, and the records, unless store.url says otherwise.
- `/run/auditord/api.sock`: The API's socket, for the group of the service.

## ENVIRONMENT

- `AUDITORD_CONFIG`: Files to read if --config names none, separated by colons.
- `AUDITORD_SECTION__OPTION`: Overrides the files: AUDITORD_COLLECTORS__SLURM__INTERVAL=10m. Lists are JSON.
- `AUDITOR_APPLICATION__*, AUDITOR_DATABASE__*, AUDITOR_LOG_LEVEL`: AUDITOR's variables; accepted, with a warning.

## EXIT STATUS

- `0`: The command succeeded.
- `1`: The command failed; standard error says why.
- `2`: The command line is wrong.
- `3`: status: no daemon answers. database status: a migration is due. audit: records are missing, different or extra.
- `4`: waldur report: nothing could be reported.

`auditord manual exit-codes` lists them by command.
"""


def man_pages() -> Mapping[str, str]:
    """Return all man pages by file name: auditord(1), one per command, auditord-epilog(1), auditord.yml(5)."""
    context = click.Context(auditord, info_name="auditord", **auditord.context_settings)
    helps = {name: _help(context, name) for name in auditord.list_commands(context)}
    listed = "\n".join(f"- `auditord {name}`: {text} See **auditord-{name}**(1)." for name, text in helps.items())
    options = "\n".join(option_lines(auditord, context))
    text = f"{_DESCRIPTION}\n## OPTIONS\n\n{options}\n\n## COMMANDS\n\n{listed}\n\n{_ENDING}"
    return {
        "auditord.1": _page("auditord", 1, "accounting of computing resources", text),
        **{f"auditord-{name}.1": _page(f"auditord-{name}", 1, text, _described(name)) for name, text in helps.items()},
        "auditord-epilog.1": _page(
            "auditord-epilog", 1, "note that a job of Slurm has ended", text_of("auditord-epilog")
        ),
        "auditord.yml.5": _page("auditord.yml", 5, "configuration of auditord", text_of("options")),
    }


def _help(context: click.Context, name: str) -> str:
    command = auditord.get_command(context, name)
    return command.get_short_help_str(200) if command is not None else ""


def _described(name: str) -> str:
    """Return the sections of a command's man page."""
    return f"{command_markdown(name)}\n## SEE ALSO\n\n**auditord**(1), **auditord.yml**(5)\n"


def _page(name: str, section: int, summary: str, text: str) -> str:
    return man_page(name, section, summary.rstrip("."), text, __version__)


def main() -> None:
    """Write all pages into the folder that is named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in man_pages().items():
        (folder / name).write_text(page)


if __name__ == "__main__":
    main()
