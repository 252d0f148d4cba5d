"""Loading of the configuration from files, ``conf.d`` beside them, and the environment, which takes precedence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import BaseModel, SecretStr, ValidationError

from auditord.config.documents import ENVIRONMENT_PREFIX as PREFIX
from auditord.config.documents import Document, is_section
from auditord.config.listen import DEFAULT_LISTEN, UnixListen
from auditord.config.merging import configuration_files, has_options, read_files, with_state_dir
from auditord.config.model import INSTANCE_SECTIONS, Configuration, HooksSection
from auditord.config.secrets import ResolveSecret, keep_references
from auditord.config.yaml_files import parse
from auditord.errors import ConfigurationError, refusal

if TYPE_CHECKING:  # not imported by commands that need no instances
    from auditord.config.kinds import InstalledKinds, InstanceModels
    from auditord_hookspecs import ImporterKind

SOCKET = "api.sock"


class Loaded(msgspec.Struct, frozen=True):
    """The configuration and the place of each value."""

    configuration: Configuration
    document: Document


class ConfigurationFiles(msgspec.Struct, frozen=True):
    """The files of a daemon, which can be read again; see :func:`load_with_sources`."""

    paths: Sequence[Path] | None
    kinds: "InstalledKinds"
    environ: Mapping[str, str]
    resolve_secret: ResolveSecret

    def names(self) -> list[str]:
        """Return the absolute paths of all files."""
        return [str(path.absolute()) for path in configuration_files(self.paths)]

    def read(self, values: Mapping[str, Any] | None = None) -> Configuration:
        """Return the configuration in the files or, if given, that of the merged values of other files."""
        paths, kinds, environ, resolve_secret = self.paths, self.kinds, self.environ, self.resolve_secret
        document = None if values is None else Document(values)
        return load_with_sources(paths, kinds, environ, resolve_secret, document).configuration


def load(
    paths: Sequence[Path] | None, kinds: "InstalledKinds", environ: Mapping[str, str], resolve_secret: ResolveSecret
) -> Configuration:
    """Return the configuration; see :func:`load_with_sources`."""
    return load_with_sources(paths, kinds, environ, resolve_secret).configuration


def load_with_sources(
    paths: Sequence[Path] | None,
    kinds: "InstalledKinds",
    environ: Mapping[str, str],
    resolve_secret: ResolveSecret,
    document: Document | None = None,
) -> Loaded:
    """Read, merge and check the configuration.

    Args:
        paths: the files; None for ``/etc/auditord/auditord.yml``, or no file if it does not exist.
        kinds: the installed kinds.
        environ: variables that begin with ``AUDITORD_`` take precedence; some of AUDITOR's are understood as well.
        resolve_secret: returns the secret of a reference, or None if the text is not a reference.
        document: the merged files, if they are read already.

    Raises:
        ConfigurationError: lists every fault with file and line, the option's path and the allowed values.
    """
    from auditord.config.kinds import instance_models  # noqa: PLC0415 imports the kinds

    models = instance_models(kinds)
    document = _add_environment(document or read_files(paths), environ, kinds.importers, models)
    return _validate(document, kinds, models, environ, resolve_secret)


def load_without_instances(
    paths: Sequence[Path] | None, environ: Mapping[str, str], resolve_secret: ResolveSecret
) -> Configuration | None:
    """Return the configuration without collectors, plugins and other instances, so that no kind is imported.

    Returns:
        None if :func:`load_with_sources` is needed because of environment variables or a fault.
    """
    if has_options(environ):
        return None
    document = read_files(paths)
    values = {name: value for name, value in document.values.items() if name not in INSTANCE_SECTIONS}
    try:
        return Configuration.model_validate(
            with_state_dir(values, environ), context={"resolve_secret": keep_references(resolve_secret)}
        )
    except ValidationError:
        return None


def load_text(text: str, name: str, kinds: "InstalledKinds", environ: Mapping[str, str]) -> Configuration:
    """Return the configuration in a text. Nothing else is read, and secrets are not resolved.

    Raises:
        ConfigurationError: as in :func:`load_with_sources`, with ``name`` instead of a file.
    """
    from auditord.config.kinds import instance_models  # noqa: PLC0415 imports the kinds

    try:
        document = parse(text, name)
    except ConfigurationError as error:
        raise refusal(str(error).splitlines()) from error
    return _validate(document, kinds, instance_models(kinds), environ, SecretStr).configuration


def _validate(
    document: Document,
    kinds: "InstalledKinds",
    models: "InstanceModels",
    environ: Mapping[str, str],
    resolve_secret: ResolveSecret,
) -> Loaded:
    from auditord.config.consistency import inconsistencies  # noqa: PLC0415 imports the kinds
    from auditord.config.kinds import configuration_model, models_in_use  # noqa: PLC0415 the same

    values = with_state_dir(document.values, environ)
    api, folder = values.get("api", {}), environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if folder and is_section(api) and "listen" not in api:  # add a socket in systemd's RuntimeDirectory=
        values = {**values, "api": {**api, "listen": (*DEFAULT_LISTEN, UnixListen(Path(folder, SOCKET)))}}
    context = {"resolve_secret": keep_references(resolve_secret), "labels": values.get("labels")}
    try:
        configuration = configuration_model(models_in_use(models, values)).model_validate(values, context=context)
    except ValidationError:
        from auditord.config.faults import describe  # noqa: PLC0415 only for faults

        try:  # with all kinds, so that faults name every allowed value
            configuration = configuration_model(models).model_validate(values, context=context)
        except ValidationError as error:
            raise refusal(describe(error, document, models)) from error
    if faults := inconsistencies(configuration, kinds, document):
        raise refusal(faults)
    return Loaded(configuration, document)


def read_disabled_hooks(paths: Sequence[Path] | None, environ: Mapping[str, str]) -> Sequence[str]:
    """Return ``hooks.disabled``, which is needed before the kinds are known. Nothing else is checked.

    Raises:
        ConfigurationError: a file cannot be read, or this section is invalid.
    """
    ours = {name: value for name, value in environ.items() if name.split("__")[0] == "AUDITORD_HOOKS"}
    document = _add_environment(read_files(paths), ours, {}, {})
    try:
        return _OnlyHooks.model_validate(document.values).hooks.disabled
    except ValidationError as error:
        from auditord.config.faults import describe  # noqa: PLC0415 only for faults

        raise refusal(describe(error, document, {})) from error


class _OnlyHooks(BaseModel):
    hooks: HooksSection = HooksSection()


def _add_environment(
    document: Document,
    environ: Mapping[str, str],
    importers: "Mapping[str, ImporterKind[Any]]",
    models: "InstanceModels",
) -> Document:
    try:
        if importers:
            from auditord.config.foreign_environment import read_foreign_environment  # noqa: PLC0415 with the kinds

            document = document.merge(read_foreign_environment(environ, document, importers))
        if any(name.startswith(PREFIX) for name in environ):
            from auditord.config.environment import read_environment  # noqa: PLC0415 pydantic-settings, rarely needed

            document = document.merge(read_environment(environ, document, models))
    except ConfigurationError as error:
        raise refusal(str(error).splitlines()) from error
    return document
