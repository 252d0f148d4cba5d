"""Collect the kinds that hook modules declare; a kind that cannot work is refused before anything is configured."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from auditord.config.kinds import InstalledKinds
from auditord.config.model import INSTANCE_NAME
from auditord.hooks.entries import HookModule
from auditord_hookspecs import AuthenticatorKind, CollectorKind, InstanceConfig, PluginKind, SenderKind, TransformKind
from auditord_hookspecs.kinds import AnyKind

Declared: TypeAlias = tuple[HookModule, Any]  # Any: what a hook module yields is checked here

_DECLARATIONS: Mapping[str, tuple[str, type]] = {
    "auditord_collectors": ("collectors", CollectorKind),
    "auditord_plugins": ("plugins", PluginKind),
    "auditord_senders": ("senders", SenderKind),
    "auditord_authenticators": ("authenticators", AuthenticatorKind),
    "auditord_record_transforms": ("transforms", TransformKind),
}
KIND_HOOKS = tuple(_DECLARATIONS)


@dataclass(slots=True)
class KindCollection:
    """Gathers kinds and the faults of those that are refused."""

    faults: list[str] = field(default_factory=list[str])
    _owners: dict[tuple[str, str], HookModule] = field(default_factory=dict[tuple[str, str], HookModule])
    _kinds: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def add(self, hook: str, declared: Iterable[Declared]) -> None:
        """Take what the implementations of one hook declared."""
        section, kind_type = _DECLARATIONS[hook]
        for module, kind in declared:
            reasons = list(_unusable(kind, kind_type, section))
            if not reasons and (owner := self._owners.setdefault((section, kind.name), module)) is not module:
                reasons = [f"brings the kind '{kind.name}' of {section}, as {owner} does: disable one of them"]
            self.faults += [f"{module} {reason}" for reason in reasons]
            if not reasons:
                self._kinds.setdefault(section, {})[kind.name] = kind

    def installed(self) -> InstalledKinds:
        """All kinds that were accepted."""
        return InstalledKinds(**self._kinds)


def _unusable(kind: Any, kind_type: type, section: str) -> Iterator[str]:
    if not isinstance(kind, kind_type):
        yield f"declares {kind!r} among its {section}: yield values of {kind_type.__name__}"
        return
    declared: Any = kind  # Any: a dataclass checks none of its fields
    called = f"declares the kind '{declared.name}' of {section}, "
    if not (isinstance(declared.name, str) and re.fullmatch(INSTANCE_NAME, declared.name)):
        yield f"{called}whose name is no identifier: small letters, digits and _, a letter first"
    if not (inspect.isclass(declared.config) and issubclass(declared.config, InstanceConfig)):
        yield f"{called}whose config is no model derived from RunConfig or InstanceConfig"
    elif "kind" in declared.config.model_fields:
        yield f"{called}whose config has an option 'kind', which the host adds itself"
    if reason := _wrong_colour(declared):
        yield f"{called}{reason}"


def _wrong_colour(kind: AnyKind) -> str | None:
    if isinstance(kind, CollectorKind):
        return "whose collect never yields a batch: write yield" if inspect.iscoroutinefunction(kind.collect) else None
    if isinstance(kind, PluginKind):
        yields = inspect.isasyncgenfunction(kind.run) or inspect.isgeneratorfunction(kind.run)
        return "whose run yields: it is awaited, so write no yield" if yields else None
    if isinstance(kind, TransformKind):
        return "whose make is async: it is called without waiting" if inspect.iscoroutinefunction(kind.make) else None
    made = inspect.iscoroutinefunction(kind.open) or inspect.isasyncgenfunction(kind.open)
    return "whose open is no context manager: decorate it with @asynccontextmanager" if made else None
