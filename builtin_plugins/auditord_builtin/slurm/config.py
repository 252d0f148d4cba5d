"""The options of a Slurm collector. Options that mean the same as AUDITOR's have AUDITOR's names.

They can be imported from a configuration file of AUDITOR's collector, or proposed for the Slurm on this host.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Field, field_validator, model_validator

from auditord_builtin.slurm.runs import ENDED, FIRST_COLUMN, LAST_COLUMN, full_name
from auditord_hookspecs import Duration, ImportedConfig, RunConfig, Section
from auditord_hookspecs.config import NonNegativeDuration, Words
from auditord_hookspecs.config_import import OWN_LOG, OWN_QUEUE, OWN_STORE, ConfigImport, Document
from auditord_hookspecs.mapping import ComponentRule, KeyType, MetaRule, SiteRule, auditor_preset, columns
from auditord_hookspecs.proposals import Answers, Host, NoAnswer, Proposal, Question

MergePolicy = Literal["alloc", "batch", "energy", "max", "sum"]

CPU_TIME: Final = "TotalCPU"
MEASURED: Final = "TRESUsageInTot"
"""The column with values measured while a step ran, since Slurm 18.08."""

CORES = ComponentRule(name="Cores", key="NCPUS")

MEMORY = ComponentRule(name="Memory", key="AllocTRES", sub_key="mem", key_type=KeyType.INTEGER_MEGA, optional=True)
GPU = ComponentRule(name="GPU", key="AllocTRES", sub_key="gres/gpu", optional=True)

DEFAULT_COMPONENTS = (
    CORES,
    MEMORY,
    ComponentRule(name="TotalCPU", key=CPU_TIME, key_type=KeyType.TIME, optional=True),
    ComponentRule(name="MaxRSS", key="MaxRSS", key_type=KeyType.SIZE, optional=True),
    GPU,
)

ID_COLUMNS: Final = (
    *("Cluster", "State", "Submit", "Start", "End", "User", "UID", "Group", "GID", "Partition", "Account", "NodeList"),
)
"""The columns that every conversion needs, besides the job's ids and the configured columns."""

_DEFAULTS: Final[Mapping[str, MergePolicy]] = {
    **dict.fromkeys(("MaxRSS", "MaxVMSize", "MaxPages", "MaxDiskRead", "MaxDiskWrite"), "max"),
    **dict.fromkeys(("AveRSS", "AveVMSize", "TRESUsageInMax", "TRESUsageOutMax", "TRESUsageInAve"), "max"),
    **dict.fromkeys((MEASURED, "TRESUsageOutTot", CPU_TIME), "sum"),
    **dict.fromkeys(("ConsumedEnergy", "ConsumedEnergyRaw"), "energy"),
    **dict.fromkeys(("AveCPU", "MinCPU", "AveDiskRead", "AveDiskWrite", "AvePages", "NTasks", "AveCPUFreq"), "batch"),
}
_FOR_REQMEM: Final = ("NNodes", "NCPUS")

_NEVER_ZERO: Final = frozenset({"MaxRSS", "AveRSS", "MaxVMSize", "AveVMSize", "ConsumedEnergy", "ConsumedEnergyRaw"})
"""Columns in which zero means that nothing was measured, since every job uses memory and energy."""

_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
CLUSTER = "{cluster}"
"""The placeholder for the cluster's name in ``record_prefix``."""


def policy_of(column: str, chosen: Mapping[str, MergePolicy]) -> MergePolicy:
    """Return the policy that merges a column's values of several rows."""
    return chosen.get(column) or _DEFAULTS.get(column, "alloc")


_CPU_FIGURES: Final = frozenset({"UserCPU", "SystemCPU", "AveCPU", "MinCPU"})


Components = Annotated[tuple[ComponentRule, ...], auditor_preset((CORES,))]


class JobFilter(Section):
    """Selects the jobs that become records. An empty list selects all. Not passed to sacct, so the rest is counted."""

    status: Annotated[tuple[str, ...], AfterValidator(lambda states: tuple(map(full_name, states)))] = Field(
        default=(), description="States, long (completed) or short (CD). Empty: every final state."
    )
    partition: tuple[str, ...] = Field(default=(), description="In any case.")
    user: tuple[str, ...] = Field(default=(), description="Names or numbers.")
    group: tuple[str, ...] = Field(default=(), description="Names or numbers.")
    account: tuple[str, ...] = Field(default=(), description="In any case, since Slurm stores them in lower case.")


