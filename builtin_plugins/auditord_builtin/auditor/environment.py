"""The environment variables of AUDITOR's server that its container is set up with.

Their names are the path in capitals with two underscores between the levels (``AUDITOR_DATABASE__HOST``).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from auditord_builtin.auditor.server_config import LEVELS, listen_address
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import Document

_APPLICATION: Final = "AUDITOR_APPLICATION__"
_DATABASE: Final = "AUDITOR_DATABASE__"
_LEVEL: Final = "AUDITOR_LOG_LEVEL"
_PASSWORD: Final = f"{_DATABASE}PASSWORD"
_SSL: Final = f"{_DATABASE}REQUIRE_SSL"
_ADDRESS: Final = (f"{_APPLICATION}ADDR", f"{_APPLICATION}PORT")
_URL: Final = tuple(f"{_DATABASE}{name}" for name in ("DATABASE_NAME", "HOST", "PORT", "USERNAME"))

_SSLMODES: Final = {"true": "require", "1": "require", "false": "prefer", "0": "prefer"}

_WITHOUT_COUNTERPART: Final = (
    *(_APPLICATION, _DATABASE, "AUDITOR_ENVIRONMENT", "AUDITOR_IGNORE_RECORD_EXISTS_ERROR"),
    *(f"AUDITOR_{section}__" for section in ("METRICS", "LOGGING", "TLS_CONFIG", "RBAC_CONFIG", "ARCHIVAL_CONFIG")),
)
"""The beginning of the other variables of AUDITOR's server; any other name is another program's."""

Environment = Mapping[str, str]


def import_environment(environ: Environment, written: Document) -> ImportedConfig:
    """Translate the variables of AUDITOR's server.

    Raises:
        ValueError: a value is none that AUDITOR would have taken.
    """
    sections: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for option, (names, value) in _OPTIONS.items():
        if given := [name for name in names if name in environ]:
            try:
                sections[option] = value(environ)
            except (KeyError, ValueError) as error:
                raise ValueError(f"environment variable {given[0]}: AUDITOR would refuse its value") from error
            variables[option] = ", ".join(given)
    if any(option.startswith("store.") for option in sections) and "store" not in written:
        sections.setdefault("store.url", _url(environ))  # AUDITOR's default, where nothing says which database
    understood = {name for names, _ in _OPTIONS.values() for name in names}
    dropped = {name: "" for name in environ if name not in understood and name.startswith(_WITHOUT_COUNTERPART)}
    return ImportedConfig(sections, variables, dropped)


def _listen(environ: Environment) -> list[str]:
    hosts = environ.get(f"{_APPLICATION}ADDR", "127.0.0.1").split(",")
    port = int(environ.get(f"{_APPLICATION}PORT", "8000"))
    return [listen_address(host.strip(), port) for host in hosts]


def _url(environ: Environment) -> str:
    """Return the database's URL, with AUDITOR's defaults for unset variables."""
    host = environ.get(f"{_DATABASE}HOST", "localhost")
    port = int(environ.get(f"{_DATABASE}PORT", "5432"))
    user = quote(environ.get(f"{_DATABASE}USERNAME", "postgres"), safe="")
    name = quote(environ.get(f"{_DATABASE}DATABASE_NAME", "auditor"), safe="")
    return f"postgresql://{user}@{listen_address(host, port)}/{name}"


_OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Environment], Any]]]] = {
    "api.listen": (_ADDRESS, _listen),
    "store.url": (_URL, _url),
    "store.password": ((_PASSWORD,), lambda environ: environ[_PASSWORD]),
    "store.sslmode": ((_SSL,), lambda environ: _SSLMODES[environ[_SSL].lower()]),
    "logging.level": ((_LEVEL,), lambda environ: LEVELS[environ[_LEVEL].lower()]),
}
"""The variables that make up each option, and how."""
