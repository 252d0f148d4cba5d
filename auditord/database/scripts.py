"""Numbered SQL scripts, packaged beside the code that uses the tables: ``0001_slug.sql``, ``0002_slug.sql``, … ."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import LiteralString, cast

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Script:
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
