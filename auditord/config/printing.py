"""Write configuration as YAML that :mod:`auditord.config.yaml_files` reads back, with remarks."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from auditord.config.documents import Path, is_list, is_section

_PLAIN_TEXT = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@%+-]*(?::[A-Za-z0-9_./@%+-]+)*", re.ASCII)
_QUANTITY = re.compile(r"[0-9]+(?:ms|s|m|h|d|w|[KMG]i?B)", re.ASCII)
_WORDS_WITH_A_MEANING = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_INDENT = "  "


class Remarks(msgspec.Struct, frozen=True):
    """Comments by the path of their value."""

    above: Mapping[Path, str] = msgspec.field(default_factory=dict[Path, str])
    beside: Mapping[Path, str] = msgspec.field(default_factory=dict[Path, str])


def to_yaml(values: Mapping[str, Any], remarks: Remarks | None = None) -> str:
    """Return the values as a YAML document. Ambiguous text is quoted."""
    return "".join(f"{line}\n" for line in _section((), values, remarks or Remarks()))


def _section(path: Path, values: Mapping[str, Any], remarks: Remarks) -> Iterator[str]:
    for key, value in values.items():
        at = (*path, key)
        yield from (f"# {line}" for line in remarks.above.get(at, "").splitlines())
        beside = f"  # {remarks.beside[at]}" if at in remarks.beside else ""
        if _is_short(value):
            yield f"{_scalar(key)}: {_flow(value)}{beside}"
        else:
            yield f"{_scalar(key)}:{beside}"
            yield from (_INDENT + line for line in _block(at, value, remarks))


def _block(path: Path, value: Any, remarks: Remarks) -> Iterator[str]:
    if is_section(value):
        yield from _section(path, value, remarks)
        return
    for index, item in enumerate(value):
        lines = [_flow(item)] if _is_short(item) else list(_block((*path, index), item, remarks))
        yield from (("- " if number == 0 else _INDENT) + line for number, line in enumerate(lines))


def _is_short(value: Any) -> bool:
    """Tell a value that stands on the line of its key."""
    if is_section(value):
        return not value
    return not is_list(value) or not any(isinstance(item, list | dict) for item in value)


def _flow(value: Any) -> str:
    if is_list(value):
        return f"[{', '.join(_flow(item) for item in value)}]"
    return "{}" if is_section(value) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN_TEXT.fullmatch(value) or _QUANTITY.fullmatch(value)
        if plain and value.lower() not in _WORDS_WITH_A_MEANING:
            return value
        # PyYAML's stubs may be newer than pyright's typeshed, and name types that it does not have yet.
        dump = yaml.safe_dump  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return str(dump(value, default_style='"', width=10**9, allow_unicode=True)).removesuffix("\n")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)
