"""From the configuration file of AUDITOR's server (version 0.11) to ours."""

from collections.abc import Mapping
from typing import Any, Final

from auditord.config.auditor_access import import_access
from auditord.config.documents import is_list, is_section
from auditord.config.listen import TcpListen
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import ConfigImport

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
_LEVEL_REMARKS = {"off": "there is no off: errors are always written", "trace": "there is nothing below debug"}
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
    "every name with a dot under which clients read here (their addr), but for this host's own: without TLS "
    "others are answered 421, where AUDITOR took any; `auditord doctor` and the log name them"
)
_METRIC_KEYS = {"site": "site_key", "group": "group_key", "user": "user_key"}
"""Our options by AUDITOR's default of its own, ``meta_key_site`` and so on."""


def import_server_config(document: Mapping[str, Any]) -> ImportedConfig | None:
    """Translate a server's file; None if it is not one."""
    if not set(document) & _SPECIFIC or set(document) - _KNOWN:
        return None
    addresses = ConfigImport(document, "api")
    _import_addresses(addresses)
    metrics = ConfigImport(document, "metrics.database")
    _import_metrics(metrics)
    result = ConfigImport(document, "")
    _import_duplicates(result)
    _import_level(result)
    for part in (addresses, metrics, _import_archive(document), import_access(document)):
        result.include(part)
    has_login = any(path.startswith("authenticators.") for path in result.sections)
    if not has_login and _PER_USER in result.sections.get(_METRICS, ()):
        result.comments[_METRICS] = f"{_PER_USER} names users: it is left out until there is an authenticator"
    result.dropped |= {path: reason for path, reason in _DROPPED.items() if _given(document, path) is not None}
    return result.result()


def _given(document: Any, path: str) -> Any:  # Any: AUDITOR's YAML
    for key in path.split("."):
        document = document.get(key) if is_section(document) else None
    return document


def _import_addresses(result: ConfigImport) -> None:
    document = result.document
    if document.get("application") is None:
        return
    if _given(document, "tls_config.use_tls") in {True, "true"}:
        _import_tls(result)
        return
    listen = _addresses(_given(document, "application.addr"), _given(document, "application.port") or 8000)
    result.put("listen", [str(address) for address in listen])
    if not all(address.is_loopback for address in listen):
        result.put("allow_insecure", value=True, comment="reachable from other hosts, without TLS and without a login")
        result.put("hosts", [], _ALIASES)


def _import_tls(result: ConfigImport) -> None:
    tls_config = result.document["tls_config"]
    hosts = tls_config.get("https_addr") or _given(result.document, "application.addr")
    options = {"certificate": "server_cert_path", "key": "server_key_path", "client_ca": "ca_cert_path"}
    tls = {ours: tls_config.get(theirs) for ours, theirs in options.items()}
    listen = _addresses(hosts, tls_config.get("https_port") or 8443)
    remark = "with TLS alone: AUDITOR left its plain port open beside it, where nobody was asked for a certificate"
    result.put("listen", [{"address": str(each), "tls": tls} for each in listen], remark)


def _addresses(hosts: Any, port: Any) -> list[TcpListen]:  # Any: as the file says it
    hosts = hosts or ["127.0.0.1"]
    hosts = hosts if is_list(hosts) else str(hosts).split(",")
    return [TcpListen(str(host).strip(), int(port)) for host in hosts]


def _import_metrics(result: ConfigImport) -> None:
    database = _given(result.document, "metrics.database")
    if not is_section(database):
        result.put("metrics", [], "AUDITOR has none without this section; leave it out for all four")
        return
    result.put("interval", f"{database.get('frequency', 30)}s", "frequency")
    result.put("metrics", list(database.get("metrics", ())))
    for default, ours in _METRIC_KEYS.items():
        theirs = f"meta_key_{default}"
        comment = "" if theirs in database else f"AUDITOR's default, written out since ours is {default}_id"
        result.put(ours, database.get(theirs, default), comment)
    taken = {"frequency", "metrics", *(f"meta_key_{default}" for default in _METRIC_KEYS)}
    result.drop(database, taken, place="metrics.database.", other="AUDITOR does not know this option")


def _import_archive(document: Mapping[str, Any]) -> ConfigImport:  # Any: AUDITOR's YAML
    result = ConfigImport(document, "archive")
    section = document.get("archival_config")
    if is_section(section):
        result.put("enabled", value=True, comment="into an Apache Iceberg table; pip install 'auditord[archive]'")
        result.put("after_months", section.get("archive_older_than_months"))
        seconds, *fields = str(section.get("cron_schedule") or "0").split()
        if len(fields) == _CRON_FIELDS:
            result.put(
                "schedule", " ".join(fields), f"without the seconds ({seconds}); AUDITOR also ran it at its start"
            )
    return result


def _import_duplicates(result: ConfigImport) -> None:
    if result.document.get("ignore_record_exists_error") in {True, "true"}:
        meaning = "ignore"
        remark = "ignore_record_exists_error; the other records of a batch are kept here (AUDITOR dropped the batch)"
    else:
        meaning = "same-run"
        remark = "the same record again is a success, another one is refused; AUDITOR refused both: refuse does so too"
    result.sections["api.duplicates"], result.comments["api.duplicates"] = meaning, remark


def _import_level(result: ConfigImport) -> None:
    level = str(result.document.get("log_level") or "info").lower()
    if level not in LEVELS:
        result.dropped["log_level"] = f"'{level}' has no counterpart, so it is info"
    result.put_level(LEVELS.get(level, "info"), _LEVEL_REMARKS.get(level, ""))
