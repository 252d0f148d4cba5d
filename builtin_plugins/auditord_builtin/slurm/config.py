"""The options of a Slurm collector. They have AUDITOR's names where they mean the same."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Field, field_validator, model_validator

from auditord_builtin.slurm.runs import ENDED, FIRST_COLUMN, LAST_COLUMN, full_name
from auditord_hookspecs import Duration, RunConfig, Section
from auditord_hookspecs.config import NonNegativeDuration, Words
from auditord_hookspecs.mapping import ComponentRule, KeyType, MetaRule, SiteRule, auditor_preset, columns

MergePolicy = Literal["alloc", "batch", "max", "sum"]

CPU_TIME: Final = "TotalCPU"
MEASURED: Final = "TRESUsageInTot"
"""The values measured while a step ran; since Slurm 18.08."""

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
"""The columns that every conversion needs besides the configured ones and the job's ids."""

_DEFAULTS: Final[Mapping[str, MergePolicy]] = {
    **dict.fromkeys(("MaxRSS", "MaxVMSize", "MaxPages", "MaxDiskRead", "MaxDiskWrite"), "max"),
    **dict.fromkeys(("AveRSS", "AveVMSize", "TRESUsageInMax", "TRESUsageOutMax", "TRESUsageInAve"), "max"),
    **dict.fromkeys((MEASURED, "TRESUsageOutTot", CPU_TIME), "sum"),
    # Steps that run at the same time measure the same node, so a sum would count its energy twice. The extern step,
    # where there is one, spans the whole job. AllocTRES[energy] is better where Slurm fills it.
    **dict.fromkeys(("ConsumedEnergy", "ConsumedEnergyRaw"), "max"),
    **dict.fromkeys(("AveCPU", "MinCPU", "AveDiskRead", "AveDiskWrite", "AvePages", "NTasks", "AveCPUFreq"), "batch"),
}
_FOR_REQMEM: Final = ("NNodes", "NCPUS")

_NEVER_ZERO: Final = frozenset({"MaxRSS", "AveRSS", "MaxVMSize", "AveVMSize", "ConsumedEnergy", "ConsumedEnergyRaw"})
"""Columns in which zero means that nothing was measured: every job uses memory and energy."""

_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
CLUSTER = "{cluster}"
"""The placeholder for the cluster's name in a prefix."""


def policy_of(column: str, chosen: Mapping[str, MergePolicy]) -> MergePolicy:
    """Return how the values of a column in several rows become one value."""
    return chosen.get(column) or _DEFAULTS.get(column, "alloc")


def _is_never_zero(rule: ComponentRule) -> bool:
    key, entry = rule.key or "", rule.sub_key
    return key in _NEVER_ZERO or entry == "energy" or (key.startswith("TRESUsage") and entry in {"mem", "vmem"})


Components = Annotated[tuple[ComponentRule, ...], auditor_preset((CORES,))]


class JobFilter(Section):
    """Selects the jobs that become records. An empty list selects all. Applied here, so that the rest is counted."""

    status: Annotated[tuple[str, ...], AfterValidator(lambda states: tuple(map(full_name, states)))] = Field(
        default=(), description="States, long (completed) or short (CD). Empty: every final state."
    )
    partition: tuple[str, ...] = ()
    user: tuple[str, ...] = Field(default=(), description="Names or numbers.")
    group: tuple[str, ...] = Field(default=(), description="Names or numbers.")
    account: tuple[str, ...] = ()


