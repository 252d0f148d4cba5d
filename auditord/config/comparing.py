"""Two configurations side by side: what differs, and whether a running daemon can take it over."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from auditord.config.documents import Path, is_section
from auditord.config.faults import dotted
from auditord.config.model import Configuration, kind_of, source_of
from auditord.config.shown import plain_values
from auditord_hookspecs import InstanceConfig

_EXCHANGEABLE: Final = frozenset({"collectors", "plugins"})
"""The sections whose instances may come, go and change."""

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """An option that the files say differently.

    Args:
        option: its dotted path.
        running: the value that is used; None if there is none, masked if it is secret.
        written: the value in the files; as ``running``.
    """

    option: str
    running: Any = None  # Any: JSON
    written: Any = None  # Any: JSON


@dataclass(frozen=True, slots=True)
class Changes:
    """All that differs between the configuration of a daemon and its files.

    Args:
        differences: option by option.
        instances: section and name of each instance that can be exchanged while the daemon runs.
        restart: what can only be changed by a restart: sections, or senders.
        applied: whether the daemon uses what the files say now.
    """

    differences: Sequence[Difference] = ()
    instances: Sequence[tuple[str, str]] = ()
    restart: Sequence[str] = field(default_factory=list[str])
    applied: bool = False


def compare(running: Configuration, written: Configuration) -> Changes:
    """The differences; secrets are compared and never shown."""
    instances: list[tuple[str, str]] = []
    restart: list[str] = []
    for section in type(written).model_fields:
        before, after = getattr(running, section), getattr(written, section)
        if section in _EXCHANGEABLE | {"senders"}:
            for name in _changed_instances(before, after):
                fits = section in _EXCHANGEABLE or _may_be_exchanged(before.get(name), after.get(name))
                instances += [(section, name)] if fits else []
                restart += [] if fits else [f"{section}.{name}"]
        elif _values(before) != _values(after):
            restart.append(section)
    paths = [(section, name) for section, name in instances] + [tuple(each.split(".")) for each in restart]
    return Changes(list(_differences(paths, plain_values(running), plain_values(written))), instances, restart)


def _changed_instances(before: Mapping[str, InstanceConfig], after: Mapping[str, InstanceConfig]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after or _values(before[name]) != _values(after[name]):
            yield name


def _may_be_exchanged(before: InstanceConfig | None, after: InstanceConfig | None) -> bool:
    """Tell a sender that goes on taking the same entries, so that the queue stays as it is."""
    return (
        before is not None
        and after is not None
        and (kind_of(before), source_of(before), before.enabled) == (kind_of(after), source_of(after), after.enabled)
    )


def _values(section: Any) -> Any:  # Any: a section of the configuration
    """The values of a section, secrets among them: classes of models are made anew each time files are read."""
    if isinstance(section, Mapping):
        members = cast("Mapping[str, Any]", section)
        return {name: _values(each) for name, each in members.items()}
    if isinstance(section, tuple | list):
        return [_values(each) for each in cast("Sequence[Any]", section)]
    return section.model_dump() if hasattr(section, "model_dump") else section


def _differences(paths: Sequence[Path], running: Any, written: Any) -> Iterator[Difference]:  # Any: plain values
    for path in paths:
        found = list(_leaves(path, _at(running, path), _at(written, path)))
        yield from found or [Difference(dotted(path), "a secret", "another secret")]


def _at(values: Any, path: Path) -> Any:  # Any: plain values
    for key in path:
        values = values.get(str(key), _ABSENT) if is_section(values) else _ABSENT
    return values


def _leaves(path: Path, running: Any, written: Any) -> Iterator[Difference]:  # Any: plain values
    if is_section(running) and is_section(written):
        for key in dict.fromkeys((*running, *written)):
            yield from _leaves((*path, key), running.get(key, _ABSENT), written.get(key, _ABSENT))
    elif running != written:
        yield Difference(dotted(path), _shown(running), _shown(written))


def _shown(value: Any) -> Any:  # Any: plain values
    return None if value is _ABSENT else value
