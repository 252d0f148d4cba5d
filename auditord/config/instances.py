"""Join the models of the installed kinds to the configuration."""

from collections.abc import Iterator, Mapping
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeAlias, Union

from pydantic import Field, create_model, model_validator

from auditord.config.documents import is_section
from auditord.config.kinds import InstalledKinds, MadeOnUse
from auditord.config.model import Configuration, InstanceName, SenderSource
from auditord_hookspecs import CollectorKind, InstanceConfig, SenderKind
from auditord_hookspecs.kinds import AnyKind

Model: TypeAlias = type[InstanceConfig]
InstanceModels: TypeAlias = Mapping[str, Mapping[str, Model]]
"""By section and kind: the kind's own model and what the host adds to it."""


def instance_models(kinds: InstalledKinds) -> InstanceModels:
    """The model of an instance of each kind, made when it is asked for."""
    return {
        section: MadeOnUse({name: partial(_instance_model, section, installed, name) for name in installed})
        for section, installed in kinds.sections().items()
    }


def models_in_use(models: InstanceModels, values: Mapping[str, Any]) -> InstanceModels:  # Any: what YAML holds
    """The models of the kinds that are written somewhere: they alone suffice for a configuration without a fault."""
    return {section: dict(_in_use(installed, values.get(section))) for section, installed in models.items()}


def _in_use(installed: Mapping[str, Model], written: Any) -> Iterator[tuple[str, Model]]:
    for options in written.values() if is_section(written) else ():
        kind = options.get("kind") if is_section(options) else None
        if isinstance(kind, str) and kind in installed:
            yield kind, installed[kind]


def configuration_model(models: InstanceModels) -> type[Configuration]:
    """The configuration with a union of the installed kinds, distinguished by ``kind``, for each section."""
    sections: dict[str, Any] = {  # Any: pydantic's way to describe fields
        section: (GenericAlias(dict, (InstanceName, _union(section, installed))), Configuration.model_fields[section])
        for section, installed in models.items()
    }
    return create_model("Configuration", __base__=Configuration, __doc__=Configuration.__doc__, **sections)


def _instance_model(section: str, installed: Mapping[str, AnyKind], name: str) -> Model:
    kind = installed[name]
    added: dict[str, Any] = {"kind": (Literal[name], Field(description="What this is an instance of."))}
    if isinstance(kind, CollectorKind) and kind.prefix is not None and "same_source_as" not in kind.config.model_fields:
        added["same_source_as"] = (str | None, Field(default=None, description=_SAME_SOURCE))
    if isinstance(kind, SenderKind):
        added["from"] = (SenderSource, Field(default="collectors", description=_FROM))
    title = f"{name.title().replace('_', '')}{section.title().removesuffix('s')}"
    return create_model(title, __base__=kind.config, __doc__=kind.config.__doc__, **added)


_SAME_SOURCE = "The collector that reads the same jobs with the same record prefix; without it two of them are refused."


_FROM = (
    "Which records it sends: those of this daemon's collectors, those that clients wrote over the API (which keeps "
    "them in the record store itself), or all."
)


def _union(section: str, models: Mapping[str, Model]) -> Any:  # Any: a type made at run time
    if not models:
        return create_model(f"No{section.title()}", __base__=_NothingInstalled)
    union: Any = Union[tuple(models.values())]  # noqa: UP007 the members are only known now
    return union if len(models) == 1 else Annotated[union, Field(discriminator="kind")]


class _NothingInstalled(InstanceConfig):
    """No kind is installed, so no instance can be right."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:  # Any: not validated
        raise ValueError("no hook module brings a kind for this section (auditord hooks lists the modules)")
