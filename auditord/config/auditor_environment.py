"""The environment variables of AUDITOR's server that its container is set up with, understood with a warning.

Its names are the path in capitals with two underscores between the levels (``AUDITOR_DATABASE__HOST``); our own
variables win over them, and they over the files, as AUDITOR's did over its files.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from auditord.config.auditor import LEVELS
from auditord.config.documents import Document, Origin, Path, is_section
from auditord.config.listen import TcpListen
from auditord.errors import ConfigurationError

_log: Final = logging.getLogger(__name__)

PREFIX: Final = "AUDITOR_"
_APPLICATION: Final = f"{PREFIX}APPLICATION__"
_DATABASE: Final = f"{PREFIX}DATABASE__"

_UNDERSTOOD: Final[Mapping[Path, frozenset[str]]] = {
    ("api", "listen"): frozenset({f"{_APPLICATION}ADDR", f"{_APPLICATION}PORT"}),
    ("store", "url"): frozenset(f"{_DATABASE}{name}" for name in ("HOST", "PORT", "USERNAME", "DATABASE_NAME")),
    ("store", "password"): frozenset({f"{_DATABASE}PASSWORD"}),
    ("store", "sslmode"): frozenset({f"{_DATABASE}REQUIRE_SSL"}),
    ("logging", "level"): frozenset({f"{PREFIX}LOG_LEVEL"}),
}
"""AUDITOR's variables that make up each option."""

_WITHOUT_COUNTERPART: Final = (
    *(_APPLICATION, _DATABASE, f"{PREFIX}ENVIRONMENT", f"{PREFIX}IGNORE_RECORD_EXISTS_ERROR"),
    *(f"{PREFIX}{section}__" for section in ("METRICS", "LOGGING", "TLS_CONFIG", "RBAC_CONFIG", "ARCHIVAL_CONFIG")),
)
"""The beginning of the other variables of AUDITOR's server; any other name is another program's."""


def read_auditor_environment(environ: Mapping[str, str], below: Document) -> Document:
    """AUDITOR's variables as options of ours; a line of the log names each, with ours to write instead.

    Raises:
        ConfigurationError: a value is none that AUDITOR would have taken.
    """
    given = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    document = Document()
    for path, names in _UNDERSTOOD.items():
        found = sorted(names & given.keys())
        if found and not _is_said_by_ours(path, found, environ):
            value = _value(path, given, found)
            _tell(path, value, found)
            document = document.merged_with(_option(path, value, found))
    _tell_of_the_others(given)
    return document if is_section(below.values.get("store")) else _with_default_url(document, given)


def _is_said_by_ours(path: Path, found: list[str], environ: Mapping[str, str]) -> bool:
    ours = _ours(path)
    if ours not in environ:
        return False
    _log.warning("%s: not looked at, since %s is there; take it away", ", ".join(found), ours)
    return True


def _value(path: Path, given: Mapping[str, str], found: list[str]) -> Any:  # Any: as the configuration has it
    try:
        match path:
            case ("api", "listen"):
                return _listen(given)
            case ("store", "url"):
                return _url(given)
            case ("store", "sslmode"):
                return {"true": "require", "1": "require", "false": "prefer", "0": "prefer"}[given[found[0]].lower()]
            case ("logging", "level"):
                return LEVELS[given[found[0]].lower()]
            case _:
                return given[found[0]]
    except (KeyError, ValueError) as error:
        raise ConfigurationError(f"environment variable {found[0]}: AUDITOR would refuse its value") from error


def _listen(given: Mapping[str, str]) -> list[str]:
    hosts = given.get(f"{_APPLICATION}ADDR", "127.0.0.1").split(",")
    port = int(given.get(f"{_APPLICATION}PORT", "8000"))
    return [str(TcpListen(host.strip(), port)) for host in hosts]


def _url(given: Mapping[str, str]) -> str:
    """The database; what is not said is AUDITOR's default."""
    host = given.get(f"{_DATABASE}HOST", "localhost")
    port = int(given.get(f"{_DATABASE}PORT", "5432"))
    user = quote(given.get(f"{_DATABASE}USERNAME", "postgres"), safe="")
    name = quote(given.get(f"{_DATABASE}DATABASE_NAME", "auditor"), safe="")
    return f"postgresql://{user}@{TcpListen(host, port)}/{name}"


def _with_default_url(document: Document, given: Mapping[str, str]) -> Document:
    """AUDITOR's default database, where its variables say something of it, but nobody where it is."""
    store = document.values.get("store", {})
    if not store or "url" in store:
        return document
    names = [name for name in sorted(given) if name.startswith(_DATABASE)]
    return _option(("store", "url"), _url(given), names).merged_with(document)


def _option(path: Path, value: Any, found: list[str]) -> Document:  # Any: as the configuration has it
    section, name = path
    origin = Origin(f"environment variable {', '.join(found)}")
    return Document({str(section): {str(name): value}}, {path[:1]: origin, path: origin})


def _tell(path: Path, value: Any, found: list[str]) -> None:  # Any: as the configuration has it
    # The password is named, never shown; a reference to a file is better than any variable.
    shown = "file:/path" if path == ("store", "password") else value if isinstance(value, str) else json.dumps(value)
    _log.warning("%s: understood, as AUDITOR's; write %s=%s instead", ", ".join(found), _ours(path), shown)


def _tell_of_the_others(given: Mapping[str, str]) -> None:
    understood = frozenset[str]().union(*_UNDERSTOOD.values())
    for name in sorted(given.keys() - understood):
        if name.startswith(_WITHOUT_COUNTERPART):
            _log.warning("%s: AUDITOR's server knows it, auditord does not: see `auditord config import`", name)


def _ours(path: Path) -> str:
    return "AUDITORD_" + "__".join(str(key).upper() for key in path)
