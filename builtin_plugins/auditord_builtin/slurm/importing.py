"""Propose a configuration: from a file of AUDITOR's Slurm collector, or from the Slurm on this host."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from auditord_builtin.slurm.config import policy_of
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, OWN_QUEUE, OWN_STORE, ConfigImport, Document
from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

_SPECIFIC: Final = frozenset({"sacct_frequency", "sender_frequency", "database_path", "job_filter", "sites"})
_TAKEN: Final = _SPECIFIC - {"sender_frequency", "database_path"} | {
    *("record_prefix", "meta", "components", "earliest_datetime", "log_level")
}
_DROPPED: Final = {
    "addr": OWN_STORE,
    "port": "see addr",
    "tls_config": "see addr",
    "sender_frequency": "records are sent at once, and retried with growing pauses after an error",
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
    """Translate a file of AUDITOR's Slurm collector; None for any other file."""
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
        remarks.append("IntegerMega is MiB for any unit: 4G is 4096 (AUDITOR: 4)")
    changed = [str(rule["key"]) for rule in rules if policy_of(str(rule.get("key")), {}) in {"max", "sum"}]
    if changed:
        remarks.append(
            f"{', '.join(changed)}: of all steps (AUDITOR: of the batch step, as with merge: {{{changed[0]}: batch}})"
        )
    return remarks


def _known(result: ConfigImport, section: str, rule: Document) -> dict[str, Any]:  # Any: YAML
    """Return the rule without the keys that AUDITOR ignored."""
    result.drop(rule, _KEYS[section], place=f"{section}.")
    return {key: value for key, value in rule.items() if key in _KEYS[section]}


_SCORE: Final = "HEPscore23"
_SETTING: Final = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)
_COMMENTS: Final = {
    "earliest_datetime": "Jobs that ended before this are left alone. The first run fixes it.",
    "sites": "The first rule that holds names the site; by partition: only_if: {key: Partition, matches: ^genoa}.",
    "meta": "Labels beside user_id and group_id, from sacct's columns.",
    "components": "Memory in MiB, TotalCPU in seconds, MaxRSS in bytes.",
    "sacct": "There is no accounting database.",
}


def detect(host: Host) -> Proposal | None:
    """Propose the kind ``slurm`` if the cluster has an accounting database, which sacct reads.

    Without an answer of scontrol (slurmctld is down, or this host may ask slurmdbd alone), sacct is asked for a job.
    """
    settings = _settings(host)
    if settings and "slurmdbd" not in settings.get("AccountingStorageType", ""):
        return None
    if host.run(["sacct", "--version"] if settings else ["sacct", "--noheader", "--jobs=1"]) is None:
        return None
    questions = (
        Question("score", f"{_SCORE} of a core; by partition: genoa=12.4,rome=9.8 (nothing: none)"),
        Question(
            "memory_peaks", "Peaks of memory (MaxRSS)? They are read with the CPU time, from the steps of jobs", "no"
        ),
    )
    found = "Slurm: sacct answers, although scontrol does not"
    if settings:
        found = f"Slurm cluster {settings.get('ClusterName', '?')}, with slurmdbd"
    has_gpus = "gpu" in (host.run(["sinfo", "--noheader", "--format=%G"]) or "")
    return Proposal(found, partial(_options, has_gpus=has_gpus), questions, _COMMENTS)


def detect_epilog(host: Host) -> Proposal | None:
    """Propose the kind ``slurm_epilog`` if the cluster has no accounting database."""
    settings = _settings(host)
    if not settings or "slurmdbd" in settings.get("AccountingStorageType", ""):
        return None
    found = f"Slurm cluster {settings.get('ClusterName', '?')}, without slurmdbd: set EpilogSlurmctld=auditord-epilog"
    return Proposal(found, lambda answers: {"sites": [{"name": answers["site"]}], "sacct": []}, (), _COMMENTS)


def _settings(host: Host) -> Mapping[str, str]:
    return dict(_SETTING.findall(host.run(["scontrol", "show", "config"]) or ""))


def _options(answers: Answers, *, has_gpus: bool) -> Mapping[str, Any]:
    memory = {"name": "Memory", "key": "AllocTRES", "sub_key": "mem", "key_type": "IntegerMega", "optional": True}
    peaks = {"name": "MaxRSS", "key": "MaxRSS", "key_type": "Size", "optional": True}
    gpus = {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpu", "optional": True}
    return {
        "earliest_datetime": f"{answers['since']}T00:00:00Z",
        "sites": [{"name": answers["site"]}],
        "meta": [
            {"name": "account", "key": "Account", "key_type": "String"},
            {"name": "partition", "key": "Partition", "key_type": "String"},
        ],
        "components": [
            {"name": "Cores", "key": "NCPUS", **_scores(answers["score"])},
            memory,
            {"name": "TotalCPU", "key": "TotalCPU", "key_type": "Time", "optional": True},
            *([peaks] if _is_yes(answers["memory_peaks"]) else []),
            *([gpus] if has_gpus else []),
        ],
    }


def _is_yes(answer: str) -> bool:
    if answer.lower() not in {"yes", "no", "true", "false", "y", "n"}:
        raise ValueError(f"memory_peaks: '{answer}' is neither yes nor no")
    return answer.lower() in {"yes", "true", "y"}


def _scores(answer: str) -> Mapping[str, Any]:
    """Read ``12.4`` or ``genoa=12.4,rome=9.8``. A number alone applies to all other partitions."""
    rules: list[Mapping[str, Any]] = []
    parts = sorted((part.strip() for part in answer.split(",") if part.strip()), key=lambda part: "=" not in part)
    for part in parts:
        partition, _, number = part.rpartition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", number):
            raise ValueError(f"score: '{part}' is no number, and no partition=number")
        condition = {"only_if": {"key": "Partition", "matches": f"^{re.escape(partition)}$"}} if partition else {}
        rules.append({"name": _SCORE, "value": float(number), **condition})
    return {"scores": rules} if rules else {}
