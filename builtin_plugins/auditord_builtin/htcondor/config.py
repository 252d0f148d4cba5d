"""The options of an HTCondor collector. Options that mean the same as AUDITOR's have AUDITOR's names.

They can be imported from a configuration file of AUDITOR's collector, or proposed for the HTCondor on this host.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AwareDatetime, Field, field_validator, model_validator

from auditord_builtin.htcondor.ads import make_request_column
from auditord_hookspecs import Duration, ImportedConfig, RunConfig
from auditord_hookspecs.config import NonNegativeDuration, Words
from auditord_hookspecs.config_import import OWN_LOG, OWN_STORE, ConfigImport, Document
from auditord_hookspecs.mapping import (
    ComponentRule,
    KeyType,
    MetaRule,
    SiteRule,
    auditor_preset,
    columns,
    remarks_on_fractions,
    remarks_on_sites,
)
from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

CPU_TIME: Final = "RemoteUserCpu+RemoteSysCpu"
CPU_TIME_OF_ALL_RUNS: Final = "CumulativeRemoteUserCpu+CumulativeRemoteSysCpu"
"""The other CPU time leaves out runs that were evicted, so it does not belong to the wall-clock time of all runs."""

AUDITOR_COMPONENTS = tuple(
    ComponentRule.model_validate(rule)
    for rule in (
        {
            "name": "Cores",
            "key": "CpusProvisioned",
            "scores": [
                {"name": "HEPSPEC", "key": "MachineAttrApelSpecs0.HEPSPEC"},
                {"name": "HEPscore23", "key": "MachineAttrApelSpecs0.HEPscore23"},
            ],
        },
        {"name": "Memory", "key": "MemoryProvisioned"},
        {"name": "TotalCPU", "key": CPU_TIME, "key_type": KeyType.TIME},
    )
)
"""The components in the template of AUDITOR's collector, with Memory in MiB and TotalCPU in whole seconds."""

_DEFAULT_COMPONENTS = (
    *AUDITOR_COMPONENTS[:-1],
    AUDITOR_COMPONENTS[-1].model_copy(update={"optional": True}),
    ComponentRule(name="GPU", key="GPUsProvisioned", optional=True),
)

_REQUESTED: Final = {
    "cpusprovisioned": "RequestCpus",
    "memoryprovisioned": "RequestMemory",
    "gpusprovisioned": "RequestGPUs",
}

_CPU_TIME = re.compile(r"Remote(User|Sys)Cpu")
_MEMORY = re.compile(r"ResidentSetSize|MemoryUsage|ProportionalSetSize")

_DEFAULT_META = tuple(
    MetaRule.model_validate(rule)
    for rule in (
        {"name": "user", "key": "Owner", "key_type": KeyType.STRING},
        {"name": "group", "key": "VoName", "key_type": KeyType.STRING},
        {"name": "submithost", "key": "GlobalJobId", "key_type": KeyType.STRING, "matches": r"^(.*)#\d+\.\d+#\d+$"},
    )
)


Components = Annotated[tuple[ComponentRule, ...], auditor_preset(AUDITOR_COMPONENTS)]
Output = Literal["separated", "json", "jsonl"]


START_KEYS: Final = ("LastMatchTime", "JobCurrentStartDate", "JobStartDate")
STOP_KEYS: Final = ("CompletionDate", "EpochWriteDate", "EnteredCurrentStatus")
"""The attributes with a job's start and end; the first one that is defined and not 0 is used."""