class JobsConfig(RunConfig):
    """The options that ``slurm`` and ``slurm_epilog`` share.

    Derived values are cached, since options never change.
    """

    record_prefix: str = Field(
        default="slurm",
        min_length=1,
        description="A record's id is <record_prefix>-<JobID>; {cluster} is replaced by the cluster's name.",
    )
    same_source_as: str | None = Field(
        default=None, description="Another instance that reads the same jobs under the same ids."
    )
    sites: tuple[SiteRule, ...] = Field(default=(SiteRule(name="NOT_CONFIGURED"),), min_length=1)
    meta: tuple[MetaRule, ...] = ()
    components: Components = Field(
        default=DEFAULT_COMPONENTS,
        description="Default: Cores; where known Memory (MiB), TotalCPU (s), MaxRSS (B), GPU. auditor: Cores alone.",
    )
    merge: Mapping[str, MergePolicy] = Field(
        default={}, description="How to combine the steps' values of a column: alloc, batch, energy, max or sum."
    )
    job_filter: JobFilter = JobFilter()
    sacct: Words = Field(
        default=("sacct",), min_length=1, description="The program, or a list of the program and its first arguments."
    )
    through: tuple[str, ...] = Field(
        default=(), description="A command that runs it elsewhere, such as [ssh, head1] or [chroot, DIR]."
    )
    sacct_states: tuple[str, ...] = Field(
        default=tuple(ENDED), description="The states to query; shorten the list if an old sacct refuses one."
    )
    sacct_timeout: Duration = Field(
        default=timedelta(minutes=5),
        description="Kill sacct after this long without output, and query a shorter period.",
    )
    sacct_max_output: int = Field(
        default=256 * 1024**2,
        gt=0,
        description="Kill sacct after this many bytes of output, and query a shorter period.",
    )
    lag: NonNegativeDuration = Field(
        default=timedelta(minutes=1),
        description="How long ago a job must have ended, so that its last step is known, too.",
    )
    slice: Duration = Field(
        default=timedelta(hours=6),
        description="The initial period of one sacct call; it grows (up to 32 days) while jobs are few, and shrinks "
        "when sacct_timeout or sacct_max_output is hit.",
    )

    runtime: Literal["elapsed", "wall"] = Field(
        default="wall",
        description="wall: from start to end, as in AUDITOR; elapsed: minus the time in which the job was suspended, "
        "as in sreport: the record ends that much earlier.",
    )
    patience: Duration = Field(
        default=timedelta(hours=6),
        description="A job without a known end, or unknown to Slurm, goes to quarantine after this.",
    )

    @cached_property
    def cluster_options(self) -> Sequence[str]:
        """The options of sacct that select clusters other than the local one."""
        return ()

    @cached_property
    def id_column(self) -> str:
        """The column that a record's id is made from."""
        return FIRST_COLUMN

    @cached_property
    def all_steps(self) -> bool:
        """True to query steps even if no rule needs them. A step has the start that its job may lack."""
        return False

    @cached_property
    def requeued_keep_their_id(self) -> bool:
        """True if a requeued run keeps the plain id, although the job's next run may need it."""
        return False

    @cached_property
    def memory(self) -> timedelta:
        """The time after its end within which a run can be read again."""
        return timedelta(0)

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns that the rules and ``runtime`` use."""
        counted = ["Elapsed"] if self.runtime == "elapsed" else []
        return [*columns(self.sites, self.meta, self.components), *counted]

    @cached_property
    def sums_cpu_time(self) -> bool:
        """True if CPU time is used and summed over the steps."""
        return CPU_TIME in self.columns and policy_of(CPU_TIME, self.merge) == "sum"

    @cached_property
    def needed_columns(self) -> Sequence[str]:
        """``columns`` and those needed to interpret them."""
        of_memory = _FOR_REQMEM if "ReqMem" in self.columns else ()
        return list(dict.fromkeys((*self.columns, *of_memory)))

    @cached_property
    def wanted_columns(self) -> Sequence[str]:
        """The columns to query, each once, between the two ids that delimit a row."""
        of_cpu_time = ("NCPUS", MEASURED) if self.sums_cpu_time else ()
        wanted = dict.fromkeys((*ID_COLUMNS, *self.needed_columns, *of_cpu_time))
        return [FIRST_COLUMN, *(column for column in wanted if column not in {FIRST_COLUMN, LAST_COLUMN}), LAST_COLUMN]

    @cached_property
    def merged_columns(self) -> Sequence[tuple[str, MergePolicy]]:
        """The columns that are computed from the steps, with their policies."""
        used = dict.fromkeys((*ID_COLUMNS, *self.needed_columns))
        policies: Mapping[str, MergePolicy] = {column: policy_of(column, self.merge) for column in used}
        return [each for each in policies.items() if each[1] != "alloc"]

    @cached_property
    def never_zero(self) -> frozenset[str]:
        """The names of components for which zero means that nothing was measured."""
        return frozenset(
            rule.name
            for rule in self.components
            if rule.key in _NEVER_ZERO
            or rule.sub_key == "energy"
            or ((rule.key or "").startswith("TRESUsage") and rule.sub_key in {"mem", "vmem"})
        )

    @cached_property
    def cpu_figures(self) -> frozenset[str]:
        """The names of optional components with a CPU time other than TotalCPU, if zeros can be told from unknowns."""
        if MEASURED not in self.columns:
            return frozenset()
        return frozenset(
            rule.name
            for rule in self.components
            if rule.optional
            and (rule.key in _CPU_FIGURES or ((rule.key or "").startswith("TRESUsage") and rule.sub_key == "cpu"))
        )

    @cached_property
    def cpu_time_may_be_missing(self) -> bool:
        """True if records may leave out the CPU time when it was not measured."""
        return self.sums_cpu_time and all(rule.optional for rule in self.components if rule.key == CPU_TIME)

    @cached_property
    def reads_steps(self) -> bool:
        """True if sacct is asked for steps, which multiplies its output."""
        return self.all_steps or any(policy_of(column, self.merge) != "alloc" for column in self.columns)

    @field_validator("record_prefix")
    @classmethod
    def _known_placeholders(cls, prefix: str) -> str:
        if "{" in (rest := prefix.replace(CLUSTER, "")) or "}" in rest:
            raise ValueError("may contain {cluster} and no other placeholder")
        return prefix

    @field_validator("slice")
    @classmethod
    def _at_least_a_minute(cls, period: timedelta) -> timedelta:
        if period < timedelta(minutes=1):
            raise ValueError("must be at least 1m")
        return period

    @model_validator(mode="after")
    def _columns_are_valid(self) -> "JobsConfig":
        for column in (*self.columns, *self.merge):
            if _COLUMN.fullmatch(column) is None:
                raise ValueError(f"{column!r} cannot be a field of sacct; see sacct --helpformat")
        return self

    def prefix_of(self, cluster: str) -> str:
        """Return the prefix of record ids for a cluster's jobs."""
        return self.record_prefix.replace(CLUSTER, cluster)


