"""Split the output of ``condor_history`` into ads."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from auditord_builtin.htcondor.ads import JobAd
from auditord_hookspecs import CommandFailed

_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}]', re.DOTALL)


def split_json(text: str) -> Iterator[str]:
    """Yield the complete objects, of any depth, in the output of ``-json`` or ``-jsonl``."""
    depth = start = 0
    for token in _JSON_TOKEN.finditer(text):
        if token[0] == "{":
            start = token.start() if depth == 0 else start
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                yield text[start : token.end()]


_NOTHING: Final = frozenset({"undefined", "error", ""})


class Printed(msgspec.Struct, frozen=True):
    """The output of condor_history: ads, newest first unless reversed, and unreadable lines."""

    ads: Sequence[JobAd]
    unreadable: Sequence[str] = ()


def parse_separated(output: bytes, columns: Sequence[str], word: str) -> Printed:
    """Split the output of ``-af "word" column "word" … column "word"`` into rows.

    Raises:
        CommandFailed: the output is truncated, or has an unexpected form.
    """
    first, *chunks = output.decode(errors="replace").split(word)
    width = len(columns) + 1
    if len(chunks) % width or (chunks and not chunks[-1].endswith("\n")):
        raise CommandFailed(f"condor_history: the output is cut off: it ends in {output[-80:]!r}")
    ads: list[JobAd] = []
    unreadable = _output_lines(first)
    for start in range(0, len(chunks), width):
        *values, after = chunks[start : start + width]
        cells = (value.removeprefix(" ").removesuffix(" ") for value in values)
        ads.append(JobAd({name: cell for name, cell in zip(columns, cells, strict=True) if cell not in _NOTHING}))
        unreadable += _output_lines(after)
    if unreadable and not ads:
        raise CommandFailed(f"condor_history: the output is not a list of jobs: {unreadable[0][:80]!r}")
    return Printed(ads, unreadable)


def _output_lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def cut_json(output: bytes) -> list[str]:
    """Return the ads in the output of ``-json``, which is a list.

    Raises:
        CommandFailed: the output is empty, truncated, or has an unexpected form.
    """
    text = output.decode(errors="replace").strip()
    if not text.startswith("["):
        raise CommandFailed("condor_history: the output is not a JSON list of ads")
    if not text.endswith("]") or len(text) < len("[]"):
        raise _cut_off(output)
    return _cut(text[1:-1], {"", ","}, output)


def cut_json_lines(output: bytes) -> list[str]:
    """Return the ads in the output of ``-jsonl``, one per line.

    Raises:
        CommandFailed: the output is truncated, or has an unexpected form.
    """
    if output and not output.endswith(b"\n"):
        raise _cut_off(output)
    return _cut(output.decode(errors="replace"), {""}, output)


def _cut(text: str, between: set[str], output: bytes) -> list[str]:
    """Return the objects. Raise CommandFailed if anything except the ``between`` texts separates them."""
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
    return CommandFailed(f"condor_history: the output is cut off or not JSON: it ends in {output[-80:]!r}")
