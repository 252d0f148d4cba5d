"""SQL that lives long, in ``.sql`` files beside the code that runs it.

Statements go by their names; migrations are numbered scripts: ``0001_slug.sql``, ``0002_slug.sql``, … . A statement may
have a name in braces for a list of columns, ``{like_this}``.
"""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import LiteralString, cast

import msgspec

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_NAME = re.compile(r"^-- name: ([a-z_]+)\n", re.MULTILINE)
_LIST = re.compile(r"\{(.*?)\}", re.DOTALL)


def load_queries(
    package: str, *files: str, lists: Mapping[str, LiteralString] = MappingProxyType({})
) -> Mapping[str, LiteralString]:
    """The statements of packaged files by name: each follows a line ``-- name: do_something`` and its purpose.

    Args:
        package: where the files are.
        files: their names; ``queries.sql`` if there are none.
        lists: the texts for names in braces.

    Raises:
        ValueError: two statements have one name, or a list has a name that is not among ``lists``.
    """
    texts = [resources.files(package).joinpath(file).read_text(encoding="utf-8") for file in files or ("queries.sql",)]
    parts = [part for text in texts for part in _NAME.split(text)[1:]]
    names, statements = parts[::2], parts[1::2]
    if len(set(names)) < len(names):
        raise ValueError(f"{package} names a statement twice: {names}")
    if unknown := {name for text in texts for name in _LIST.findall(text)} - lists.keys():
        raise ValueError(f"{package} names lists that are not known: {sorted(unknown)}")
    filled = [_LIST.sub(lambda found: lists[found[1]], each) for each in statements]
    # A packaged file is as constant as a literal: nothing that a user says gets into it.
    return cast("dict[str, LiteralString]", dict(zip(names, filled, strict=True)))


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
