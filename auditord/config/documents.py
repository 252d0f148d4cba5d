"""Configuration before validation: plain values, and the place of each."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

import msgspec

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the root of the configuration to a value."""


def is_section(value: Any) -> TypeGuard[dict[str, Any]]:  # Any: what YAML holds
    """Return whether a value is a mapping; its keys are text in every source."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:  # Any: what YAML holds
    """Return whether a value is a list."""
    return isinstance(value, list)


class Origin(msgspec.Struct, frozen=True):
    """The place of a value.

    Args:
        name: a file, an environment variable, or ``default``.
        line: the line in a file, from 1.
    """

    name: str
    line: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}"


DEFAULT = Origin("default")

ENVIRONMENT_PREFIX: Final = "AUDITORD_"
"""Prefix of the environment variables that set options."""

FOREIGN_PREFIXES: Final = ("AUDITOR_",)
"""Prefixes of other systems' variables that may set options. Short commands load no hook module unless such a variable
is set, so the prefix of every importer with ``import_environment`` must be here."""

SECTIONS: Final = frozenset(
    {
        *("state_dir", "labels", "api", "ui", "access", "store", "lake", "metrics"),
        *("audit", "pledges", "hooks", "logging", "shutdown"),
        *("collectors", "plugins", "senders", "authenticators", "transforms"),
    }
)
"""Top-level names of the configuration, the same as in :class:`auditord.config.model.Configuration`."""

FILES_VARIABLE: Final = "AUDITORD_CONFIG"
"""Variable that names the configuration files for commands without ``--config``. It is not an option."""


class Document(msgspec.Struct, frozen=True):
    """The values of one source or several merged ones, with the place of each value by its path."""

    values: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    origins: Mapping[Path, Origin] = msgspec.field(default_factory=dict[Path, Origin])

    def origin(self, path: Path) -> Origin:
        """Return the place of a value, or that of the nearest enclosing section if it was not written."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, DEFAULT)

    def merge(self, other: "Document") -> "Document":
        """Return both merged; ``other`` takes precedence. Mappings are merged at every depth, other values replaced."""
        replaced = list(_replace((), self.values, other.values))
        kept = {
            path: origin
            for path, origin in self.origins.items()
            if not any(path[: len(each)] == each for each in replaced)
        }
        # A path that is left in both is that of a section, which keeps its first place.
        sections = {path: kept[path] for path in other.origins if path in kept}
        return Document(_merge(self.values, other.values), kept | dict(other.origins) | sections)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if is_section(old) and is_section(value) else value
    return merged


def _replace(at: Path, below: Mapping[str, Any], above: Mapping[str, Any]) -> Iterator[Path]:
    for key in below.keys() & above.keys():
        if is_section(below[key]) and is_section(above[key]):
            yield from _replace((*at, key), below[key], above[key])
        else:
            yield (*at, key)