class SlurmConfig(JobsConfig):
    """Finished jobs of one or more Slurm clusters, read with sacct."""

    earliest_datetime: AwareDatetime | None = Field(
        default=None, description="The first run accounts for jobs that ended since this time; default: now."
    )
    open_records: bool = Field(
        default=False, description="Also make open records of running jobs, completed at their end."
    )
    clusters: tuple[str, ...] | Literal["all"] = Field(
        default=(), description="Clusters to read instead of the local one."
    )
    overlap: NonNegativeDuration = Field(
        default=timedelta(hours=1), description="How far each run looks back for jobs that reached the database late."
    )
    rescan_every: NonNegativeDuration = Field(
        default=timedelta(days=1), description="How often to rescan a longer period."
    )
    rescan_window: NonNegativeDuration = Field(
        default=timedelta(days=7),
        description="How far back a rescan looks from the previous one; 0s: never rescan.",
    )

    @cached_property
    def cluster_options(self) -> Sequence[str]:
        """The options of sacct that select clusters other than the local one."""
        if self.clusters == "all":
            return ("--allclusters",)
        return (f"--clusters={','.join(self.clusters)}",) if self.clusters else ()

    @cached_property
    def requeued_keep_their_id(self) -> bool:
        """True with open records: they have the plain id, so the run must keep it even if the job is requeued."""
        return self.open_records

    @cached_property
    def memory(self) -> timedelta:
        """The time after its end within which a run can be read again, by an overlap or a rescan."""
        return self.rescan_window + self.rescan_every + self.overlap

    @cached_property
    def several_clusters(self) -> bool:
        """True if several clusters are read, so that job ids alone are ambiguous."""
        return self.clusters == "all" or len(self.clusters) > 1

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "SlurmConfig":
        if self.several_clusters and CLUSTER not in self.record_prefix:
            raise ValueError("clusters: job ids repeat between clusters, so record_prefix must hold {cluster}")
        return self


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
_EARLIEST: Final = "jobs that ended since this time, as with AUDITOR, but only in the first run of this instance"


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a configuration file of AUDITOR's Slurm collector. Return None for any other file."""
    if not set(document) <= {*_TAKEN, *_DROPPED} or not set(document) & _SPECIFIC:
        return None
    result = ConfigImport(document, "collectors.slurm")
    result.put("kind", "slurm")
    result.put("record_prefix", document.get("record_prefix", "slurm"))
    result.put("interval", f"{document.get('sacct_frequency', 10)}s", _FREQUENCY)
    result.put_earliest("jobs that end", _EARLIEST)
    given = result.section("job_filter")
    chosen = _drop_ignored(result, "job_filter", given)
    states: Sequence[str] = chosen.get("status", ["completed"])
    remark = "AUDITOR's default; without it failed, cancelled and timed-out jobs are accounted for, too"
    if "status" in given:
        remark = "an empty list means every state in which a job is over" if not states else ""
    result.put("job_filter", {**chosen, "status": list(states)}, remark)
    for name in ("sites", "meta"):
        if name in document:
            rules = [_drop_ignored(result, name, rule) for rule in document[name]]
            result.put(name, rules, _META if name == "meta" else "")
    if (components := document.get("components")) is None:
        result.put("components", "auditor", "Cores alone, as AUDITOR's default; leave it out for memory, CPU and GPUs")
    else:
        rules = [_drop_ignored(result, "components", rule) for rule in components]
        remarks = ["a job without a mandatory value goes to quarantine (AUDITOR dropped it)"]
        if any(rule.get("key_type") == "IntegerMega" for rule in rules):
            remarks.append("IntegerMega is MiB for any unit: 4G is 4096 (AUDITOR: 4)")
        used = [str(rule["key"]) for rule in rules if policy_of(str(rule.get("key")), {}) in {"energy", "max", "sum"}]
        if used:
            batch = f"AUDITOR: of the batch step, as with merge: {{{used[0]}: batch}}"
            remarks.append(f"{', '.join(used)}: of all steps ({batch})")
        result.put("components", rules, "; ".join(remarks))
    return result.finish(_TAKEN, _DROPPED)


