"""Environment variables of other systems, translated by their importers. The log names our variables to use instead.

Our own variables take precedence over them, and they take precedence over the files.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from auditord.config.documents import ENVIRONMENT_PREFIX, FOREIGN_PREFIXES, Document, Origin
from auditord.errors import ConfigurationError
from auditord_hookspecs import ImportedConfig, ImporterKind

_log: Final = logging.getLogger(__name__)

_SECRET: Final = "store.password"  # noqa: S105 the name of an option


def read_foreign_environment(
    environ: Mapping[str, str], files: Document, importers: Mapping[str, ImporterKind[Any]]
) -> Document:
    """Return the options that variables of other systems set.

    Raises:
        ConfigurationError: the other system would refuse a value.
    """
    document = Document()
    for prefix in FOREIGN_PREFIXES:
        given = {name: value for name, value in environ.items() if name.startswith(prefix)}
        kind = importers.get(prefix.rstrip("_").lower()) if given else None
        if kind is not None and (translate := kind.import_environment) is not None:
            try:
                translated = translate(given, files.values)
            except ValueError as error:
                raise ConfigurationError(str(error)) from error
            document = document.merge(_read_options(translated, environ))
    return document


def _read_options(translated: ImportedConfig, environ: Mapping[str, str]) -> Document:
    document = Document()
    for option, value in translated.sections.items():
        variables, ours = translated.comments.get(option), f"{ENVIRONMENT_PREFIX}{option.upper().replace('.', '__')}"
        if variables and ours in environ:
            _log.warning("%s: ignored, because %s is set; remove it", variables, ours)
            continue
        if variables:
            shown = value if isinstance(value, str) else json.dumps(value)
            if option == _SECRET:  # never show the secret; a reference to a file is better than a variable
                shown = "file:/path"
            _log.warning(
                "%s: accepted as a variable of %s; set %s=%s instead", variables, translated.origin, ours, shown
            )
        origin = Origin(f"environment variable {variables}" if variables else f"default of {translated.origin}")
        section, name = option.split(".")
        document = document.merge(Document({section: {name: value}}, {(section,): origin, (section, name): origin}))
    for variable in sorted(translated.dropped):
        _log.warning(
            "%s: ignored: %s's server has this variable, auditord does not; see `auditord config import`",
            *(variable, translated.origin),
        )
    return document
