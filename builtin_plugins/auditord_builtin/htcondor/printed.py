"""From the bytes that ``condor_history`` prints to rows, whatever users wrote into their jobs.

``-af`` escapes nothing and separates values by a space. But it prints expressions, and a string is one: so a random
word that nobody can have written into a job stands between the columns. Cut at that word, every row has the same
number of pieces, and what stands between rows is the newline that ends one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from auditord_builtin.htcondor.ads import row_of_json
from auditord_hookspecs import CommandFailed
from auditord_hookspecs.mapping import Row

_NOTHING: Final = frozenset({"undefined", "error", ""})


@dataclass(frozen=True, slots=True)
class Printed:
    """What condor_history printed.

    Args:
        rows: the texts of each job by column, in the order of the output: the newest first.
        unreadable: lines that belong to no job.
    """

    rows: Sequence[Row]
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
    rows: list[Row] = []
    unreadable = _lines(first)
    for start in range(0, len(chunks), width):
        *values, after = chunks[start : start + width]
        rows.append(_row(columns, values))
        unreadable += _lines(after)
    if unreadable and not rows:
        raise CommandFailed(f"condor_history: the output is no list of jobs: {unreadable[0][:80]!r}")
    return Printed(rows, unreadable)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _row(columns: Sequence[str], values: Sequence[str]) -> Row:
    texts = (value.removeprefix(" ").removesuffix(" ") for value in values)
    return {column: text for column, text in zip(columns, texts, strict=True) if text not in _NOTHING}


def parse_json(output: bytes, columns: Sequence[str]) -> Printed:
    """Read what ``-json`` prints, a list of ads; nothing at all is no answer.

    Raises:
        CommandFailed: the output is not whole, or something else.
    """
    ads = _decoded(output)
    if not output.lstrip().startswith(b"["):
        raise CommandFailed("condor_history: the output is no JSON list of ads")
    return _from_ads(ads, columns)


def parse_json_lines(output: bytes, columns: Sequence[str]) -> Printed:
    """Read what ``-jsonl`` prints, an ad per line.

    Raises:
        CommandFailed: the output is not whole, or something else.
    """
    if output and not output.endswith(b"\n"):
        raise CommandFailed(f"condor_history: the output is cut off: it ends in {output[-80:]!r}")
    return _from_ads([_decoded(line) for line in output.split(b"\n") if line.strip()], columns)


def _from_ads(ads: Sequence[Any], columns: Sequence[str]) -> Printed:  # Any: what JSON holds
    if not all(isinstance(ad, dict) for ad in ads):
        raise CommandFailed("condor_history: the output is no list of ads")
    return Printed([row_of_json(ad, columns) for ad in ads])


def _decoded(output: bytes) -> Any:  # Any: what JSON holds
    try:
        # Not msgspec: HTCondor escapes slashes, and prints numbers such as nan that are no JSON.
        return json.loads(output.decode(errors="replace"), strict=False)
    except ValueError as error:
        raise CommandFailed(f"condor_history: the output is cut off or no JSON: it ends in {output[-80:]!r}") from error
