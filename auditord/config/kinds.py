"""The kinds of the installed hook modules, and the configuration models of their instances."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union

import msgspec
from pydantic import Field, create_model, model_validator

from auditord.config.documents import is_section
from auditord.config.model import Configuration, InstanceName, SenderSource, kind_of
from auditord.reporting.measures import CORES, CPU_TIME, MEASURES
from auditord_hookspecs import (
    AuthenticatorKind,
    CollectorKind,
    ImporterKind,
    InstanceConfig,
    InvalidRecord,
    PluginKind,
    Record,
    SenderKind,
    Transform,
    TransformKind,
)
from auditord_hookspecs.kinds import AnyKind
from auditord_hookspecs.vocabulary import TOTALS

V = TypeVar("V")

MANY_LABELS: Final = 20
"""The number of labels above which the configuration is remarked on."""


class MadeOnUse(Mapping[str, V]):
    """A mapping whose values are created on first use."""

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


class InstalledKinds(msgspec.Struct, frozen=True):
    """Every installed kind, by name."""

    collectors: Mapping[str, CollectorKind[Any]] = msgspec.field(default_factory=dict[str, CollectorKind[Any]])
    plugins: Mapping[str, PluginKind[Any]] = msgspec.field(default_factory=dict[str, PluginKind[Any]])
    senders: Mapping[str, SenderKind[Any]] = msgspec.field(default_factory=dict[str, SenderKind[Any]])
    authenticators: Mapping[str, AuthenticatorKind[Any]] = msgspec.field(
        default_factory=dict[str, AuthenticatorKind[Any]]
    )
    transforms: Mapping[str, TransformKind[Any]] = msgspec.field(default_factory=dict[str, TransformKind[Any]])
    importers: Mapping[str, ImporterKind[Any]] = msgspec.field(default_factory=dict[str, ImporterKind[Any]])
    """Importers have no instances. Their options are those of a command."""

    def sections(self) -> Mapping[str, Mapping[str, AnyKind]]:
        """Return the kinds of each section of the configuration that has instances."""
        return {
            "collectors": self.collectors,
            "plugins": self.plugins,
            "senders": self.senders,
            "authenticators": self.authenticators,
            "transforms": self.transforms,
        }


def remarks(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """Return remarks, one line each, with their place in the configuration."""
    found: list[str] = []
    wants_users = "RecordCountPerUser" in configuration.metrics.database.metrics
    if wants_users and not any(each.enabled for each in configuration.authenticators.values()):
        text = "RecordCountPerUser is left out, because every client could see it: add an authenticator"
        found.append(f"metrics.database.metrics: {text}")
    if (count := len(configuration.ui.labels)) > MANY_LABELS:
        text = f"roll-ups are kept for {count} labels, and each costs time and disk for every record: choose those that"
        found.append(f"ui.labels: {text} the Usage page needs, at most {MANY_LABELS}")
    found += _find_undelivered(configuration, kinds)
    found += _find_unmade(configuration, kinds)
    for section, installed in (("collectors", kinds.collectors), ("plugins", kinds.plugins)):
        for name, config in getattr(configuration, section).items():
            if config.enabled and (list_remarks := installed[kind_of(config)].remarks) is not None:
                found += [f"{section}.{name}: {remark}" for remark in list_remarks(config)]
    return found


def needed(configuration: Configuration, kinds: InstalledKinds) -> Mapping[str, Sequence[str]]:
    """Return the needed components, with what needs them: measures of the overview, pledges, enabled plugins."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in (CORES, CPU_TIME):  # other measures say in reports that they are unknown
        measures = ", ".join(each.name for each in MEASURES.values() if name in each.components)
        found[name].append(f"reports ({measures})")
    if configuration.pledges:
        found[CORES].append("pledges")
    for instance, config in configuration.plugins.items():
        if config.enabled and (needs := kinds.plugins[kind_of(config)].needs) is not None:
            for name in dict.fromkeys(needs(config)):
                found[name].append(f"plugins.{instance}")
    return found


