"""From a configuration file of AUDITOR's Slurm epilog collector to ours; what changes its meaning gets a remark."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from auditord_builtin.slurm.epilog.config import COLUMN_OF
from auditord_hookspecs import ImportedConfig

_INSTANCE: Final = "collectors.slurm_epilog"
_KNOWN: Final = frozenset(
    {"addr", "port", "record_prefix", "site_id", "components", "log_level", "logging", "tls_config"}
)
_DROPPED: Final = {
    "addr": "the daemon keeps the records itself; a sender can feed another server besides",
    "port": "see addr",
    "tls_config": "see addr",
    "logging": "the daemon logs to standard error or the journal, which keep and rotate it",
}
_LEVELS: Final = {"trace": "debug", "warn": "warning", "off": "error"}
_RAW: Final = (
    "AUDITOR's epilog collector names tasks of arrays by their raw ids; leave it out where the same jobs are also "
    "accounted for by sacct"
)
_CALL: Final = "EpilogSlurmctld calls auditord-epilog now; it only notes the job, and the daemon does the rest"


def import_config(document: Mapping[str, Any]) -> ImportedConfig | None:  # Any: an operator's YAML
    """Translate the file, or None if it is not one of AUDITOR's Slurm epilog collector."""
    if not set(document) <= _KNOWN or "site_id" not in document:
        return None
    rules = document.get("components")
    sections: dict[str, Any] = {
        "kind": "slurm_epilog",
        "record_prefix": document.get("record_prefix", "slurm"),
        "record_id": "raw",
        "sites": [{"name": document["site_id"]}],
        "components": "auditor" if rules is None else [_rule(rule) for rule in rules],
    }
    comments = {f"{_INSTANCE}.record_id": _RAW, _INSTANCE: _CALL}
    if remarks := _remarks(rules or []):
        comments[f"{_INSTANCE}.components"] = remarks
    return ImportedConfig(
        {**{f"{_INSTANCE}.{name}": value for name, value in sections.items()}, **_level(document)},
        comments,
        {name: reason for name, reason in _DROPPED.items() if name in document},
    )


def _level(document: Mapping[str, Any]) -> Mapping[str, str]:  # Any: an operator's YAML
    level = str(document.get("log_level", "")).lower()
    return {"logging.level": _LEVELS.get(level, level)} if level else {}


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:  # Any: an operator's YAML
    """The component with sacct's names for its columns."""
    translated = _with_column(rule)
    if rule.get("key") == "Mem":
        translated |= {"sub_key": "mem", "key_type": "IntegerMega"}
    elif rule.get("key") == "TRES":
        translated |= {"key_type": "String"}
    if "scores" in rule:
        translated["scores"] = [_with_column(score) for score in rule["scores"]]
    return translated


def _with_column(rule: Mapping[str, Any]) -> dict[str, Any]:  # Any: an operator's YAML
    translated = dict(rule)
    if "key" in rule:
        translated["key"] = COLUMN_OF.get(rule["key"], rule["key"])
    if "only_if" in rule:
        translated["only_if"] = _with_column(rule["only_if"])
    return translated


def _remarks(rules: Sequence[Mapping[str, Any]]) -> str:  # Any: an operator's YAML
    remarks = ["a job without a value goes to quarantine (AUDITOR's collector failed)"] if rules else []
    if any(rule.get("key") == "Mem" for rule in rules):
        remarks.append("Mem: the memory of all nodes in MiB (AUDITOR: of the last node)")
    if any(condition.get("key") in {"UserId", "GroupId"} for condition in _conditions(rules)):
        remarks.append("UserId and GroupId: the name alone is compared, without the number in parentheses")
    return "; ".join(remarks)


def _conditions(rules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:  # Any: an operator's YAML
    scores = [score for rule in rules for score in rule.get("scores", ())]
    return [each["only_if"] for each in (*rules, *scores) if "only_if" in each]