class JobsConfig(RunConfig):
    """The options of every kind that makes records from jobs in sacct's form.

    Values that follow from them are cached, since options never change.
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
        default={}, description="How to combine the values of a job's steps in a column: alloc, batch, max or sum."
    )
    job_filter: JobFilter = JobFilter()
    sacct: Words = Field(
        default=("sacct",), min_length=1, description="The program, or a list of the program and its first arguments."
    )
    through: tuple[str, ...] = Field(
        default=(), description="A command that runs it on another host, such as [ssh, head1]."
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
        description="The period of one sacct call at first: longer (up to 32 days) while there are few jobs, shorter "
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
        """The options of sacct for clusters other than the local one."""
        return ()

    @cached_property
    def id_column(self) -> str:
        """The column of the record's id."""
        return FIRST_COLUMN

    @cached_property
    def all_steps(self) -> bool:
        """Ask for steps even if no rule needs them: the first one has the start that a job may lack."""
        return False

    @cached_property
    def requeued_keep_their_id(self) -> bool:
        """Keep the plain id for a requeued run, although the job's next run may want it."""
        return False

    @cached_property
    def memory(self) -> timedelta:
        """The time after its end within which a run can be read again."""
        return timedelta(0)

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns that the rules use."""
        counted = ["Elapsed"] if self.runtime == "elapsed" else []
        return [*columns(self.sites, self.meta, self.components), *counted]

    @cached_property
    def sums_cpu_time(self) -> bool:
        """True if CPU time is added up from the steps."""
        return CPU_TIME in self.columns and policy_of(CPU_TIME, self.merge) == "sum"

    @cached_property
    def needed_columns(self) -> Sequence[str]:
        """The columns that the rules use, and those needed to interpret them."""
        of_memory = _FOR_REQMEM if "ReqMem" in self.columns else ()
        return list(dict.fromkeys((*self.columns, *of_memory)))

    @cached_property
    def wanted_columns(self) -> Sequence[str]:
        """The columns to ask for, each once, between the two ids that delimit a row."""
        of_cpu_time = ("NCPUS", MEASURED) if self.sums_cpu_time else ()
        wanted = dict.fromkeys((*ID_COLUMNS, *self.needed_columns, *of_cpu_time))
        return [FIRST_COLUMN, *(column for column in wanted if column not in {FIRST_COLUMN, LAST_COLUMN}), LAST_COLUMN]

    @cached_property
    def merged_columns(self) -> Sequence[tuple[str, MergePolicy]]:
        """The columns that are computed from the steps, with their policies."""
        asked = dict.fromkeys((*ID_COLUMNS, *self.needed_columns))
        policies: Mapping[str, MergePolicy] = {column: policy_of(column, self.merge) for column in asked}
        return [each for each in policies.items() if each[1] != "alloc"]

    @cached_property
    def never_zero(self) -> frozenset[str]:
        """The components for which zero means that nothing was measured."""
        return frozenset(rule.name for rule in self.components if _is_never_zero(rule))

    @cached_property
    def cpu_time_may_be_missing(self) -> bool:
        """True if a record may lack its CPU time if nothing was measured."""
        return self.sums_cpu_time and all(rule.optional for rule in self.components if rule.key == CPU_TIME)

    @cached_property
    def reads_steps(self) -> bool:
        """True if sacct prints steps for every run, which multiplies its output."""
        return self.all_steps or any(policy_of(column, self.merge) != "alloc" for column in self.columns)

    @field_validator("record_prefix")
    @classmethod
    def _known_placeholders(cls, prefix: str) -> str:
        if "{" in (rest := prefix.replace(CLUSTER, "")) or "}" in rest:
            raise ValueError("may hold {cluster} and no other placeholder")
        return prefix

    @field_validator("slice")
    @classmethod
    def _at_least_a_minute(cls, period: timedelta) -> timedelta:
        if period < timedelta(minutes=1):
            raise ValueError("must be at least 1m")
        return period

    @model_validator(mode="after")
    def _columns_can_be_asked_for(self) -> "JobsConfig":
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
        default=None, description="The first run accounts for jobs that ended from here on; default: from now on."
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
        default=timedelta(days=7), description="The length of that period; 0s: never rescan."
    )

    @cached_property
    def cluster_options(self) -> Sequence[str]:
        """The options of sacct for other clusters than the local one."""
        if self.clusters == "all":
            return ("--allclusters",)
        return (f"--clusters={','.join(self.clusters)}",) if self.clusters else ()

    @cached_property
    def requeued_keep_their_id(self) -> bool:
        """An open record has the plain id, so its run must keep that id even if the job is requeued."""
        return self.open_records

    @cached_property
    def memory(self) -> timedelta:
        """The time after its end within which a run may be found again."""
        return self.rescan_window + self.overlap

    @cached_property
    def several_clusters(self) -> bool:
        """True if job ids alone can be ambiguous."""
        return self.clusters == "all" or len(self.clusters) > 1

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "SlurmConfig":
        if self.several_clusters and CLUSTER not in self.record_prefix:
            raise ValueError("clusters: job ids repeat between clusters, so record_prefix must hold {cluster}")
        return self
