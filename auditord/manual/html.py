"""Convert the manual's Markdown to HTML, for the page."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_TO_TOPIC: Final = re.compile(r"([\w-]+)\.md(#.*)?")


def as_html(text: str, address: Callable[[str], str]) -> str:
    """Return HTML without head and body. Headings get anchors, and HTML in the text is escaped.

    Args:
        text: Markdown of a topic.
        address: returns the address of another topic on the page, by its name.
    """
    reader = markdown_reader()
    tokens = reader.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[at + 1].content))
        for link in token.children or ():
            if link.type == "link_open" and (match := _TO_TOPIC.fullmatch(str(link.attrs["href"]))):
                link.attrSet("href", f"{address(match[1])}{match[2] or ''}")
    rendered: str = reader.renderer.render(tokens, reader.options, {})
    return rendered.replace("<pre>", '<pre tabindex="0">')  # lets the keyboard scroll parts wider than the page


def markdown_reader() -> "MarkdownIt":
    """Return the parser of the manual's Markdown: CommonMark with tables, and HTML as text."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 a daemon starts without the manual

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as on hosting sites: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
