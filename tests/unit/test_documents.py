"""The repository's Markdown: each link leads somewhere, and the manual's contents page names each topic."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "auditord/manual"
PACKAGES = ("auditord", "hookspecs", "builtin_plugins")
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / name / "README.md" for name in PACKAGES), *MANUAL.glob("*.md")]
SIZE_OF_README = 6 * 1024

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def tokens_in(path: Path) -> Iterator[Token]:
    """All tokens of a document, those of lines of text among them."""
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(path.read_text()):
        yield token
        yield from token.children or ()


def links_in(path: Path) -> list[str]:
    return [str(token.attrs["href"]) for token in tokens_in(path) if token.type == "link_open"]


def anchors_in(path: Path) -> set[str]:
    """The anchors that hosting sites give to headings: small letters, no punctuation, hyphens for spaces."""
    tokens = list(MarkdownIt().parse(path.read_text()))
    headings = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def is_dead(link: str, path: Path) -> bool:
    if link.startswith("https://"):
        return False
    name, _, anchor = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    return not target.exists() or bool(anchor and anchor not in anchors_in(target))


@each_document
def test_no_link_is_dead(path: Path) -> None:
    assert [link for link in links_in(path) if is_dead(link, path)] == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`: c\n[a](#a-b-c) [b](#gone) [c](gone.md) [d](page.md#a-b-c) [e](https://example.org/)\n")
    assert [link for link in links_in(page) if is_dead(link, page)] == ["#gone", "gone.md"]


def test_the_manual_leads_to_its_own_topics_alone() -> None:
    """It is read where nothing else of the repository is."""
    links = [link for path in MANUAL.glob("*.md") for link in links_in(path)]
    assert [link for link in links if "/" in link and not link.startswith("https://")] == []


def test_the_contents_page_names_each_topic_once() -> None:
    topics = sorted(path.name for path in MANUAL.glob("*.md") if path.name != "index.md")
    assert sorted(links_in(MANUAL / "index.md")) == topics


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= SIZE_OF_README