class HTCondorConfig(RunConfig):
    """Finished jobs of HTCondor access points or HTCondor-CEs, read from their history."""

    record_prefix: str = Field(
        default="htcondor", min_length=1, description="A record's id is <record_prefix>-<GlobalJobId>."
    )
    earliest_datetime: AwareDatetime | None = Field(
        default=None, description="The first run accounts for jobs that ended since this time; default: now."
    )
    schedd_names: tuple[str, ...] = Field(default=(), description="The schedds to query; empty: the local history.")
    pool: str | None = Field(default=None, description="The schedds' central manager.")
    condor_history: Words = Field(
        default=("condor_history",),
        min_length=1,
        description="The program (condor_ce_history for a CE), or a list of it and its first arguments.",
    )
    through: tuple[str, ...] = Field(
        default=(), description="A command that runs it elsewhere, such as [ssh, ap1] or [chroot, DIR]."
    )
    output: Output = Field(
        default="separated",
        description="separated works with every version of HTCondor. With json or jsonl, keys that are expressions "
        "need pip install 'auditord[htcondor]'.",
    )
    epochs: bool = Field(default=False, description="Make a record for every run of a job, not only for the last one.")
    history_file: str | None = Field(default=None, description="One file that condor_history reads instead (-file).")
    history_paths: tuple[Path, ...] = Field(
        default=(), description="History files to read without condor_history; rotated files (PATH.*) are found."
    )
    per_job_history_dir: Path | None = Field(
        default=None, description="HTCondor's PER_JOB_HISTORY_DIR; files are deleted once their records are stored."
    )
    constraint: str | None = Field(
        default=None, description="A ClassAd expression; only jobs for which it is true make records."
    )
    job_status: tuple[int, ...] = Field(default=(), description="3 removed, 4 completed; empty: all.")
    runtime: Literal["last_run", "all_runs", "auditor"] = Field(
        default="last_run",
        description="The time that counts: that with a slot, in the last run or in all_runs; auditor: from start to "
        "stop, the default with components: auditor.",
    )
    user_keys: tuple[str, ...] = Field(
        default=("Owner",), description="Attributes with the user_id; the first defined one is used."
    )
    group_keys: tuple[str, ...] = Field(
        default=("VoName", "x509UserProxyVOName", "AcctGroup"),
        description="Attributes with the group_id; the first defined one is used.",
    )
    sites: tuple[SiteRule, ...] = Field(default=(SiteRule(name="NOT_CONFIGURED"),), min_length=1)
    site_labels: tuple[str, ...] = Field(
        default=("site_id", "site"), description="The labels for the site; AUDITOR's for HTCondor is site."
    )
    meta: tuple[MetaRule, ...] = Field(default=_DEFAULT_META, description="Default: user, group and submithost.")
    components: Components = Field(
        default=_DEFAULT_COMPONENTS,
        description="Default: Cores, Memory (MiB), where known TotalCPU (s) and GPU. auditor: without GPU.",
    )
    query_timeout: Duration = Field(
        default=timedelta(minutes=5), description="Kill condor_history after this long, per schedd."
    )
    overlap: NonNegativeDuration = Field(
        default=timedelta(days=1),
        description="A limited answer is complete from a date on if its oldest jobs ended at least this long before "
        "that date.",
    )

    @cached_property
    def cpu_times(self) -> frozenset[str]:
        """The keys of CPU times whose components are all optional, so that records may leave them out."""
        rules = [rule for rule in self.components if rule.key is not None and _CPU_TIME.search(rule.key)]
        return frozenset(rule.key or "" for rule in rules) - {rule.key for rule in rules if not rule.optional}

    @cached_property
    def never_zero(self) -> frozenset[str]:
        """The names of components for which zero means that the job was never measured, since every job uses memory."""
        return frozenset(rule.name for rule in self.components if _MEMORY.search(rule.key or ""))

    @cached_property
    def requests(self) -> Mapping[str, str]:
        """The columns with requested amounts, by the keys of the rules for provisioned ones."""
        keys = [rule.key for rule in self.components if rule.key is not None and rule.key.lower() in _REQUESTED]
        return {key: make_request_column(key, _REQUESTED[key.lower()]) for key in keys}

    @property
    def columns(self) -> list[str]:
        """The attributes and expressions that the rules use."""
        wanted = (*START_KEYS, *STOP_KEYS, *self.user_keys, *self.group_keys)
        return list(dict.fromkeys((*wanted, *columns(self.sites, self.meta, self.components))))

    @model_validator(mode="before")
    @classmethod
    def _match_runtime(cls, given: object) -> object:
        """Choose AUDITOR's formula with its components, and with ``all_runs`` the CPU times of all runs."""
        if not isinstance(given, Mapping):
            return given
        chosen = dict(cast("Mapping[str, object]", given))
        is_auditors = chosen.get("components") == "auditor"
        if is_auditors:
            chosen.setdefault("runtime", "auditor")
        if chosen.get("runtime") == "all_runs" and (is_auditors or "components" not in chosen):
            chosen["components"] = tuple(
                rule.model_copy(update={"key": CPU_TIME_OF_ALL_RUNS}) if rule.key == CPU_TIME else rule
                for rule in (AUDITOR_COMPONENTS if is_auditors else _DEFAULT_COMPONENTS)
            )
        return chosen

    @field_validator("schedd_names")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names) or not all(names) or any(name.startswith("-") for name in names):
            raise ValueError("give the name of each schedd once")
        return names

    @model_validator(mode="after")
    def _columns_are_valid(self) -> "HTCondorConfig":
        for column in (*self.columns, self.constraint or "true"):
            if column.startswith("-") or not column.isprintable():
                raise ValueError(f"{column!r} cannot be an attribute or expression; put it into parentheses?")
        return self

    @model_validator(mode="after")
    def _one_time(self) -> "HTCondorConfig":
        if self.epochs and self.runtime == "all_runs":
            raise ValueError("epochs makes a record of each run, but runtime: all_runs sums up all runs: keep one")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> "HTCondorConfig":
        uses_history_program = bool(self.schedd_names or self.pool or self.history_file or self.epochs)
        if [uses_history_program, bool(self.history_paths), self.per_job_history_dir is not None].count(True) > 1:
            raise ValueError(
                "keep one: schedd_names (with pool, history_file, epochs), history_paths or per_job_history_dir"
            )
        return self


