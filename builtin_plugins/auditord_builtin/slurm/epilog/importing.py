"""From a configuration file of AUDITOR's Slurm epilog collector to ours; what changes its meaning gets a remark."""

from collections.abc import Sequence
from typing import Any, Final

from auditord_builtin.slurm.epilog.config import COLUMN_OF
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, OWN_STORE, ConfigImport, Document

_TAKEN: Final = frozenset({"record_prefix", "site_id", "components", "log_level"})
_DROPPED: Final = {"addr": OWN_STORE, "port": "see addr", "tls_config": "see addr", "logging": OWN_LOG}
_RAW: Final = (
    "AUDITOR's epilog collector names tasks of arrays by their raw ids; leave it out where the same jobs are also "
    "accounted for by sacct"
)
_CALL: Final = "EpilogSlurmctld calls auditord-epilog now; it only notes the job, and the daemon does the rest"


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the file, or None if it is not one of AUDITOR's Slurm epilog collector."""
    if not set(document) <= {*_TAKEN, *_DROPPED} or "site_id" not in document:
        return None
    rules = document.get("components")
    result = ConfigImport(document, "collectors.slurm_epilog")
    result.put("kind", "slurm_epilog")
    result.put("record_prefix", document.get("record_prefix", "slurm"))
    result.put("record_id", "raw", _RAW)
    result.put("sites", [{"name": document["site_id"]}])
    result.put("components", "auditor" if rules is None else [_rule(rule) for rule in rules], _remarks(rules or []))
    result.remark("", _CALL)
    return result.finished(_TAKEN, _DROPPED)


def _rule(rule: Document) -> dict[str, Any]:  # Any: an operator's YAML
    """The component with sacct's names for its columns."""
    translated = _with_column(rule)
    if rule.get("key") == "Mem":
        translated |= {"sub_key": "mem", "key_type": "IntegerMega"}
    elif rule.get("key") == "TRES":
        translated |= {"key_type": "String"}
    if "scores" in rule:
        translated["scores"] = [_with_column(score) for score in rule["scores"]]
    return translated


def _with_column(rule: Document) -> dict[str, Any]:  # Any: an operator's YAML
    translated = dict(rule)
    if "key" in rule:
        translated["key"] = COLUMN_OF.get(rule["key"], rule["key"])
    if "only_if" in rule:
        translated["only_if"] = _with_column(rule["only_if"])
    return translated


def _remarks(rules: Sequence[Document]) -> str:
    remarks = ["a job without a value goes to quarantine (AUDITOR's collector failed)"] if rules else []
    if any(rule.get("key") == "Mem" for rule in rules):
        remarks.append("Mem: the memory of all nodes in MiB (AUDITOR: of the last node)")
    if any(condition.get("key") in {"UserId", "GroupId"} for condition in _conditions(rules)):
        remarks.append("UserId and GroupId: the name alone is compared, without the number in parentheses")
    return "; ".join(remarks)


def _conditions(rules: Sequence[Document]) -> list[Document]:
    scores = [score for rule in rules for score in rule.get("scores", ())]
    return [each["only_if"] for each in (*rules, *scores) if "only_if" in each]
