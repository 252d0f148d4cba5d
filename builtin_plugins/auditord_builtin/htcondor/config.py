"""The options of an HTCondor collector. They have AUDITOR's names where they mean the same."""

import re
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, field_validator, model_validator

from auditord_hookspecs import Duration, RunConfig
from auditord_hookspecs.config import NonNegativeDuration, Words
from auditord_hookspecs.mapping import ComponentRule, KeyType, MetaRule, SiteRule, auditor_preset, columns

_BENCHMARKS = "MachineAttrApelSpecs0"

AUDITOR_COMPONENTS = tuple(
    ComponentRule.model_validate(rule)
    for rule in (
        {
            "name": "Cores",
            "key": "CpusProvisioned",
            "scores": [
                {"name": name, "key": _BENCHMARKS, "matches": rf"{name}\D+(\d+(\.\d+)?)"}
                for name in ("HEPSPEC", "HEPscore23")
            ],
        },
        {"name": "Memory", "key": "MemoryProvisioned"},
        {"name": "TotalCPU", "key": "RemoteUserCpu+RemoteSysCpu", "key_type": KeyType.TIME},
    )
)
"""The components of the template of AUDITOR's collector: Memory in MiB, TotalCPU in whole seconds."""

_DEFAULT_COMPONENTS = (
    *AUDITOR_COMPONENTS[:-1],
    AUDITOR_COMPONENTS[-1].model_copy(update={"optional": True}),
    ComponentRule(name="GPU", key="GPUsProvisioned", optional=True),
)

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


class HTCondorConfig(RunConfig):
    """Finished jobs of HTCondor access points or HTCondor-CEs, read from their history."""

    record_prefix: str = Field(
        default="htcondor", min_length=1, description="A record's id is <record_prefix>-<GlobalJobId>."
    )
    earliest_datetime: AwareDatetime | None = Field(
        default=None, description="The first run accounts for jobs that ended from here on; default: from now on."
    )
    schedd_names: tuple[str, ...] = Field(default=(), description="The schedds to query; empty: the local history.")
    pool: str | None = Field(default=None, description="The schedds' central manager.")
    condor_history: Words = Field(
        default=("condor_history",),
        min_length=1,
        description="The program (condor_ce_history for a CE), or a list of it and its first arguments.",
    )
    through: tuple[str, ...] = Field(
        default=(), description="A command that runs it on another host, such as [ssh, ap1]."
    )
    output: Output = Field(
        default="separated",
        description="separated: every version of HTCondor. json, jsonl: keys that are expressions then need pip "
        "install 'auditord[htcondor]'.",
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
    start_keys: tuple[str, ...] = Field(
        default=("LastMatchTime", "JobCurrentStartDate", "JobStartDate"),
        min_length=1,
        description="Attributes with a job's start; the first one that is defined and not 0 is used.",
    )
    stop_keys: tuple[str, ...] = Field(
        default=("CompletionDate", "EpochWriteDate", "EnteredCurrentStatus"),
        min_length=1,
        description="Attributes with a job's end; the first one that is defined and not 0 is used.",
    )
    runtime: Literal["wall", "remote_wall_clock_time"] = Field(
        default="wall",
        description="wall: from start to stop, as in AUDITOR. remote_wall_clock_time: HTCondor's sum over all runs.",
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
    query_max_output: int = Field(
        default=256 * 1024**2, gt=0, description="Kill condor_history after this many bytes of output."
    )
    scan_limit: int | None = Field(
        default=None, gt=0, description="Passed as -scanlimit; newer schedds use it instead of their own limit."
    )
    helper_max_history: int = Field(
        default=10_000,
        gt=1,
        description="The schedds' HISTORY_HELPER_MAX_HISTORY; an answer with fewer jobs is complete.",
    )
    overlap: NonNegativeDuration = Field(
        default=timedelta(days=1),
        description="A limited answer is complete from a date on if its oldest jobs ended at least this long before "
        "that date.",
    )

    @cached_property
    def cpu_times(self) -> frozenset[str]:
        """The CPU times, if all components made from them are optional, so that a record may lack them."""
        rules = [rule for rule in self.components if rule.key is not None and _CPU_TIME.search(rule.key)]
        return frozenset(rule.key or "" for rule in rules) - {rule.key for rule in rules if not rule.optional}

    @cached_property
    def never_zero(self) -> frozenset[str]:
        """The components for which zero means that the job was never measured: every job needs memory."""
        return frozenset(rule.name for rule in self.components if _MEMORY.search(rule.key or ""))

    @property
    def columns(self) -> list[str]:
        """The attributes and expressions that the rules use."""
        wanted = (*self.start_keys, *self.stop_keys, *self.user_keys, *self.group_keys)
        return list(dict.fromkeys((*wanted, *columns(self.sites, self.meta, self.components))))

    @field_validator("schedd_names")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names) or not all(names) or any(name.startswith("-") for name in names):
            raise ValueError("give the name of each schedd once")
        return names

    @model_validator(mode="after")
    def _columns_can_be_asked_for(self) -> "HTCondorConfig":
        for column in (*self.columns, self.constraint or "true"):
            if column.startswith("-") or not column.isprintable():
                raise ValueError(f"{column!r} cannot be an attribute or expression; put it into parentheses?")
        return self

    @model_validator(mode="after")
    def _one_time(self) -> "HTCondorConfig":
        if self.epochs and self.runtime != "wall":
            raise ValueError("epochs makes a record of each run, RemoteWallClockTime is of all together: keep one")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> "HTCondorConfig":
        asked = bool(self.schedd_names or self.pool or self.history_file or self.epochs)
        if [asked, bool(self.history_paths), self.per_job_history_dir is not None].count(True) > 1:
            raise ValueError("schedd_names (with pool, history_file, epochs), history_paths, per_job_history_dir: one")
        return self