_FRACTIONS: Final = frozenset({"CpusUsage", "GPUsAverageUsage"})
_APEL_SPECS: Final = re.compile(r"MachineAttrApelSpecs\d+")
_APEL_PATTERN: Final = re.compile(r"(\w+)\\D\+\(\\d\+\(\\\.\\d\+\)\?\)")
"""The expression in the template of AUDITOR's collector: ``HEPSPEC\\D+(\\d+(\\.\\d+)?)``."""


def remarks(config: HTCondorConfig) -> list[str]:
    """Return remarks on CPU times of other runs than those that count, benchmarks from text, and rounding."""
    found = [*remarks_on_sites(config.sites), *remarks_on_fractions(config.components, _FRACTIONS)]
    unfit, fit = (CPU_TIME, CPU_TIME_OF_ALL_RUNS) if config.runtime == "all_runs" else (CPU_TIME_OF_ALL_RUNS, CPU_TIME)
    names = set(unfit.split("+"))
    for rule in config.components:
        if rule.key is not None and names.intersection(re.findall(r"\w+", rule.key)):
            found.append(
                f"component {rule.name}: {rule.key} is not the CPU time of the runs that count with runtime: "
                f"{config.runtime}; use {fit}"
            )
        found += [
            f"score {score.name}: matches searches the text of an ad, and may find the number of another name; use "
            f"key: {score.key}.{score.name} without matches"
            for score in rule.scores
            if score.matches is not None and _APEL_SPECS.fullmatch(score.key or "")
        ]
    return found