def _drop_ignored(result: ConfigImport, section: str, rule: Document) -> dict[str, Any]:  # Any: YAML
    """Return the rule without the keys that AUDITOR ignored, which are reported as dropped."""
    result.drop(rule, _KEYS[section], place=f"{section}.")
    return {key: value for key, value in rule.items() if key in _KEYS[section]}


_SCORE: Final = "HEPscore23"
_SETTING: Final = re.compile(r"^\s*(\w+)\s*= (.*?)\s*$", re.MULTILINE)
ALWAYS_TRACKED: Final = frozenset({"cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"})
DEFINED_TRES: Final = ALWAYS_TRACKED | {"gres/gpu", "gres/gpumem", "gres/gpuutil", "gres/mps", "gres/shard"}
"""Names that Slurm defines. A cluster without such a resource lists none, which is no mistake."""

_GROUP_LABELS: Final = {"account": "account", "unix": "group_id"}
META_RULES: Final = [
    {"name": "account", "key": "Account", "key_type": "String"},
    {"name": "partition", "key": "Partition", "key_type": "String"},
]
_COMMENTS: Final = {
    "earliest_datetime": "Jobs that ended before this are ignored. Only the first run reads it.",
    "sites": "The first matching rule names the site; by partition: only_if: {key: Partition, matches: ^genoa}.",
    "meta": "Labels beside user_id and group_id, from sacct's columns.",
    "components": "Memory in MiB, TotalCPU in seconds, MaxRSS in bytes.",
    "sacct": "There is no accounting database.",
}


