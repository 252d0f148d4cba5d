"""Import the configuration of AUDITOR's server (version 0.11): its file and its environment variables.

The variables' names are the options' paths in capitals, joined by two underscores (``AUDITOR_DATABASE__HOST``).
"""

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final, TypeGuard
from urllib.parse import quote

from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import NO_ENVIRONMENT, ConfigImport, Document

_SPECIFIC = frozenset({"application", "database", "metrics", "rbac_config", "archival_config", "environment"})
_KNOWN = _SPECIFIC | {"log_level", "logging", "tls_config", "ignore_record_exists_error"}
LEVELS: Final = {
    "off": "error",
    "error": "error",
    "warn": "warning",
    "info": "info",
    "debug": "debug",
    "trace": "debug",
}
_LEVEL_REMARKS = {"off": "logging cannot be off: errors are always written", "trace": "debug is the lowest level"}
_DROPPED = {
    "environment": "there is one file for every environment",
    "application.web_workers": "one process serves every request",
    "database": "records are kept in auditord's own store (store.url); AUDITOR's database is not touched",
    "logging": "the daemon logs to standard error or the journal, which keep and rotate it",
    "archival_config.archive_path": "AUDITOR's files stay there; `auditord import auditor` reads them",
    "archival_config.archive_file_prefix": "the table's files have names of their own",
    "archival_config.compression_type": "the table's files are compressed with zstd",
}
_METRICS: Final = "metrics.database.metrics"
_PER_USER: Final = "RecordCountPerUser"
_CRON_FIELDS: Final = 5
_ALIASES: Final = (
    "list every name with a dot that clients use for this server (their addr), except this host's own: without TLS, "
    "others are answered 421, while AUDITOR accepted any; `auditord doctor` and the log name them"
)
_NOTES: Final = (
    NO_ENVIRONMENT,
    "In every configuration: a query has at most 250 conditions (AUDITOR: 500), a record has at most 2 MiB, and",
    "requests from pages of other servers (foreign Origin) get 403. All differences: auditord manual from-auditor",
)
_LABELS: Final = ("site", "group", "user")
"""auditord's options in ``labels``, and the defaults of AUDITOR's ``meta_key_site``, ``_group`` and ``_user``."""


RULES: Final = "authenticators.certificates"
_LISTS: Final = {"monitoring_role_cn": "monitor", "write_access_cn": "writer", "read_access_cn": "reader"}
_TRUE: Final = frozenset({True, "true"})
_ANYBODY: Final = "AUDITOR let every client with a certificate read, write and see metrics"
_SHARED: Final = "AUDITOR restricted readers without a rule to what all rules name together; so does this role"
_POLICIES: Final = "define in access.roles what each of your own roles may do"
_NO_RBAC: Final = "AUDITOR ignored it: neither enforce_rbac nor use_tls was on, and without TLS it recognised no client"
_WILDCARD: Final = "here, a * in a name matches other names, too: write the rule yourself, by subject"


def import_server_config(document: Document, others: Sequence[Document]) -> ImportedConfig | None:
    """Translate a configuration file of AUDITOR's server. Return None for any other file.

    Args:
        document: the content of the file.
        others: the contents of other files, such as those of AUDITOR's clients, which contain the server's host names.
    """
    if not set(document) & _SPECIFIC or set(document) - _KNOWN:
        return None
    addresses = ConfigImport(document, "api")
    _import_addresses(addresses, others)
    metrics = ConfigImport(document, "metrics.database")
    _import_metrics(metrics)
    result = ConfigImport(document, "")
    if document.get("ignore_record_exists_error") in _TRUE:
        meaning = "ignore"
        remark = "ignore_record_exists_error; the other records of a batch are kept here (AUDITOR dropped the batch)"
    else:
        meaning = "same-run"
        remark = "an identical record is a success, a different one is refused; AUDITOR refused both, as refuse does"
    result.sections["api.duplicates"], result.comments["api.duplicates"] = meaning, remark
    level = str(document.get("log_level") or "info").lower()
    if level not in LEVELS:
        result.dropped["log_level"] = f"'{level}' has no counterpart, so info is used"
    result.put_level(LEVELS.get(level, "info"), _LEVEL_REMARKS.get(level, ""))
    lake, section = ConfigImport(document, "lake"), document.get("archival_config")
    if _is_section(section):
        lake.put("enabled", value=True, comment="into an Apache Iceberg table; pip install 'auditord[lake]'")
        lake.put("name", "main", "identifies this record store in the lake; never change it")
        lake.put("keep_months", section.get("archive_older_than_months"), "older records are only in the lake")
        seconds, *fields = str(section.get("cron_schedule") or "0").split()
        if len(fields) == _CRON_FIELDS:
            lake.put("schedule", " ".join(fields), f"without the seconds ({seconds}); AUDITOR also ran it at its start")
    for part in (addresses, metrics, lake, import_access(document)):
        result.include(part)
    has_login = any(path.startswith("authenticators.") for path in result.sections)
    if not has_login and _PER_USER in result.sections.get(_METRICS, ()):
        result.comments[_METRICS] = f"{_PER_USER} names users: it is left out until an authenticator is configured"
    result.dropped |= {path: reason for path, reason in _DROPPED.items() if _lookup(document, path) is not None}
    return result.result(notes=_NOTES)


