"""From the bytes that ``condor_history`` prints to ads, whatever users wrote into their jobs.

``-af`` escapes nothing and separates values by a space. But it prints expressions, and a string is one: so a random
word that nobody can have written into a job stands between the columns. Cut at that word, every row has the same
number of pieces, and what stands between rows is the newline that ends one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from auditord_builtin.htcondor.ads import JobAd, split_json
from auditord_hookspecs import CommandFailed
from auditord_hookspecs.mapping import Row

_NOTHING: Final = frozenset({"undefined", "error", ""})


@dataclass(frozen=True, slots=True)
class Printed:
    """The output of condor_history: jobs, the newest first, and unreadable lines that belong to none."""

    ads: Sequence[JobAd]
    unreadable: Sequence[str] = ()


def parse_separated(output: bytes, columns: Sequence[str], word: str) -> Printed:
    """Cut the output of ``-af "word" column "word" … column "word"`` into rows.

    Raises:
        CommandFailed: the output is not whole, or something else.
    """
    first, *chunks = output.decode(errors="replace").split(word)
    width = len(columns) + 1
    if len(chunks) % width or (chunks and not chunks[-1].endswith("\n")):
        raise CommandFailed(f"condor_history: the output is cut off: it ends in {output[-80:]!r}")
    ads: list[JobAd] = []
    unreadable = _lines(first)
    for start in range(0, len(chunks), width):
        *values, after = chunks[start : start + width]
        ads.append(JobAd(_row(columns, values)))
        unreadable += _lines(after)
    if unreadable and not ads:
        raise CommandFailed(f"condor_history: the output is no list of jobs: {unreadable[0][:80]!r}")
    return Printed(ads, unreadable)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _row(columns: Sequence[str], values: Sequence[str]) -> Row:
    texts = (value.removeprefix(" ").removesuffix(" ") for value in values)
    return {column: text for column, text in zip(columns, texts, strict=True) if text not in _NOTHING}


def cut_json(output: bytes) -> list[str]:
    """The ads of what ``-json`` prints, a list; nothing at all is no answer.

    Raises:
        CommandFailed: the output is not whole, or something else.
    """
    text = output.decode(errors="replace").strip()
    if not text.startswith("["):
        raise CommandFailed("condor_history: the output is no JSON list of ads")
    if not text.endswith("]") or len(text) < len("[]"):
        raise _cut_off(output)
    return _cut(text[1:-1], {"", ","}, output)


def cut_json_lines(output: bytes) -> list[str]:
    """The ads of what ``-jsonl`` prints, one per line.

    Raises:
        CommandFailed: the output is not whole, or something else.
    """
    if output and not output.endswith(b"\n"):
        raise _cut_off(output)
    return _cut(output.decode(errors="replace"), {""}, output)


def _cut(text: str, between: set[str], output: bytes) -> list[str]:
    """The objects, if nothing but the given texts stands between them."""
    ads, done = list[str](), 0
    for ad in split_json(text):
        start = text.index(ad, done)
        if text[done:start].strip() not in between:
            raise _cut_off(output)
        ads.append(ad)
        done = start + len(ad)
    if text[done:].strip():
        raise _cut_off(output)
    return ads


def _cut_off(output: bytes) -> CommandFailed:
    return CommandFailed(f"condor_history: the output is cut off or no JSON: it ends in {output[-80:]!r}")