def detect(host: Host) -> Proposal | None:
    """Propose the kind ``slurm`` if the cluster has an accounting database, which sacct reads.

    If scontrol fails, because slurmctld is down or this host can only reach slurmdbd, sacct is asked for a job instead.

    Raises:
        NoAnswer: sacct fails, too.
    """
    settings = _settings(host)
    if settings and "slurmdbd" not in settings.get("AccountingStorageType", ""):
        return None
    if host.run(["sacct", "--version"]) is None:
        return None
    if not settings and host.run(["sacct", "--noheader", "--jobs=1"]) is None:
        raise NoAnswer("Slurm is installed, but neither scontrol nor sacct answers: see sacct --jobs=1")
    questions = (
        Question("score", f"{_SCORE} of a core; by partition: genoa=12.4,rome=9.8 (empty: none)", check=_scores),
        Question(
            "memory_peaks",
            "Record memory peaks (MaxRSS)? They come, like CPU time, from the steps of jobs",
            "no",
            check=_is_yes,
        ),
        _ask_for_group(settings),
    )
    found = "Slurm: sacct answers, although scontrol does not"
    if settings:
        found = f"Slurm cluster {settings.get('ClusterName', '?')}, with slurmdbd"
    has_gpus = "gpu" in (host.run(["sinfo", "--noheader", "--format=%G"]) or "")
    comments = dict(_COMMENTS)
    if (line := find_line_to_track_gpus(settings)) is not None:
        has_gpus = True
        found += f"; it does not account for GPUs: set {line} in slurm.conf"
        comments["components"] += f" Records get GPUs once slurm.conf has {line}."
    return Proposal(found, partial(_options, has_gpus=has_gpus), questions, comments, labels=_labels)


def detect_epilog(host: Host) -> Proposal | None:
    """Propose the kind ``slurm_epilog`` if the cluster has no accounting database."""
    settings = _settings(host)
    if not settings or "slurmdbd" in settings.get("AccountingStorageType", ""):
        return None
    found = f"Slurm cluster {settings.get('ClusterName', '?')}, without slurmdbd: set EpilogSlurmctld=auditord-epilog"
    return Proposal(found, _epilog_options, [_ask_for_group(settings)], _COMMENTS, labels=_labels)


def _ask_for_group(settings: Mapping[str, str]) -> Question:
    """Ask which label reports call the group; jobs have a meaningful account if Slurm enforces associations."""
    has_accounts = "associations" in settings.get("AccountingStorageEnforce", "")
    text = "A group in reports is the Slurm 'account' or the 'unix' group (records have both)"
    return Question("group", text, "account" if has_accounts else "unix", _group_label)


def _group_label(answer: str) -> str:
    if answer not in _GROUP_LABELS:
        raise ValueError(f"group: '{answer}' is neither account nor unix")
    return _GROUP_LABELS[answer]


def _labels(answers: Answers) -> Mapping[str, str]:
    return {"group": _group_label(answers["group"])}


def _epilog_options(answers: Answers) -> Mapping[str, Any]:
    return {"sites": [{"name": answers["site"]}], "meta": META_RULES, "sacct": []}


def _settings(host: Host) -> Mapping[str, str]:
    return parse_settings(host.run(["scontrol", "show", "config"]) or "")


def parse_settings(shown: str) -> Mapping[str, str]:
    """Return the settings in the output of ``scontrol show config``."""
    return dict(_SETTING.findall(shown))


def find_line_to_track_gpus(settings: Mapping[str, str]) -> str | None:
    """Return the line for slurm.conf that makes Slurm account for GPUs; None if it does, or if there are no GPUs."""
    tracked = [name for name in settings.get("AccountingStorageTRES", "").split(",") if name not in ALWAYS_TRACKED]
    has_gpus = "gpu" in settings.get("GresTypes", "").split(",")
    if not has_gpus or "AccountingStorageTRES" not in settings or any(name.startswith("gres/gpu") for name in tracked):
        return None
    return f"AccountingStorageTRES={','.join([*filter(None, tracked), 'gres/gpu'])}"


def _options(answers: Answers, *, has_gpus: bool) -> Mapping[str, Any]:
    memory = {"name": "Memory", "key": "AllocTRES", "sub_key": "mem", "key_type": "IntegerMega", "optional": True}
    peaks = {"name": "MaxRSS", "key": "MaxRSS", "key_type": "Size", "optional": True}
    gpus = {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpu", "optional": True}
    return {
        "earliest_datetime": f"{answers['since']}T00:00:00Z",
        "sites": [{"name": answers["site"]}],
        "meta": META_RULES,
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
    """Parse ``12.4`` or ``genoa=12.4,rome=9.8``. A number without a partition applies to all other partitions."""
    rules: list[Mapping[str, Any]] = []
    parts = sorted((part.strip() for part in answer.split(",") if part.strip()), key=lambda part: "=" not in part)
    for part in parts:
        partition, _, number = part.rpartition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", number):
            raise ValueError(f"score: '{part}' is neither a number nor partition=number")
        condition = {"only_if": {"key": "Partition", "matches": f"^{re.escape(partition)}$"}} if partition else {}
        rules.append({"name": _SCORE, "value": float(number), **condition})
    return {"scores": rules} if rules else {}