def listen_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_section(value: Any) -> TypeGuard[dict[str, Any]]:  # Any: AUDITOR's YAML
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:  # Any: AUDITOR's YAML
    return isinstance(value, list)


def _lookup(document: Any, path: str) -> Any:  # Any: AUDITOR's YAML
    for key in path.split("."):
        document = document.get(key) if _is_section(document) else None
    return document


def _import_addresses(result: ConfigImport, others: Sequence[Document]) -> None:
    document = result.document
    if document.get("application") is None:
        return
    if _lookup(document, "tls_config.use_tls") in _TRUE:
        tls_config = document["tls_config"]
        files = {"certificate": "server_cert_path", "key": "server_key_path", "client_ca": "ca_cert_path"}
        tls = {ours: tls_config.get(theirs) for ours, theirs in files.items()}
        port = int(tls_config.get("https_port") or 8443)
        hosts = _hosts(tls_config.get("https_addr") or _lookup(document, "application.addr"))
        remark = "only with TLS: AUDITOR also left its plain port open, and required no client certificate there"
        result.put("listen", [{"address": listen_address(host, port), "tls": tls} for host in hosts], remark)
        return
    hosts = _hosts(_lookup(document, "application.addr"))
    port = int(_lookup(document, "application.port") or 8000)
    result.put("listen", [listen_address(host, port) for host in hosts])
    if not all(host.lower() == "localhost" if _is_name(host) else ip_address(host).is_loopback for host in hosts):
        result.put("allow_insecure", value=True, comment="reachable from other hosts, without TLS and without a login")
        # The host names that clients use for the server and that DNS rebinding could abuse.
        names: set[str] = set()
        for other in others:  # the configuration of one of AUDITOR's clients
            section = other.get("auditor")
            options = section if _is_section(section) else other
            found = [options.get(name) for name in ("addr", "ip", "host", "hosts")]
            names |= {str(host).lower() for each in found if each for host in (each if _is_list(each) else [each])}
        aliases = [name for name in names if "." in name and not name.endswith(".localhost") and _is_name(name)]
        result.put("hosts", sorted(aliases), _ALIASES)


def _hosts(written: Any) -> list[str]:  # Any: AUDITOR's YAML
    written = written or ["127.0.0.1"]
    return [str(host).strip() for host in (written if _is_list(written) else str(written).split(","))]


