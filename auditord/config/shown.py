"""The configuration as it may be shown: every value with its source, no secret."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from auditord.config.documents import DEFAULT, Document, Path, is_list, is_section
from auditord.config.faults import dotted
from auditord.config.model import Configuration
from auditord.config.printing import Remarks, to_yaml

_PASSWORD_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]+@")
_SECRET_PARAMETER = re.compile(r"([?&][^=&\s]*(?i:passw|passphrase|secret|token|api_?key)[^=&\s]*=)[^&#\s]+")
# The words alone ignore case: a set of characters that does takes tens of milliseconds to compile.


@dataclass(frozen=True, slots=True)
class Shown:
    """A configuration without secrets.

    Args:
        values: what the daemon would use, as plain values.
        sources: where each value was written, by its path; ``default`` if nobody wrote it.
    """

    values: Mapping[str, Any]
    sources: Mapping[Path, str]

    def as_yaml(self) -> str:
        """YAML with each value's source beside it."""
        return to_yaml(self.values, Remarks(beside=self.sources))

    def as_json(self) -> Mapping[str, Any]:
        """The values, and the sources by dotted path."""
        return {"configuration": self.values, "sources": {dotted(path): name for path, name in self.sources.items()}}


def show(configuration: Configuration, document: Document) -> Shown:
    """A configuration without secrets; ``document`` has the places of its values."""
    values = plain_values(configuration)
    return Shown(values, {path: str(_source(document, path)) for path in _leaves((), values)})


def plain_values(configuration: Configuration) -> Mapping[str, Any]:
    """The values as JSON has them, secrets masked."""
    values: dict[str, Any] = without_secrets(configuration.model_dump(mode="json", by_alias=True, fallback=str))
    return values


def _leaves(path: Path, values: Any) -> Iterator[Path]:
    if is_section(values) and values:
        for key, value in values.items():
            yield from _leaves((*path, key), value)
    else:
        yield path


def _source(document: Document, path: Path) -> Any:
    """The place of a value; the section around it counts only if it was written as a whole."""
    values: Any = document.values
    for key in path:
        if not is_section(values):
            break
        if key not in values:
            return DEFAULT
        values = values[key]
    return document.origin(path)


def without_secrets(value: Any) -> Any:
    """The value with the passwords in URLs masked; secrets are masked already, by their type."""
    if is_section(value):
        return {key: without_secrets(each) for key, each in value.items()}
    if is_list(value):
        return [without_secrets(each) for each in value]
    if not isinstance(value, str):
        return value
    return _SECRET_PARAMETER.sub(r"\1**********", _PASSWORD_IN_URL.sub(r"\1:**********@", value))
