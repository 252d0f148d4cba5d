"""SQL that lives long, in ``.sql`` files beside the code that runs it.

Statements go by their names; migrations are numbered scripts: ``0001_slug.sql``, ``0002_slug.sql``, … . A statement may
have names in braces in the places of words: ``{like_this}``, or ``{like this}`` for a word with an argument.
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
    """The statements of packaged files by name: each follows a line ``-- name: do_something`` and its purpose.

    Args:
        package: where the files are.
        files: their names; ``queries.sql`` if there are none.
        words: the texts for names in braces, with other braces in the place of an argument.
        parameter: how the database has a parameter ``:name``, with braces in the place of the name.

    Raises:
        ValueError: two statements have one name, or a word is not among ``words``.
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
    # A packaged file is as constant as a literal: nothing that a user says gets into it.
    return cast("dict[str, LiteralString]", dict(zip(names, bound, strict=True)))


class Script(msgspec.Struct, frozen=True):
    """One migration.

    Args:
        version: the schema's version once it has run, from 1 on.
        name: the file without its ending.
        sql: what it does.
    """

    version: int
    name: str
    sql: LiteralString


def load_scripts(package: str) -> Sequence[Script]:
    """The scripts of a package in order.

    Raises:
        ValueError: they are not numbered 1, 2, 3, … .
    """
    files = sorted((file for file in resources.files(package).iterdir() if file.name.endswith(".sql")), key=str)
    matches = [_FILE.fullmatch(file.name) for file in files]
    if not files or [match and int(match[1]) for match in matches] != list(range(1, len(files) + 1)):
        raise ValueError(f"{package} must hold 0001_slug.sql, 0002_slug.sql, …, and holds {[f.name for f in files]}")
    # A packaged file is as constant as a literal: nothing that a user says gets into it.
    texts = cast("list[LiteralString]", [file.read_text(encoding="utf-8") for file in files])
    names = [file.name.removesuffix(".sql") for file in files]
    return [Script(*each) for each in zip(range(1, len(files) + 1), names, texts, strict=True)]
