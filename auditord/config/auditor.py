"""From the configuration file of AUDITOR's server (version 0.11) to ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from auditord.config.auditor_access import import_access
from auditord.config.documents import is_list, is_section
from auditord.config.listen import TcpListen
from auditord_hookspecs import ImportedConfig

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
    "archival_config": "old records stay in the store",
}
_METRIC_KEYS = {"meta_key_site": "site_key", "meta_key_group": "group_key", "meta_key_user": "user_key"}
_METRIC_DEFAULTS = {"meta_key_site": "site", "meta_key_group": "group", "meta_key_user": "user"}


def import_server_config(document: Mapping[str, Any]) -> ImportedConfig | None:
    """Translate a server's file, or None if it is not one."""
    if not set(document) & _SPECIFIC or set(document) - _KNOWN:
        return None
    result = _Import(document)
    _import_addresses(result)
    _import_metrics(result)
    _import_duplicates(result)
    _import_level(result)
    access = import_access(result.given("tls_config"), result.given("rbac_config"))
    result.sections |= access.sections
    result.comments |= access.comments
    result.dropped |= access.dropped
    result.dropped |= {path: reason for path, reason in _DROPPED.items() if result.given(path) is not None}
    return ImportedConfig(result.sections, result.comments, result.dropped)


@dataclass
class _Import:
    """The result as it grows."""

    document: Mapping[str, Any]
    sections: dict[str, Any] = field(default_factory=dict[str, Any])
    comments: dict[str, str] = field(default_factory=dict[str, str])
    dropped: dict[str, str] = field(default_factory=dict[str, str])

    def given(self, path: str) -> Any:
        """What AUDITOR's file says, or None."""
        value: Any = self.document
        for key in path.split("."):
            value = value.get(key) if is_section(value) else None
        return value

    def put(self, path: str, value: Any, comment: str = "") -> None:
        """Say an option of ours."""
        self.sections[path] = value
        if comment:
            self.comments[path] = comment


def _import_addresses(result: _Import) -> None:
    if result.given("application") is None:
        return
    if result.given("tls_config.use_tls") in {True, "true"}:
        _import_tls(result)
        return
    listen = _addresses(result.given("application.addr"), result.given("application.port") or 8000)
    result.put("api.listen", [str(address) for address in listen])
    if not all(address.is_loopback for address in listen):
        result.put(
            "api.allow_insecure", value=True, comment="reachable from other hosts, without TLS and without a login"
        )


def _import_tls(result: _Import) -> None:
    hosts = result.given("tls_config.https_addr") or result.given("application.addr")
    options = {"certificate": "server_cert_path", "key": "server_key_path", "client_ca": "ca_cert_path"}
    tls = {ours: result.given(f"tls_config.{theirs}") for ours, theirs in options.items()}
    listen = _addresses(hosts, result.given("tls_config.https_port") or 8443)
    remark = "with TLS alone: AUDITOR left its plain port open beside it, where nobody was asked for a certificate"
    result.put("api.listen", [{"address": str(each), "tls": tls} for each in listen], remark)


def _addresses(hosts: Any, port: Any) -> list[TcpListen]:  # Any: as the file says it
    hosts = hosts or ["127.0.0.1"]
    hosts = hosts if is_list(hosts) else str(hosts).split(",")
    return [TcpListen(str(host).strip(), int(port)) for host in hosts]


def _import_metrics(result: _Import) -> None:
    database = result.given("metrics.database")
    if not is_section(database):
        result.put("metrics.database.metrics", [], "AUDITOR has none without this section; leave it out for all four")
        return
    path = "metrics.database"
    result.put(f"{path}.interval", f"{database.get('frequency', 30)}s", "frequency")
    result.put(f"{path}.metrics", list(database.get("metrics", ())))
    for theirs, ours in _METRIC_KEYS.items():
        comment = (
            "" if theirs in database else f"AUDITOR's default, written out since ours is {_METRIC_DEFAULTS[theirs]}_id"
        )
        result.put(f"{path}.{ours}", database.get(theirs, _METRIC_DEFAULTS[theirs]), comment)
    known = {"frequency", "metrics", *_METRIC_KEYS}
    result.dropped |= {f"{path}.{key}": "AUDITOR does not know this option" for key in database if key not in known}


def _import_duplicates(result: _Import) -> None:
    if result.given("ignore_record_exists_error") in {True, "true"}:
        remark = "ignore_record_exists_error; the other records of a batch are kept here (AUDITOR dropped the batch)"
        result.put("api.duplicates", "ignore", remark)
    else:
        remark = "the same record again is a success, another one is refused; AUDITOR refused both: refuse does so too"
        result.put("api.duplicates", "same-run", remark)


def _import_level(result: _Import) -> None:
    level = str(result.given("log_level") or "info").lower()
    if level not in LEVELS:
        result.dropped["log_level"] = f"'{level}' has no counterpart, so it is info"
    result.put("logging.level", LEVELS.get(level, "info"), _LEVEL_REMARKS.get(level, ""))
