"""SQL that lives long, kept by name in ``.sql`` files beside the code that runs it."""

import re
from collections.abc import Mapping
from importlib import resources
from typing import LiteralString, cast

_NAME = re.compile(r"^-- name: ([a-z_]+)\n", re.MULTILINE)


def load_queries(package: str, *files: str) -> Mapping[str, LiteralString]:
    """The statements of packaged files by name: each follows a line ``-- name: do_something`` and its purpose.

    Args:
        package: where the files are.
        files: their names; ``queries.sql`` if there are none.

    Raises:
        ValueError: two statements have one name.
    """
    texts = [resources.files(package).joinpath(file).read_text(encoding="utf-8") for file in files or ("queries.sql",)]
    parts = [part for text in texts for part in _NAME.split(text)[1:]]
    names, statements = parts[::2], parts[1::2]
    if len(set(names)) < len(names):
        raise ValueError(f"{package} names a statement twice: {names}")
    # A packaged file is as constant as a literal: nothing that a user says gets into it.
    return cast("dict[str, LiteralString]", dict(zip(names, statements, strict=True)))
