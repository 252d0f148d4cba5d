"""The kinds that the installed hook modules declare, and their part in a configuration."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from auditord.config.model import Configuration, kind_of
from auditord_hookspecs import (
    AuthenticatorKind,
    CollectorKind,
    ImporterKind,
    InvalidRecord,
    PluginKind,
    Record,
    SenderKind,
    Transform,
    TransformKind,
)
from auditord_hookspecs.kinds import AnyKind

V = TypeVar("V")


class MadeOnUse(Mapping[str, V]):
    """Values by name, each of which is made when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], V]]) -> None:
        self._makers = makers
        self._made: dict[str, V] = {}

    def __getitem__(self, name: str) -> V:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, slots=True)
class InstalledKinds:
    """Every installed kind, by name."""

    collectors: Mapping[str, CollectorKind[Any]] = field(default_factory=dict[str, CollectorKind[Any]])
    plugins: Mapping[str, PluginKind[Any]] = field(default_factory=dict[str, PluginKind[Any]])
    senders: Mapping[str, SenderKind[Any]] = field(default_factory=dict[str, SenderKind[Any]])
    authenticators: Mapping[str, AuthenticatorKind[Any]] = field(default_factory=dict[str, AuthenticatorKind[Any]])
    transforms: Mapping[str, TransformKind[Any]] = field(default_factory=dict[str, TransformKind[Any]])
    importers: Mapping[str, ImporterKind[Any]] = field(default_factory=dict[str, ImporterKind[Any]])
    """These have no instances: their options are those of a command."""

    def sections(self) -> Mapping[str, Mapping[str, AnyKind]]:
        """The kinds of each section of the configuration that holds instances."""
        return {
            "collectors": self.collectors,
            "plugins": self.plugins,
            "senders": self.senders,
            "authenticators": self.authenticators,
            "transforms": self.transforms,
        }


def remarks(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """One line for each remark, with its place in the configuration."""
    return [
        *_unshown_users(configuration),
        *(
            f"collectors.{name}: {remark}"
            for name, config in configuration.collectors.items()
            if config.enabled and (say := kinds.collectors[kind_of(config)].remarks) is not None
            for remark in say(config)
        ),
    ]


def _unshown_users(configuration: Configuration) -> list[str]:
    wanted = "RecordCountPerUser" in configuration.metrics.database.metrics
    if not wanted or any(each.enabled for each in configuration.authenticators.values()):
        return []
    return ["metrics.database.metrics: RecordCountPerUser is left out, since anybody may see it: add an authenticator"]


def audited(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """The enabled collectors whose kinds have an inventory of their source."""
    return [
        name
        for name, config in configuration.collectors.items()
        if config.enabled and kinds.collectors[kind_of(config)].inventory is not None
    ]


def configured_transform(configuration: Configuration, kinds: InstalledKinds) -> Transform | None:
    """All transforms in the order of the configuration, as one; None if there are none."""
    sections = [each for each in configuration.transforms.values() if each.enabled]
    transforms = [kinds.transforms[kind_of(section)].make(section) for section in sections]
    return _chain(transforms) if transforms else None


def _chain(transforms: Iterable[Transform]) -> Transform:
    each_in_turn = tuple(transforms)

    def transform(record: Record) -> Record:
        changed = _with_own_meta(record)
        for each in each_in_turn:
            changed = each(changed)
        if (changed.record_id, changed.start_time, changed.stop_time) != (
            record.record_id,
            record.start_time,
            record.stop_time,
        ):
            raise InvalidRecord(
                f"a transform changed the id or the times of '{record.record_id}', which is not allowed"
            )
        return changed

    return transform


def _with_own_meta(record: Record) -> Record:
    # Records of one body share theirs (auditord_hookspecs.wire): a transform may write into what it gets.
    return record if record.meta is None else msgspec.structs.replace(record, meta=dict(record.meta))