def _find_undelivered(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """Return a remark for each needed component that no enabled collector delivers, unless one's are unknown."""
    collectors = [each for each in configuration.collectors.values() if each.enabled]
    provided = [kinds.collectors[kind_of(each)].provides for each in collectors]
    if not collectors or None in provided:
        return []
    names = {name for provides, each in zip(provided, collectors, strict=True) if provides for name in provides(each)}
    return [
        f"collectors: none delivers {in_either_form(name)}, needed by {', '.join(users)}: add it to components"
        for name, users in needed(configuration, kinds).items()
        if names.isdisjoint({name, TOTALS.get(name, name)})
    ]


def _find_unmade(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """Return a remark for each needed label that no enabled collector or transform makes, unless one's are unknown."""
    known: set[str] = set()
    for each in configuration.collectors.values():
        if each.enabled:
            list_labels = kinds.collectors[kind_of(each)].labels
            if list_labels is None or (made := list_labels(each)) is None:
                return []
            known.update(made)
    if not known:
        return []
    for section in configuration.transforms.values():
        if section.enabled:
            list_added = kinds.transforms[kind_of(section)].labels
            if list_added is None:
                return []
            known.update(list_added(section))
    wanted: list[tuple[str, tuple[str, ...]]] = []
    wanted += [(f"labels.{name}", (key,)) for name, key in configuration.labels if key != f"{name}_id"]
    wanted += [
        (f"plugins.{instance}", names)
        for instance, config in configuration.plugins.items()
        if config.enabled and getattr(config, "source", "local") == "local"
        if (needs := kinds.plugins[kind_of(config)].needs_labels) is not None
        for names in dict.fromkeys(map(tuple, needs(config)))
    ]
    return [
        f"{place}: no collector makes the label {' or '.join(names)}: add it to the meta of a collector"
        for place, names in wanted
        if known.isdisjoint(names)
    ]


def in_either_form(name: str) -> str:
    """Return the name of a component, and of its total if it has one."""
    return f"{name} or {TOTALS[name]}" if name in TOTALS else name


def list_audited(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """Return the enabled collectors that have an inventory of their source."""
    return [
        name
        for name, config in configuration.collectors.items()
        if config.enabled and why_not_audited(kinds.collectors[kind_of(config)], config) is None
    ]


def why_not_audited(kind: CollectorKind[Any], config: InstanceConfig) -> str | None:
    """Return why a collector has no inventory of its source, or None if it has one."""
    if kind.inventory is None:
        return (
            f"kind {kind.name} cannot list its source, so there is nothing to compare; `auditord audit` without a name "
            "audits all collectors that can list theirs"
        )
    return None if kind.no_inventory is None else kind.no_inventory(config)


def make_transform(configuration: Configuration, kinds: InstalledKinds) -> Transform | None:
    """Return all enabled transforms as one, in the order of the configuration, or None without transforms."""
    sections = [each for each in configuration.transforms.values() if each.enabled]
    steps = [kinds.transforms[kind_of(section)].make(section) for section in sections]

    def transform(record: Record) -> Record:
        changed = record if record.meta is None else msgspec.structs.replace(record, meta=dict(record.meta))
        for each in steps:
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

    return transform if steps else None


Model: TypeAlias = type[InstanceConfig]
InstanceModels: TypeAlias = Mapping[str, Mapping[str, Model]]
"""Models of instances by section and kind, with the options that the host adds."""


def instance_models(kinds: InstalledKinds) -> InstanceModels:
    """Return the instance model of each kind, created on first use."""
    return {
        section: MadeOnUse({name: partial(_instance_model, section, installed, name) for name in installed})
        for section, installed in kinds.sections().items()
    }


def models_in_use(models: InstanceModels, values: Mapping[str, Any]) -> InstanceModels:  # Any: what YAML holds
    """Return the models of the kinds in use. They suffice to validate a configuration without a fault."""
    found: dict[str, dict[str, Model]] = {section: {} for section in models}
    for section, installed in models.items():
        written = values.get(section)
        for options in written.values() if is_section(written) else ():
            kind = options.get("kind") if is_section(options) else None
            if isinstance(kind, str) and kind in installed:
                found[section][kind] = installed[kind]
    return found


def configuration_model(models: InstanceModels) -> type[Configuration]:
    """Return the configuration model with a union of the installed kinds, distinguished by ``kind``, per section."""
    sections: dict[str, Any] = {  # Any: pydantic's way to describe fields
        section: (GenericAlias(dict, (InstanceName, _union(section, installed))), Configuration.model_fields[section])
        for section, installed in models.items()
    }
    return create_model("Configuration", __base__=Configuration, __doc__=Configuration.__doc__, **sections)


def _instance_model(section: str, installed: Mapping[str, AnyKind], name: str) -> Model:
    kind = installed[name]
    added: dict[str, Any] = {"kind": (Literal[name], Field(description="The kind of this instance."))}
    if isinstance(kind, CollectorKind) and kind.prefix is not None and "same_source_as" not in kind.config.model_fields:
        added["same_source_as"] = (str | None, Field(default=None, description=_SAME_SOURCE))
    if isinstance(kind, SenderKind):
        added["from"] = (SenderSource, Field(default="collectors", description=_FROM))
    title = f"{name.title().replace('_', '')}{section.title().removesuffix('s')}"
    return create_model(title, __base__=kind.config, __doc__=kind.config.__doc__, **added)


_SAME_SOURCE = (
    "The other collector that reads the same jobs with the same record_prefix. Two such collectors are refused without "
    "this option."
)


_FROM = (
    "The records to send: those of this daemon's collectors (collectors), those that clients wrote through the API "
    "(api), or all."
)


def _union(section: str, models: Mapping[str, Model]) -> Any:  # Any: a type made at run time
    if not models:
        return create_model(f"No{section.title()}", __base__=_NothingInstalled)
    union: Any = Union[tuple(models.values())]  # noqa: UP007 the members are known only at run time
    return union if len(models) == 1 else Annotated[union, Field(discriminator="kind")]


class _NothingInstalled(InstanceConfig):
    """No kind is installed, so no instance is valid."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:  # Any: not validated
        raise ValueError("no installed hook module has a kind for this section (auditord hooks lists the modules)")