_SPECIFIC: Final = frozenset({"schedd_names", "query_type", "state_db", "job_status", "history_file"})
_DROPPED: Final = {
    "addr": OWN_STORE,
    "port": "see addr",
    "timeout": "see addr; how long condor_history may take is query_timeout",
    "tls_config": "see addr",
    "state_db": "the daemon's state_dir keeps the position in each schedd",
    "query_type": "no shell runs the program: remove backslashes that were meant for a shell",
    "log_file": OWN_LOG,
    "one_shot": "auditord collect runs a collector once; AUDITOR ignored this in the file",
    "class_ads": "AUDITOR refuses it",
}
_KEPT: Final = ("record_prefix", "schedd_names", "pool", "job_status", "constraint", "history_file")
_TAKEN: Final = {*_KEPT, "interval", "earliest_datetime", "meta", "components"}
_ENTRY: Final = frozenset({"name", "key", "factor", "matches", "only_if"})
_DURATION: Final = re.compile("cpu|time|clock|wall", re.IGNORECASE)
_SITE: Final = "site"
_RUNTIME: Final = (
    "AUDITOR's formula, by which a job on hold counts until its removal; without this line, only time with a slot does"
)
_OWN_LABELS: Final = frozenset({"site_id", "user_id", "group_id"})


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a configuration file of AUDITOR's HTCondor collector. Return None for any other file."""
    if not set(document) & _SPECIFIC or "sacct_frequency" in document or "prometheus_addr" in document:
        return None
    result = ConfigImport(document, "collectors.htcondor")
    result.put("kind", "htcondor")
    for name in _KEPT:
        if document.get(name):
            result.put(name, document[name])
    result.put("runtime", "auditor", _RUNTIME)
    result.put("interval", f"{document.get('interval', 900)}s")
    remark = "jobs that ended since this time, as with AUDITOR, but only in the first run of this instance"
    aware = re.search(r"(Z|[+-]\d\d:?\d\d)$", str(document.get("earliest_datetime")).strip())
    result.put_earliest("jobs that leave the queue", remark if aware else f"{remark}; was local time, is UTC now")
    _import_meta(result)
    if "components" in document:
        remark = "a job without one of the amounts goes to quarantine (AUDITOR dropped it); unknown scores are "
        remark += "left out (AUDITOR: 0)"
        result.put("components", [_component(result, entry) for entry in document["components"]], remark)
    return result.finish(_TAKEN, _DROPPED)


def _import_meta(result: ConfigImport) -> None:
    given = result.section("meta")
    rules: list[dict[str, Any]] = []  # Any: YAML
    for label, entries in given.items():
        listed: Sequence[Document] = [entries] if "key" in entries or "name" in entries else entries
        if label == _SITE:
            remark = "the name of the site, as site (AUDITOR's label) and site_id"
            result.put("sites", [_site(result, entry) for entry in listed], remark)
        elif label == "site_id":
            result.put("sites", [_site(result, entry) for entry in listed])
        elif label in _OWN_LABELS:  # the collector sets these itself, from plain attributes
            simple = [str(entry["key"]) for entry in listed if set(entry) <= {"name", "key"} and "key" in entry]
            if simple:
                result.put("user_keys" if label == "user_id" else "group_keys", simple)
            if len(simple) < len(listed):
                text = "the collector sets this label, only from attributes: see user_keys and group_keys"
                result.dropped[f"meta.{label}"] = text
        else:
            rules += [_label(result, label, entry, number > 0) for number, entry in enumerate(listed)]
    result.put(
        "meta", rules, "in addition to these, records have user_id, group_id (see user_keys, group_keys) and site_id"
    )


def _site(result: ConfigImport, entry: Document) -> dict[str, Any]:  # Any: YAML
    result.drop(entry, _ENTRY, place="meta.site.")
    conditions = _conditions(entry)
    if "key" not in entry:
        constant = {"name": str(entry.get("factor", entry.get("name")))}
        return {**constant, **_only_if(conditions)}
    if _cuts_out(entry) or "matches" not in entry:
        matches = {"matches": entry["matches"]} if "matches" in entry else {}
        return {"key": entry["key"], **matches, **_only_if(conditions)}
    return {"name": entry["name"], **_only_if([_make_condition(entry), *conditions])}


def _label(result: ConfigImport, label: str, entry: Document, append: bool) -> dict[str, Any]:  # noqa: FBT001 a field
    result.drop(entry, _ENTRY, place=f"meta.{label}.")
    appended = {"append": True} if append else {}
    conditions = _conditions(entry)
    if "key" not in entry:
        return {"name": label, "value": str(entry.get("factor", entry.get("name"))), **_only_if(conditions), **appended}
    if _cuts_out(entry) or "matches" not in entry:
        matches = {"matches": entry["matches"]} if "matches" in entry else {}
        read = {"key": entry["key"], "key_type": "String", **matches}
        return {"name": label, **read, **_only_if(conditions), **appended}
    return {"name": label, "value": entry["name"], **_only_if([_make_condition(entry), *conditions]), **appended}


