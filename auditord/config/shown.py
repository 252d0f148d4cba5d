"""The configuration without secrets: shown with the source of each value, and compared with a running daemon's.

:func:`to_yaml` writes YAML with remarks that :mod:`auditord.config.yaml_files` can read back.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec
import yaml

from auditord.config.documents import DEFAULT, Document, Path, is_list, is_section
from auditord.config.faults import join_path
from auditord.config.model import Configuration, kind_of, source_of
from auditord.config.secrets import latest
from auditord_hookspecs.arguments import HIDDEN, hide_in_text, hide_secrets, names_secret

HIDDEN_REMARK: Final = f"{HIDDEN} stands for a secret, or for the value of an option that looks like one."


class Shown(msgspec.Struct, frozen=True):
    """A configuration without secrets.

    Args:
        values: the values that the daemon would use, as plain values.
        sources: the place of each value by its path; ``default`` for defaults.
    """

    values: Mapping[str, Any]
    sources: Mapping[Path, str]

    def as_yaml(self) -> str:
        """Return YAML with the source of each value as a comment."""
        text = to_yaml(self.values, Remarks(beside=self.sources))
        return f"# {HIDDEN_REMARK}\n{text}" if HIDDEN in text else text

    def as_json(self) -> Mapping[str, Any]:
        """Return the values, and their sources by dotted path."""
        return {"configuration": self.values, "sources": {join_path(path): name for path, name in self.sources.items()}}


def show(configuration: Configuration, document: Document) -> Shown:
    """Return a configuration without secrets; ``document`` has the places of its values."""
    values = plain_values(configuration)
    return Shown(values, {path: str(_source(document, path)) for path in _leaves((), values)})


def plain_values(configuration: Configuration) -> Mapping[str, Any]:
    """Return the values as JSON values, with secrets masked."""
    values: dict[str, Any] = mask_secrets(configuration.model_dump(mode="json", by_alias=True, fallback=str))
    return values


def _leaves(path: Path, values: Any) -> Iterator[Path]:
    if is_section(values) and values:
        for key, value in values.items():
            yield from _leaves((*path, key), value)
    else:
        yield path


def _source(document: Document, path: Path) -> Any:
    """Return the place of a value. An enclosing section's place counts only if it was written as a whole."""
    values: Any = document.values
    for key in path:
        if not is_section(values):
            break
        if key not in values:
            return DEFAULT
        values = values[key]
    return document.origin(path)


def mask_secrets(value: Any) -> Any:
    """Return the value with secrets in URLs, arguments and variables hidden. Options for secrets are masked already."""
    if is_section(value):
        masked = {key: mask_secrets(each) for key, each in value.items()}
        if is_section(variables := masked.get("environment")):
            masked["environment"] = {name: HIDDEN if names_secret(name) else each for name, each in variables.items()}
        return masked
    if is_list(value):
        texts = [each for each in value if isinstance(each, str)]
        return [mask_secrets(each) for each in (hide_secrets(texts) if len(texts) == len(value) else value)]
    return hide_in_text(value) if isinstance(value, str) else value


_EXCHANGEABLE: Final = frozenset({"collectors", "plugins"})
"""The sections whose instances can be added, removed and changed at run time."""

_ABSENT: Final = object()


class Difference(msgspec.Struct, frozen=True):
    """An option whose value in the files differs.

    Args:
        option: its dotted path.
        running: the value in use; None if there is none, masked if secret.
        written: the value in the files; likewise.
    """

    option: str
    running: Any = None  # Any: JSON
    written: Any = None  # Any: JSON


class NextRun(msgspec.Struct, frozen=True):
    """The next run of a new or changed instance.

    Args:
        instance: its name, after that of its section.
        at: the time, without jitter; None: at once.
        is_first: whether the instance is not enabled yet.
        effect: what a run may do to the world, if the kind says so.
    """

    instance: str
    at: datetime | None
    is_first: bool
    effect: str | None = None


class Changes(msgspec.Struct, frozen=True):
    """The differences between the configuration of a daemon and its files.

    Args:
        instances: section and name of each instance that can be exchanged while the daemon runs.
        restart: sections and senders that need a restart.
        applied: whether the daemon uses the files' values now.
        runs: the next runs of new and changed instances, once the daemon uses the files' values.
        files: the files that a reload reads.
    """

    differences: Sequence[Difference] = ()
    instances: Sequence[tuple[str, str]] = ()
    restart: Sequence[str] = msgspec.field(default_factory=list[str])
    applied: bool = False
    runs: Sequence[NextRun] = ()
    files: Sequence[str] = ()


def compare(running: Configuration, written: Configuration) -> Changes:
    """Compare two configurations. Secrets are compared, but never shown."""
    if running.store.password is not None:
        latest(running.store.password)  # read a rotated password again, as each new connection does
    instances: list[tuple[str, str]] = []
    restart: list[str] = []
    for section in type(written).model_fields:
        before, after = getattr(running, section), getattr(written, section)
        if section in _EXCHANGEABLE | {"senders"}:
            for name in dict.fromkeys((*before, *after)):
                if name in before and name in after and _values(before[name]) == _values(after[name]):
                    continue
                # A sender that keeps taking the same entries leaves its queue unaffected.
                fits = section in _EXCHANGEABLE or (
                    name in before
                    and name in after
                    and (kind_of(before[name]), source_of(before[name]), before[name].enabled)
                    == (kind_of(after[name]), source_of(after[name]), after[name].enabled)
                )
                instances += [(section, name)] if fits else []
                restart += [] if fits else [f"{section}.{name}"]
        elif _values(before) != _values(after):
            restart.append(section)
    plain_running, plain_written = plain_values(running), plain_values(written)
    differences: list[Difference] = []
    for path in [*instances, *(tuple(each.split(".")) for each in restart)]:
        found = _differing_leaves(path, _at(plain_running, path), _at(plain_written, path))
        differences += list(found) or [Difference(join_path(path), "a secret", "another secret")]
    return Changes(differences, instances, restart)


def _values(section: Any) -> Any:  # Any: a section of the configuration
    """Return the values of a section with secrets. Models cannot be compared, since each load makes new classes."""
    if isinstance(section, Mapping):
        members = cast("Mapping[str, Any]", section)
        return {name: _values(each) for name, each in members.items()}
    if isinstance(section, tuple | list):
        return [_values(each) for each in cast("Sequence[Any]", section)]
    return section.model_dump() if hasattr(section, "model_dump") else section


def _at(values: Any, path: Path) -> Any:  # Any: plain values
    for key in path:
        values = values.get(str(key), _ABSENT) if is_section(values) else _ABSENT
    return values


def _differing_leaves(path: Path, running: Any, written: Any) -> Iterator[Difference]:  # Any: plain values
    if is_section(running) and is_section(written):
        for key in dict.fromkeys((*running, *written)):
            yield from _differing_leaves((*path, key), running.get(key, _ABSENT), written.get(key, _ABSENT))
    elif running != written:
        yield Difference(join_path(path), _show(running), _show(written))


def _show(value: Any) -> Any:  # Any: plain values
    return None if value is _ABSENT else value


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
    """Return whether a value is written on the line of its key."""
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
