"""From a configuration file of AUDITOR's Slurm collector to ours; values that change their meaning get a remark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from auditord_builtin.slurm.merge import policy_of
from auditord_hookspecs import ImportedConfig

_SPECIFIC = frozenset({"sacct_frequency", "sender_frequency", "database_path", "job_filter", "sites"})
_KNOWN = _SPECIFIC | {
    *("addr", "port", "record_prefix", "meta", "components", "earliest_datetime", "log_level", "logging", "tls_config"),
}
_DROPPED = {
    "addr": "the daemon keeps the records itself; a sender can feed another server besides",
    "port": "see addr",
    "tls_config": "see addr",
    "sender_frequency": "records are sent as soon as they are there, and again with growing pauses after a fault",
    "database_path": "the queue is in the daemon's state_dir; let the old collector send what it still has queued",
    "logging": "the daemon logs to standard error or the journal, which keep and rotate it",
}
_RULE_KEYS = {"name", "key", "key_type", "key_allow_empty", "only_if"}
_KEYS = {
    "sites": {"name", "only_if"},
    "meta": _RULE_KEYS,
    "components": _RULE_KEYS | {"default_value", "scores"},
    "job_filter": {"status", "partition", "user", "group", "account"},
}
_LEVELS = {"trace": "debug", "warn": "warning", "off": "error"}
_INSTANCE = "collectors.slurm"


@dataclass
class _Import:
    """The result as it grows."""

    document: Mapping[str, Any]  # Any: an operator's YAML
    sections: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: YAML that goes into ours
    comments: dict[str, str] = field(default_factory=dict[str, str])
    dropped: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, option: str, value: Any, comment: str | None = None) -> None:  # Any: YAML
        path = f"{_INSTANCE}.{option}"
        self.sections[path] = value
        if comment:
            self.comments[path] = comment


def import_config(document: Mapping[str, Any]) -> ImportedConfig | None:  # Any: an operator's YAML
    """Translate the file, or None if it is not one of AUDITOR's Slurm collector."""
    if not set(document) <= _KNOWN or not set(document) & _SPECIFIC:
        return None
    result = _Import(document)
    result.put("kind", "slurm")
    result.put("record_prefix", document.get("record_prefix", "slurm"))
    _import_times(result)
    _import_filter(result)
    for name in ("sites", "meta"):
        if name in document:
            result.put(name, [_known(result, name, rule) for rule in document[name]], _META if name == "meta" else None)
    _import_components(result)
    if "log_level" in document:
        level = str(document["log_level"]).lower()
        result.sections["logging.level"] = _LEVELS.get(level, level)
    result.dropped |= {name: reason for name, reason in _DROPPED.items() if name in document}
    return ImportedConfig(result.sections, result.comments, result.dropped)


_META = (
    "only_if is applied here (AUDITOR ignored it); a label without a value is left out; of two entries with one name "
    "the first that has a value counts (AUDITOR: the last)"
)


def _import_times(result: _Import) -> None:
    frequency = result.document.get("sacct_frequency", 10)
    result.put(
        "interval",
        f"{frequency}s",
        "sacct_frequency; each run looks back by overlap (1h) for jobs that were late, so 5m loads the database less",
    )
    earliest = result.document.get("earliest_datetime")
    remark = "jobs that ended from here on, as with AUDITOR, but only in the first run of this instance"
    if earliest is None:
        result.comments[_INSTANCE] = (
            "the first run accounts for jobs that end from then on; to go on where AUDITOR's collector stopped, set "
            "earliest_datetime to the stop time of its last record (what is sent twice is recognised)"
        )
    else:
        result.put("earliest_datetime", earliest if isinstance(earliest, str) else earliest.isoformat(), remark)


def _import_filter(result: _Import) -> None:
    given: Mapping[str, Any] = result.document.get("job_filter") or {}  # Any: an operator's YAML
    kept = _known(result, "job_filter", given)
    states: Sequence[str] = kept.get("status", ["completed"])
    remark = "AUDITOR's default; without it failed, cancelled and timed-out jobs are accounted for, too"
    if "status" in given:
        remark = "an empty list means every state in which a job is over" if not states else ""
    result.put("job_filter", {**kept, "status": list(states)}, remark)


def _import_components(result: _Import) -> None:
    given = result.document.get("components")
    if given is None:
        result.put("components", "auditor", "Cores alone, as AUDITOR's default; leave it out for memory, CPU and GPUs")
        return
    rules = [_known(result, "components", rule) for rule in given]
    result.put("components", rules, "; ".join(_remarks(rules)))


def _remarks(rules: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: an operator's YAML
    remarks = ["a job without a mandatory value goes to quarantine (AUDITOR dropped it)"]
    if any(rule.get("key_type") == "IntegerMega" for rule in rules):
        remarks.append("IntegerMega is MiB whatever the unit: 4G is 4096 (AUDITOR: 4)")
    changed = [str(rule["key"]) for rule in rules if policy_of(str(rule.get("key")), {}) in {"max", "sum"}]
    if changed:
        remarks.append(
            f"{', '.join(changed)}: of all steps (AUDITOR: of the batch step, as with merge: {{{changed[0]}: batch}})"
        )
    return remarks


def _known(result: _Import, section: str, rule: Mapping[str, Any]) -> dict[str, Any]:  # Any: an operator's YAML
    """The rule without keys that AUDITOR did not know, and so ignored."""
    for key in set(rule) - _KEYS[section]:
        result.dropped[f"{section}.{key}"] = "AUDITOR does not know this option and ignored it; a typing error?"
    return {key: value for key, value in rule.items() if key in _KEYS[section]}