def _component(result: ConfigImport, entry: Document) -> dict[str, Any]:  # Any: YAML
    result.drop(entry, _ENTRY | {"scores"}, place="components.")
    scores: list[Document] = []
    for score in entry.get("scores") or ():
        result.drop(score, _ENTRY, place="components.scores.")
        source = {name: score[name] for name in ("key", "matches") if name in score}
        benchmark = _APEL_PATTERN.fullmatch(str(score.get("matches", "")))
        if benchmark is not None and _APEL_SPECS.fullmatch(str(score.get("key", ""))):
            source = {"key": f"{score['key']}.{benchmark[1]}"}
        amount = source or {"value": score["factor"]}
        scores.append({"name": score["name"], **amount, **_only_if(_conditions(score))})
    made = {"name": entry["name"], **_only_if(_conditions(entry)), **({"scores": scores} if scores else {})}
    if "key" not in entry:
        return {**made, "value": int(entry["factor"])}
    matches = {"matches": entry["matches"]} if "matches" in entry else {}
    # Truncate times to whole seconds, as AUDITOR does with every amount. Other amounts are whole numbers.
    kind = {"key_type": "Time"} if _DURATION.search(str(entry["key"])) else {}
    return {**made, "key": entry["key"], **matches, **kind}


def _cuts_out(entry: Document) -> bool:
    return "matches" in entry and re.compile(entry["matches"]).groups > 0


def _make_condition(entry: Document) -> Document:
    """Return a condition. As in AUDITOR, the entry's name is used if its expression, without a group, matches."""
    return {"key": entry["key"], "matches": entry["matches"]}


def _conditions(entry: Document) -> list[Document]:
    return [entry["only_if"]] if entry.get("only_if") else []


def _only_if(conditions: Sequence[Document]) -> dict[str, Any]:  # Any: YAML
    return {"only_if": conditions[0] if len(conditions) == 1 else list(conditions)} if conditions else {}


_ELEMENT: Final = "condor_ce_history"
_NAMES: Final = {_ELEMENT: "HTCondor-CE", "condor_history": "HTCondor"}
_COMMENTS: Final = {
    "condor_history": "Of a compute element.",
    "earliest_datetime": "Jobs that ended before this are ignored. The history must reach back to it in the first run.",
    "sites": "The first matching rule names the site.",
    "meta": "Labels that APEL needs for grid jobs, beside user_id and group_id.",
}
_GRID_META: Final = (
    {"name": "voms", "key": "x509UserProxyFirstFQAN", "key_type": "String"},
    {"name": "user_dn", "key": "x509userproxysubject", "key_type": "String"},
    {"name": "submit_host", "key": "GlobalJobId", "key_type": "String", "matches": r"^(.*)#\d+\.\d+#\d+$"},
)


def detect(host: Host) -> Proposal | None:
    """Propose a schedd, a compute element, or a choice of both, if this host can read its history."""
    programs = [name for name in _NAMES if host.run([name, "-limit", "1", "-af", "GlobalJobId"]) is not None]
    if not programs:
        return None
    both = len(programs) > 1
    question = Question("htcondor_history", f"Jobs of this history: {' or '.join(programs)}", programs[0])
    return Proposal(
        " and ".join(f"{_NAMES[name]}, by {name}" for name in programs),
        partial(_options, None if both else programs[0]),
        (question,) if both else (),
        _COMMENTS,
        gateway=programs == [_ELEMENT],
    )


def _options(only: str | None, answers: Answers) -> Mapping[str, Any]:
    program = only or answers["htcondor_history"]
    if program not in _NAMES:
        raise ValueError(f"htcondor_history: '{program}' is neither condor_history nor {_ELEMENT}")
    element = {"condor_history": program, "meta": list(_GRID_META)} if program == _ELEMENT else {}
    return {
        **element,
        "earliest_datetime": f"{answers['since']}T00:00:00Z",
        "sites": [{"name": answers["site"]}],
    }
