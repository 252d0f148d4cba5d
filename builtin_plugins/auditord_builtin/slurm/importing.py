"""From a configuration file of AUDITOR's Slurm collector to ours; values that change their meaning get a remark."""

from collections.abc import Sequence
from typing import Any, Final

from auditord_builtin.slurm.config import policy_of
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, OWN_QUEUE, OWN_STORE, ConfigImport, Document

_SPECIFIC: Final = frozenset({"sacct_frequency", "sender_frequency", "database_path", "job_filter", "sites"})
_TAKEN: Final = _SPECIFIC - {"sender_frequency", "database_path"} | {
    *("record_prefix", "meta", "components", "earliest_datetime", "log_level")
}
_DROPPED: Final = {
    "addr": OWN_STORE,
    "port": "see addr",
    "tls_config": "see addr",
    "sender_frequency": "records are sent as soon as they are there, and again with growing pauses after a fault",
    "database_path": OWN_QUEUE,
    "logging": OWN_LOG,
}
_RULE_KEYS: Final = {"name", "key", "key_type", "key_allow_empty", "only_if"}
_KEYS: Final = {
    "sites": {"name", "only_if"},
    "meta": _RULE_KEYS,
    "components": _RULE_KEYS | {"default_value", "scores"},
    "job_filter": {"status", "partition", "user", "group", "account"},
}
_META: Final = (
    "only_if is applied here (AUDITOR ignored it); a label without a value is left out; of two entries with one name "
    "the first that has a value counts (AUDITOR: the last)"
)
_FREQUENCY: Final = (
    "sacct_frequency; each run looks back by overlap (1h) for jobs that were late, so 5m loads the database less"
)
_EARLIEST: Final = "jobs that ended from here on, as with AUDITOR, but only in the first run of this instance"


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the file, or None if it is not one of AUDITOR's Slurm collector."""
    if not set(document) <= {*_TAKEN, *_DROPPED} or not set(document) & _SPECIFIC:
        return None
    result = ConfigImport(document, "collectors.slurm")
    result.put("kind", "slurm")
    result.put("record_prefix", document.get("record_prefix", "slurm"))
    result.put("interval", f"{document.get('sacct_frequency', 10)}s", _FREQUENCY)
    result.put_earliest("jobs that end", _EARLIEST)
    _import_filter(result)
    for name in ("sites", "meta"):
        if name in document:
            rules = [_known(result, name, rule) for rule in document[name]]
            result.put(name, rules, _META if name == "meta" else "")
    _import_components(result)
    return result.finished(_TAKEN, _DROPPED)


def _import_filter(result: ConfigImport) -> None:
    given = result.section("job_filter")
    kept = _known(result, "job_filter", given)
    states: Sequence[str] = kept.get("status", ["completed"])
    remark = "AUDITOR's default; without it failed, cancelled and timed-out jobs are accounted for, too"
    if "status" in given:
        remark = "an empty list means every state in which a job is over" if not states else ""
    result.put("job_filter", {**kept, "status": list(states)}, remark)


def _import_components(result: ConfigImport) -> None:
    given = result.document.get("components")
    if given is None:
        result.put("components", "auditor", "Cores alone, as AUDITOR's default; leave it out for memory, CPU and GPUs")
        return
    rules = [_known(result, "components", rule) for rule in given]
    result.put("components", rules, "; ".join(_remarks(rules)))


def _remarks(rules: Sequence[Document]) -> list[str]:
    remarks = ["a job without a mandatory value goes to quarantine (AUDITOR dropped it)"]
    if any(rule.get("key_type") == "IntegerMega" for rule in rules):
        remarks.append("IntegerMega is MiB whatever the unit: 4G is 4096 (AUDITOR: 4)")
    changed = [str(rule["key"]) for rule in rules if policy_of(str(rule.get("key")), {}) in {"max", "sum"}]
    if changed:
        remarks.append(
            f"{', '.join(changed)}: of all steps (AUDITOR: of the batch step, as with merge: {{{changed[0]}: batch}})"
        )
    return remarks


def _known(result: ConfigImport, section: str, rule: Document) -> dict[str, Any]:  # Any: YAML
    """The rule without keys that AUDITOR did not know, and so ignored."""
    result.drop(rule, _KEYS[section], place=f"{section}.")
    return {key: value for key, value in rule.items() if key in _KEYS[section]}
