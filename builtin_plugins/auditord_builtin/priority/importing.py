"""Translate a configuration file of AUDITOR's priority plugin (0.11), for ``auditord config import``."""

from typing import Any, Final

from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, ConfigImport, Document

_KEPT: Final = ("components", "group_mapping", "commands", "min_priority", "max_priority", "computation_mode")
_TAKEN: Final = {*_KEPT, "auditor", "timeout", "duration", "frequency", "prometheus", "tls_config"}
_COMMAND: Final = "AUDITOR's option is commands; it ignored this one and ran its default, as auditord does"
_HERE: Final = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
_TLS: Final = {"ca_cert_path": "ca", "client_cert_path": "certificate", "client_key_path": "key"}


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's priority plugin; None for any other file."""
    if "group_mapping" not in document or "kind" in document:
        return None
    result = ConfigImport(document, "plugins.priority")
    result.put("kind", "priority")
    result.put("interval", f"{int(document.get('frequency', 3600))}s", "frequency")
    _import_source(result)
    for name in _KEPT:
        if name in document:
            result.put(name, _translated(name, document[name]), _remark(document, name))
    result.put("group_keys", ["group_id"], "AUDITOR reads this key alone; the default here is [group_id, group]")
    _import_counting(result)
    _import_metrics(result)
    return result.finished(_TAKEN, {"logging": OWN_LOG} | ({} if "commands" in document else {"command": _COMMAND}))


def _translated(name: str, value: Any) -> Any:  # Any: YAML
    """Convert the parameters of groups to text, as AUDITOR does."""
    if name != "group_mapping":
        return value
    return {str(group): [str(parameter) for parameter in parameters] for group, parameters in value.items()}


def _remark(document: Document, name: str) -> str:
    if name == "components" and not document[name]:
        return "time alone counts, of every record; AUDITOR counted only records without components"
    if name == "commands" and any("{resources}" in str(command) for command in document[name]):
        return "{resources} is replaced like {resource}; AUDITOR left it unchanged"
    if name == "min_priority" and document[name] > document.get("max_priority", 1024):
        return "above max_priority, which is refused here; AUDITOR then reversed the order"
    return ""


def _import_source(result: ConfigImport) -> None:
    auditor, tls = result.section("auditor"), result.section("tls_config")
    host, port = str(auditor.get("addr", "127.0.0.1")), auditor.get("port", 8000)
    if host in _HERE:
        result.dropped["auditor"] = "the plugin uses this daemon's own records; for another server set source: {url: …}"
        return
    secure = tls.get("use_tls") in {True, "true"}
    url = f"{'https' if secure else 'http'}://{host}:{port}"
    result.put("source.url", url, "remove source once the records are here")
    result.put("source.timeout", f"{int(result.document.get('timeout', 30))}s")
    for theirs, ours in _TLS.items():
        if secure and theirs in tls:
            result.put(f"source.tls.{ours}", tls[theirs])


def _import_counting(result: ConfigImport) -> None:
    if result.document.get("duration") is not None:
        result.put("duration", f"{int(result.document['duration'])}s")
        remark = "AUDITOR counts jobs that started within duration; its manual describes jobs that stopped (stop)"
        result.put("window", "start", remark)
    if len(result.section("components")) > 1:
        remark = "AUDITOR multiplies the components with each other; its manual describes a sum"
        result.put("component_combination", "product", remark)


def _import_metrics(result: ConfigImport) -> None:
    prometheus = result.document.get("prometheus")
    if prometheus is None or prometheus.get("enable", True) in {False, "false"}:
        result.put("metrics", [], "AUDITOR had no gauges; remove this line to get them under both names")
        return
    result.put("metrics", list(prometheus["metrics"]), "at the daemon's own /metrics, under AUDITOR's names as well")
    reason = "the gauges are at /metrics of the daemon (api.listen)"
    result.drop(prometheus, {"enable", "metrics"}, dict.fromkeys(("addr", "port"), reason), place="prometheus.")
