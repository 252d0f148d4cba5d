"""Convert the manual's Markdown to man pages, in the macros of man(7).

click-man would only write the texts of ``--help``, and has no topics. markdown-it parses, as it does for the page.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from markdown_it.token import Token

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