def _is_name(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


def _import_metrics(result: ConfigImport) -> None:
    database = _lookup(result.document, "metrics.database")
    if not _is_section(database):
        result.put("metrics", [], "AUDITOR has no metrics without this section; leave the option out for all four")
        return
    missing: list[str] = []
    result.put("interval", f"{database.get('frequency', 30)}s", "frequency")
    result.put("metrics", list(database.get("metrics", ())))
    for name in _LABELS:
        if key := database.get(f"meta_key_{name}"):
            result.sections[f"labels.{name}"] = str(key)
            result.comments[f"labels.{name}"] = f"meta_key_{name}; here also for reports, the page and plugins"
        else:
            missing.append(f"{name}_id (AUDITOR: {name})")
    if missing:
        result.remark("", f"these count by {', '.join(missing)}, unless the section labels says otherwise")
    taken = {"frequency", "metrics", *(f"meta_key_{name}" for name in _LABELS)}
    result.drop(database, taken, place="metrics.database.", other="AUDITOR does not know this option")


def import_access(document: Document) -> ConfigImport:
    """Translate ``rbac_config`` to roles and client certificates. Callers get no more rights than AUDITOR gave them."""
    result, tls, rbac = ConfigImport(document, RULES), document.get("tls_config"), document.get("rbac_config")
    secured = _is_section(tls) and tls.get("use_tls") in _TRUE
    if not _is_section(rbac) or rbac.get("enforce_rbac") not in _TRUE or not secured:
        if _is_section(rbac):
            result.dropped["rbac_config"] = _NO_RBAC
        if secured:
            result.put("kind", "certificates")
            result.put("rules", [{"subject": "*", "roles": ["reader", "writer", "monitor"]}], _ANYBODY)
        return result
    names: dict[str, list[str]] = {}  # the roles of each common name
    for option, role in _LISTS.items():
        for name in _list_texts(rbac.get(option)):
            names.setdefault(name, []).append(role)
    for number, rule in enumerate(_data_rules(rbac), start=1):
        # The rule's role replaces its reader's right to read everything.
        roles = names.setdefault(str(rule["reader_cn"]), [])
        if "reader" in roles:
            roles.remove("reader")
        roles.append(_put_role(result, f"reader_{number}", _rows(rule)))
    _restrict_other_readers(result, names, rbac)
    if "base_policies" in rbac:
        result.dropped["rbac_config.base_policies"] = _POLICIES
    rules = [{"common_name": name, "roles": list(roles)} for name, roles in names.items() if "*" not in name]
    result.dropped |= {f"rbac_config, certificate '{name}'": _WILDCARD for name in names if "*" in name}
    if not rules:
        result.dropped["rbac_config"] = (
            "it names no client; without a rule every client is refused, so write authenticators yourself"
        )
    else:
        result.put("kind", "certificates")
        result.put("rules", rules)
    return result


def _list_texts(value: Any) -> Sequence[str]:  # Any: AUDITOR's YAML
    return [str(each) for each in value] if _is_list(value) else []


def _data_rules(rbac: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rules = rbac.get("data_access_rules")
    return [rule for rule in rules if _is_section(rule) and rule.get("meta_info")] if _is_list(rules) else []


def _rows(rule: Mapping[str, Any]) -> Mapping[str, list[str]]:
    return {str(key): list(_list_texts(values)) for key, values in dict(rule["meta_info"]).items()}


def _put_role(result: ConfigImport, name: str, rows: Mapping[str, list[str]]) -> str:
    result.sections[f"access.roles.{name}"] = {"permissions": ["read"], "rows": dict(rows)}
    return name


def _restrict_other_readers(result: ConfigImport, names: Mapping[str, list[str]], rbac: Mapping[str, Any]) -> None:
    """Restrict readers without a rule to the union of all rules, as AUDITOR did."""
    others = [roles for roles in names.values() if "reader" in roles]
    rows: dict[str, list[str]] = {}
    for rule in _data_rules(rbac):
        for key, values in _rows(rule).items():
            known = rows.setdefault(key, [])
            known += [value for value in values if value not in known]
    if others and rows:
        role = _put_role(result, "reader_without_rule", rows)
        result.comments[f"access.roles.{role}"] = _SHARED
        for roles in others:
            roles[roles.index("reader")] = role


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
"""Prefixes of other variables of AUDITOR's server. Any other variable belongs to another program."""

Environment = Mapping[str, str]


def import_environment(environ: Environment, written: Document) -> ImportedConfig:
    """Translate the environment variables of AUDITOR's server.

    Raises:
        ValueError: AUDITOR would refuse a value.
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
        sections.setdefault("store.url", _url(environ))  # AUDITOR's default, if neither source names a database
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
"""The variables of each option, and the function that computes its value from them."""
