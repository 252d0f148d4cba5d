"""The environment as a source of configuration: ``AUDITORD_COLLECTORS__SLURM__INTERVAL=10m``.

Names are the path in capitals with two underscores between the levels. Lists and mappings are written as JSON.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from auditord.config.documents import ENVIRONMENT_PREFIX as PREFIX
from auditord.config.documents import FILES_VARIABLE, Document, Origin, is_section
from auditord.config.faults import suggestion
from auditord.config.kinds import InstanceModels
from auditord.config.model import INSTANCE_SECTIONS, Configuration
from auditord.errors import ConfigurationError

_LEVELS = "__"


def read_environment(environ: Mapping[str, str], below: Document, models: InstanceModels) -> Document:
    """Return the options in all variables that begin with ``AUDITORD_``, except the variable that names the files.

    ``below`` has the values of the files, which may name the kinds of instances. The models show which options are
    lists.

    Raises:
        ConfigurationError: a name belongs to no section, or a list is not JSON; one line per variable.
    """
    named = sorted(environ.items())
    variables = {name: value for name, value in named if name.startswith(PREFIX) and name != FILES_VARIABLE}
    instances = _instances(below.values, variables)
    sections: dict[str, dict[str, Any]] = {section: {} for section in INSTANCE_SECTIONS}
    for section, name, kind in instances:
        if model := models.get(section, {}).get(kind):
            sections[section][f"instance_{name}"] = (model | None, Field(default=None, alias=name))
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in Configuration.model_fields.items()}
    for section, options in sections.items():
        fields[section] = (create_model(section.title(), **options), None)
    settings = create_model("Settings", __base__=_Settings, **fields)
    document, faults = Document(), list[str]()
    for name, value in variables.items():
        try:
            document = document.merge(_document(name, value, settings))
        except ConfigurationError as error:
            faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))
    return document


def _document(name: str, value: str, settings: type[BaseSettings]) -> Document:
    path = _path(name)
    if path[0] not in Configuration.model_fields:
        meant = suggestion(
            PREFIX + path[0].upper(), [PREFIX + section.upper() for section in Configuration.model_fields]
        )
        raise ConfigurationError(f"environment variable {name}: no such section{meant}")
    source = EnvSettingsSource(settings, env_prefix=PREFIX, env_nested_delimiter=_LEVELS)
    source.env_vars = {name.lower(): value}
    try:
        values = source()
    except SettingsError as error:
        raise ConfigurationError(
            f'environment variable {name}: write JSON, such as ["a", "b"], or ["a"] for a single value'
        ) from error
    origin = Origin(f"environment variable {name}")
    return Document(values, {path[:depth]: origin for depth in range(1, len(path) + 1)})


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.removeprefix(PREFIX).lower().split(_LEVELS))


def _instances(values: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and kind of every instance whose kind is in the files or the environment."""
    for section in INSTANCE_SECTIONS:
        written = values.get(section)
        for name, options in written.items() if is_section(written) else ():
            if is_section(options) and isinstance(options.get("kind"), str):
                yield section, name, options["kind"]
    for name, kind in variables.items():
        path = _path(name)
        if len(path) == 3 and path[0] in INSTANCE_SECTIONS and path[2] == "kind":  # noqa: PLR2004 section, name, kind
            yield path[0], path[1], kind


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore")
