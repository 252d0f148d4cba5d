"""From a configuration file of AUDITOR's Kubernetes collector to ours; values that mean something else get a remark."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from auditord_hookspecs import ImportedConfig

Document = Mapping[str, Any]  # Any: an operator's YAML

_SPECIFIC: Final = frozenset({"prometheus_addr", "prometheus_port", "merge_interval", "collect_interval"})
_DROPPED: Final = {
    "auditor_addr": "the daemon keeps the records itself; a sender can feed another server besides",
    "auditor_port": "see auditor_addr",
    "auditor_timeout": "see auditor_addr",
    "tls_config": "see auditor_addr",
    "merge_interval": "figures are asked for in each run",
    "database_path": "the queue is in the daemon's state_dir; let the old collector send what it still has queued",
}
_KNOWN: Final = frozenset(
    {
        *_DROPPED,
        *_SPECIFIC,
        *("record_prefix", "earliest_datetime", "prometheus_timeout", "job_filter", "backlog_interval"),
        *("backlog_maxretries", "log_level"),
    }
)
_LEVELS: Final = {"trace": "debug", "warn": "warning", "off": "error"}
_INSTANCE: Final = "collectors.kubernetes"
_UNKNOWN: Final = "AUDITOR does not know this option; a typing error?"
_ENDS: Final = (
    "all ends count: AUDITOR left out pods that were deleted between two looks, and those whose containers lost their "
    "times (evictions); [Succeeded, Failed] leaves out the deleted ones"
)
_COMPONENTS: Final = (
    "AUDITOR's four. naive_cpu_time counts init containers and earlier runs of restarted containers as well (AUDITOR: "
    "the last run, no init containers), memory_limit is what the scheduler sets aside; quantities such as 0.5 count, "
    "and a missing limit of one kind leaves the other. Without this line there are requests and GPUs, too"
)
_SITES: Final = "AUDITOR's records had no site: name yours, or reports per site call it NOT_CONFIGURED"
_META: Final = "AUDITOR's records had no group: this makes the namespace their group_id; [] leaves it out"
_PROMETHEUS: Final = (
    "https, a path prefix and a token are possible here; component cpu is the highest value of the pod's counter "
    "(AUDITOR extrapolated its increase); cpu_query takes another question"
)


@dataclass
class _Import:
    """The result as it grows."""

    document: Document
    sections: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: YAML that goes into ours
    comments: dict[str, str] = field(default_factory=dict[str, str])
    dropped: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, option: str, value: Any, comment: str = "") -> None:  # Any: YAML
        path = f"{_INSTANCE}.{option}"
        self.sections[path] = value
        if comment:
            self.comments[path] = comment


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the file, or None if it is not one of AUDITOR's Kubernetes collector."""
    if not set(document) & _SPECIFIC or "sacct_frequency" in document:
        return None
    result = _Import(document)
    result.put("kind", "kubernetes")
    result.put("record_prefix", document.get("record_prefix", ""), "ids are AUDITOR's, so nothing is counted twice")
    _import_times(result)
    _import_filter(result)
    _put_what_auditor_makes(result)
    _import_prometheus(result)
    if "log_level" in document:
        level = str(document["log_level"]).lower()
        result.sections["logging.level"] = _LEVELS.get(level, level)
    result.dropped |= {name: reason for name, reason in _DROPPED.items() if name in document}
    result.dropped |= {str(name): _UNKNOWN for name in document if name not in _KNOWN}
    return ImportedConfig(result.sections, result.comments, result.dropped)


def _import_times(result: _Import) -> None:
    result.put(
        "interval",
        f"{result.document.get('collect_interval', 60)}s",
        "a run asks only for what has happened since the last one: 30s (the default) costs little",
    )
    earliest = result.document.get("earliest_datetime")
    if earliest is None:
        result.comments[_INSTANCE] = (
            "the first run accounts for pods that end from then on; to go on where AUDITOR's collector stopped, set "
            "earliest_datetime to the stop time of its last record (what is sent twice is recognised)"
        )
        return
    text = earliest.isoformat() if isinstance(earliest, datetime) else str(earliest)
    aware = text if re.search(r"(Z|[+-]\d\d:?\d\d)$", text) else f"{text}Z"
    result.put("earliest_datetime", aware, "only in the first run of this instance; later ones go on from there")


def _import_filter(result: _Import) -> None:
    given: Document = result.document.get("job_filter") or {}
    remark = "" if "namespace" in given else "AUDITOR's default; an empty list is all namespaces"
    result.put("job_filter.namespace", given.get("namespace", ["default"]), remark)
    result.put("job_filter.status", [], _ENDS)
    if given.get("labels"):
        result.put("job_filter.labels", given["labels"])
    if "status" in given:
        result.dropped["job_filter.status"] = "AUDITOR ignored it; ours knows Succeeded, Failed and Deleted"
    unknown = set(given) - {"namespace", "labels", "status"}
    result.dropped |= {f"job_filter.{name}": _UNKNOWN for name in unknown}


def _put_what_auditor_makes(result: _Import) -> None:
    """AUDITOR's components and labels, which its file does not name."""
    result.put("components", "auditor", _COMPONENTS)
    result.put("sites", [{"name": "NOT_CONFIGURED"}], _SITES)
    result.put("meta", [{"name": "group_id", "key": "namespace", "key_type": "String"}], _META)


def _import_prometheus(result: _Import) -> None:
    document = result.document
    if "prometheus_addr" not in document:
        return
    host, port = document["prometheus_addr"], document.get("prometheus_port", 9090)
    result.put("prometheus.url", f"http://{host}:{port}", _PROMETHEUS)
    result.put("prometheus.timeout", f"{document.get('prometheus_timeout', 60)}s")
    result.put("prometheus.pause", f"{document.get('backlog_interval', 300)}s")
    attempts = int(document.get("backlog_maxretries", 2)) + 1
    result.put("prometheus.attempts", attempts, "AUDITOR counts retries, this counts the first attempt as well")
