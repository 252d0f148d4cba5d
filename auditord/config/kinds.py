"""The kinds that may be configured: what the installed hook modules declared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from auditord_hookspecs import AuthenticatorKind, CollectorKind, PluginKind, SenderKind, TransformKind
from auditord_hookspecs.kinds import AnyKind


@dataclass(frozen=True, slots=True)
class InstalledKinds:
    """Every installed kind, by name."""

    collectors: Mapping[str, CollectorKind[Any]] = field(default_factory=dict[str, CollectorKind[Any]])
    plugins: Mapping[str, PluginKind[Any]] = field(default_factory=dict[str, PluginKind[Any]])
    senders: Mapping[str, SenderKind[Any]] = field(default_factory=dict[str, SenderKind[Any]])
    authenticators: Mapping[str, AuthenticatorKind[Any]] = field(default_factory=dict[str, AuthenticatorKind[Any]])
    transforms: Mapping[str, TransformKind[Any]] = field(default_factory=dict[str, TransformKind[Any]])

    def sections(self) -> Mapping[str, Mapping[str, AnyKind]]:
        """The kinds of each section of the configuration that holds instances."""
        return {
            "collectors": self.collectors,
            "plugins": self.plugins,
            "senders": self.senders,
            "authenticators": self.authenticators,
            "transforms": self.transforms,
        }
