"""Slurm on this host, and a configuration that fits it, for ``auditord init``."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

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
    """A cluster with an accounting database, which sacct reads."""
    settings = _settings(host)
    if "slurmdbd" not in settings.get("AccountingStorageType", "") or host.run(["sacct", "--version"]) is None:
        return None
    questions = (
        Question("score", f"{_SCORE} of a core; by partition: genoa=12.4,rome=9.8 (nothing: none)"),
        Question(
            "memory_peaks", "Peaks of memory (MaxRSS)? They are read with the CPU time, from the steps of jobs", "no"
        ),
    )
    found = f"Slurm cluster {settings.get('ClusterName', '?')}, with slurmdbd"
    has_gpus = "gpu" in (host.run(["sinfo", "--noheader", "--format=%G"]) or "")
    return Proposal(found, partial(_options, has_gpus=has_gpus), questions, _COMMENTS)


def detect_epilog(host: Host) -> Proposal | None:
    """A cluster without an accounting database: its jobs are noted at their ends."""
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
    """The scores of ``12.4`` or ``genoa=12.4,rome=9.8``; a number alone counts for all other partitions."""
    rules: list[Mapping[str, Any]] = []
    parts = sorted((part.strip() for part in answer.split(",") if part.strip()), key=lambda part: "=" not in part)
    for part in parts:
        partition, _, number = part.rpartition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", number):
            raise ValueError(f"score: '{part}' is no number, and no partition=number")
        condition = {"only_if": {"key": "Partition", "matches": f"^{re.escape(partition)}$"}} if partition else {}
        rules.append({"name": _SCORE, "value": float(number), **condition})
    return {"scores": rules} if rules else {}
