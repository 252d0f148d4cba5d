"""Files that a configuration names and that are not there, for ``auditord config check``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel

from auditord.config.documents import Path as OptionPath
from auditord.config.faults import dotted
from auditord.config.model import Configuration

_MADE: Final = frozenset({"state_dir", "folder", "results", "spool", "path"})
"""Options that name what the daemon or others make later."""


def missing_files(configuration: Configuration, is_readable: Callable[[Path], bool]) -> list[str]:
    """One line for each file that cannot be read, with the option that names it; instances that are off are left out.

    Args:
        configuration: as it was loaded.
        is_readable: tells whether this process may read a file.
    """
    return [
        f"{dotted(path)}: {value} is not there, or this user may not read it"
        for path, value in _paths(configuration, ())
        if path[-1] not in _MADE and not is_readable(value)
    ]


def _paths(value: Any, path: OptionPath) -> Iterator[tuple[OptionPath, Path]]:  # Any: what a configuration holds
    if isinstance(value, Path):
        yield path, value
    for key, member in _members(value):
        yield from _paths(member, (*path, key))


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:  # Any: what a configuration holds
    """The values in a section or list, by option or position."""
    if isinstance(value, BaseModel):
        if getattr(value, "enabled", True):
            yield from ((name, getattr(value, name)) for name in type(value).model_fields)
    elif is_dataclass(value):
        yield from ((each.name, getattr(value, each.name)) for each in fields(value))
    elif isinstance(value, Mapping):
        yield from cast("Mapping[str, Any]", value).items()
    elif isinstance(value, tuple | list):
        yield from enumerate(cast("Sequence[Any]", value))
