"""The topics of the manual: names, titles and Markdown, and a search in all of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pkgutil import resolve_name
from typing import Final

import msgspec

INDEX: Final = "index"
"""The name of the contents page, which names every other topic."""

REFERENCES: Final[Mapping[str, tuple[str, str | None]]] = {
    "commands": ("Every command and its options", "auditord.cli.manual:markdown"),
    "options": ("Every option of the configuration", "auditord.hooks.options:markdown"),
    "metrics": ("Every metric", None),
    "routes": ("Every route of the API", "auditord.web.api.document:markdown"),
    "hooks": ("Every hook", None),
    "errors": ("Every error, its cause and its remedy", None),
    "types": ("Every type of the contract with hook modules", None),
}
"""Titles of the references. Those with a function are written on request, so that they include the commands and options
of installed third-party modules; the others are files in the folder ``reference``."""

_CHAPTER: Final = re.compile(r"## (.+)")
_ENTRY: Final = re.compile(r"- \[(.+)\]\((\w[\w-]*)\.md\)")
_HEADING: Final = re.compile(r"#+ (.+)")


class Topic(msgspec.Struct, frozen=True):
    """A page of the manual."""

    name: str
    title: str
    chapter: str


class SearchHit(msgspec.Struct, frozen=True):
    """A section that contains all words of a search."""

    topic: Topic
    heading: str
    line: str


@cache
def topics() -> Mapping[str, Topic]:
    """Return all topics by name, in the order of the contents page; the references come last."""
    found, chapter = dict[str, Topic](), ""
    for line in text_of(INDEX).splitlines():
        if match := _CHAPTER.fullmatch(line):
            chapter = match[1]
        elif match := _ENTRY.fullmatch(line):
            found[match[2]] = Topic(match[2], match[1], chapter)
    return found | {name: Topic(name, title, "Look up") for name, (title, _) in REFERENCES.items()}


@cache
def text_of(name: str) -> str:
    """Return the Markdown of a topic, or of the contents page.

    Raises:
        KeyError: there is no such topic.
    """
    if name != INDEX and name not in topics():
        raise KeyError(name)
    _, write = REFERENCES.get(name, ("", None))
    if write is not None:
        written: str = resolve_name(write)()
        return written
    folder = files(__package__ or "")
    return (folder / "reference" if name in REFERENCES else folder).joinpath(f"{name}.md").read_text("utf-8")


def find(words: Sequence[str]) -> Iterator[SearchHit]:
    """Yield the sections that contain all words, ignoring case; those with whole words in the heading come first."""
    wanted = [word.casefold() for word in words]
    hits = list[SearchHit]()
    for topic in topics().values():
        for heading, lines in _sections(text_of(topic.name)):
            if not _has(f"{topic.name} {topic.title} {heading} {' '.join(lines)}", wanted):
                continue
            with_word = (line for line in lines if any(word in line.casefold() for word in wanted))
            if (line := next(with_word, None)) is not None or _has(heading, wanted):
                hits.append(SearchHit(topic, heading, line or heading))

    def place(hit: SearchHit) -> tuple[bool, bool]:
        title = f"{hit.topic.name} {hit.heading}".casefold()
        return not set(wanted).issubset(re.findall(r"\w+", title)), not _has(title, wanted)

    yield from sorted(hits, key=place)


def _has(text: str, wanted: Sequence[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in wanted)


def _sections(text: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the headings, and the lines below each; a ``#`` in a code block is not a heading."""
    heading, lines, in_code = "", list[str](), False
    for line in text.splitlines():
        in_code ^= line.lstrip().startswith("```")
        if not in_code and (match := _HEADING.fullmatch(line)):
            if heading:
                yield heading, lines
            heading, lines = match[1], []
        elif line.strip():
            lines.append(line.strip())
    yield heading, lines
