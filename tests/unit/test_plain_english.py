"""The product's prose is plain English, and functions are verbs: exceptions are counted, and may only become fewer."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("auditord", "builtin_plugins", "hookspecs")

MOST: Final = 0
"""The number of riddles in the product. It may only fall."""

RIDDLES: Final = {
    r"of which": "split the sentence, and name the thing again",
    r"as (?:it|they) (?:is|are|was|were)": "say which state: unchanged, stored, reported",
    r"so (?:many|much|long|often)": "begin with the number: 'Seconds before …', 'Retries of …'",
    r"such as it was": "say which earlier value",
    r"for what": "say 'why' or 'for which'",
    r"what (?:is|are|was|were|has|have|came|comes|goes|follows|waits|differs|remains)": "name the thing",
    r"wh(?:o|at)ever": "say 'any', or name the thing",
    r"(?:no|some)body": "name the reader, caller or user",
    r"the other way round": "say 'vice versa', or both directions",
    r"there may be": "say 'can exist', with the thing first",
    r"takes? part": "say what the thing does",
    r"(?:is|are) going on|goes? on": "say 'current', 'continue' or 'resume'",
    r"in between": "say 'since the last run' or 'meanwhile'",
    r"if need be": "say when",
}
"""Phrases that make a reader stop, each with the form to write instead."""

_PATTERN: Final = re.compile(rf"\b(?:{'|'.join(RIDDLES)})\b", re.IGNORECASE)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The comments and the texts of a module, with their lines; a text has two words or more."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def riddles() -> list[str]:
    """Each riddle with its place: the file, the line, and the phrase."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {' '.join(found[0].split())}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in prose(path.read_text())
        for found in _PATTERN.finditer(" ".join(text.split()))
    ]


def test_riddles_only_become_fewer() -> None:
    found = riddles()
    assert len(found) <= MOST, "\n".join(found)


MOST_PARTICIPLES: Final = 4
"""The number of functions in the product that are named by a participle. It may only fall."""

_PARTICIPLE: Final = re.compile(
    r"_*(?!need|feed|seed|embed|speed|proceed|succeed|exceed|shed)"
    r"([a-z]+ed|shown|known|kept|built|held|written|given|taken|made|sent|found|told|done|gone|left|drawn|chosen|without)"
    r"(_|$)"
)
"""Matches names such as ``summed``, which read like values; ``sum_up`` is better."""


def participles() -> list[str]:
    """Each function named by a participle. Properties, alternate constructors and overrides may have such a name."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _PARTICIPLE.match(node.name)
        and not re.search("property|classmethod|override", " ".join(map(ast.unparse, node.decorator_list)))
    ]


def test_functions_named_by_a_participle_only_become_fewer() -> None:
    found = participles()
    assert len(found) <= MOST_PARTICIPLES, "\n".join(found)
