"""Load SQL from ``.sql`` files beside the code that runs it.

Statements are named; migrations are numbered scripts: ``0001_slug.sql``, ``0002_slug.sql``, … . In a statement, a name
in braces stands for a word: ``{like_this}``, or ``{like this}`` for a word with an argument.
"""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import LiteralString, cast

import msgspec

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_NAME = re.compile(r"^-- name: ([a-z_]+)\n", re.MULTILINE)
_WORD = re.compile(r"\{(\w+) ?(.*?)\}", re.DOTALL)
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


def load_queries(
    package: str,
    *files: str,
    words: Mapping[str, LiteralString] = MappingProxyType({}),
    parameter: LiteralString = ":{}",
) -> Mapping[str, LiteralString]:
    """Load named statements from packaged files. Each follows a line ``-- name: do_something`` and its purpose.

    Args:
        package: the package with the files.
        files: the names of the files; ``queries.sql`` if none are given.
        words: the texts for names in braces; ``{}`` in a text stands for the argument.
        parameter: the database's form of a parameter ``:name``; ``{}`` stands for the name.

    Raises:
        ValueError: two statements have the same name, or a word is not in ``words``.
    """
    texts = [resources.files(package).joinpath(file).read_text(encoding="utf-8") for file in files or ("queries.sql",)]
    parts = [part for text in texts for part in _NAME.split(text)[1:]]
    names, statements = parts[::2], parts[1::2]
    if len(set(names)) < len(names):
        raise ValueError(f"{package} names a statement twice: {names}")
    if unknown := {name for text in statements for name, _ in _WORD.findall(text)} - words.keys():
        raise ValueError(f"{package} has words that are not known: {sorted(unknown)}")
    filled = [_WORD.sub(lambda found: words[found[1]].replace("{}", found[2]), each) for each in statements]
    bound = [_PARAMETER.sub(lambda found: parameter.format(found[1]), each) for each in filled]
    # A packaged file is as constant as a literal, without any user input.
    return cast("dict[str, LiteralString]", dict(zip(names, bound, strict=True)))


class Script(msgspec.Struct, frozen=True):
    """One migration.

    Args:
        version: the schema version that it leads to; the first is 1.
        name: the name of the file without the suffix.
        sql: the statements.
    """

    version: int
    name: str
    sql: LiteralString


def load_scripts(package: str) -> Sequence[Script]:
    """Load the scripts of a package in order.

    Raises:
        ValueError: the files are not numbered 1, 2, 3, … .
    """
    files = sorted((file for file in resources.files(package).iterdir() if file.name.endswith(".sql")), key=str)
    matches = [_FILE.fullmatch(file.name) for file in files]
    if not files or [match and int(match[1]) for match in matches] != list(range(1, len(files) + 1)):
        raise ValueError(f"{package} must hold 0001_slug.sql, 0002_slug.sql, …, and holds {[f.name for f in files]}")
    # A packaged file is as constant as a literal, without any user input.
    texts = cast("list[LiteralString]", [file.read_text(encoding="utf-8") for file in files])
    names = [file.name.removesuffix(".sql") for file in files]
    return [Script(*each) for each in zip(range(1, len(files) + 1), names, texts, strict=True)]
