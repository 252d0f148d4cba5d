"""The options of the collector ``slurm_epilog``, and their import from AUDITOR's Slurm epilog collector."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from pydantic import Field, model_validator

from auditord_builtin.slurm.config import CORES, DEFAULT_COMPONENTS, GPU, MEMORY, Components, JobsConfig
from auditord_builtin.slurm.epilog.rows import COLUMNS
from auditord_builtin.slurm.runs import FIRST_COLUMN, LAST_COLUMN
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config import Words
from auditord_hookspecs.config_import import OWN_LOG, OWN_STORE, ConfigImport, Document

COLUMN_OF: Final[Mapping[str, str]] = {
    "NumCPUs": "NCPUS",
    "NumNodes": "NNodes",
    "Mem": "AllocTRES",
    "TRES": "AllocTRES",
    "JobState": "State",
    "UserId": "User",
    "GroupId": "Group",
    "JobId": "JobIDRaw",
    "RunTime": "Elapsed",
    "TimeLimit": "Timelimit",
    "SubmitTime": "Submit",
    "StartTime": "Start",
    "EndTime": "End",
}
"""sacct's columns by their names in scontrol, which AUDITOR's epilog collector uses."""


class SlurmEpilogConfig(JobsConfig):
    """Finished jobs of the local Slurm cluster, each noted by auditord-epilog at its end."""

    components: Components = Field(
        default=(CORES, MEMORY, GPU),
        description="Default: Cores; where known Memory (MiB), GPU; with same_source_as the defaults of the kind "
        "slurm. auditor: Cores alone.",
    )
    spool: Path = Field(
        default=Path("/var/spool/auditord-epilog"), description="The folder to which auditord-epilog writes."
    )
    record_id: Literal["job", "raw"] = Field(
        default="job",
        description="job: ids as in the kind slurm, 7_4 for an array task; raw: as in AUDITOR's epilog collector, 11.",
    )
    sacct: Words = Field(
        default=("sacct",),
        description="The program, or a list of the program and its first arguments; []: there is no accounting "
        "database.",
    )
    scontrol: Words = Field(
        default=("scontrol",),
        min_length=1,
        description="The program, or a list of the program and its first arguments.",
    )
    squeue: Words = Field(
        default=("squeue",),
        description="The program, or a list of it and its first arguments, for a Slurm whose scontrol prints no JSON "
        "(before 23.02); []: parse scontrol's text output instead.",
    )

    @cached_property
    def id_column(self) -> str:
        """The column that a record's id is made from."""
        return FIRST_COLUMN if self.record_id == "job" else LAST_COLUMN

    @cached_property
    def all_steps(self) -> bool:
        """Always true, since sacct is only asked about few jobs at a time."""
        return True

    @cached_property
    def scontrol_suffices(self) -> bool:
        """True if no rule needs data that only sacct has, such as the usage of steps."""
        return COLUMNS.issuperset((*self.columns, *self.merge))

    @model_validator(mode="before")
    @classmethod
    def _same_components(cls, given: Any) -> Any:  # Any: a value from the file
        """Default to the components of the kind ``slurm`` if another instance reads the same jobs."""
        if not isinstance(given, dict):
            return given
        options = cast("dict[str, Any]", given)
        beside = bool(options.get("same_source_as")) and "components" not in options
        return {**options, "components": DEFAULT_COMPONENTS} if beside else options

    @model_validator(mode="after")
    def _columns_of_sacct(self) -> Self:
        for column in self.columns:
            if column in COLUMN_OF:
                raise ValueError(f"'{column}' is called '{COLUMN_OF[column]}' here, as in sacct")
        return self

    @model_validator(mode="after")
    def _known_to_slurmctld(self) -> Self:
        if not self.sacct and not self.scontrol_suffices:
            unknown = sorted({*self.columns, *self.merge} - COLUMNS)
            raise ValueError(f"sacct is [], but only sacct knows {', '.join(unknown)}")
        return self

    @model_validator(mode="after")
    def _one_id_for_a_job(self) -> Self:
        if self.record_id == "raw" and self.same_source_as:
            other = self.same_source_as
            raise ValueError(f"record_id: raw would count tasks of arrays twice, since {other} gives them other ids")
        return self


_TAKEN: Final = frozenset({"record_prefix", "site_id", "components", "log_level"})
_DROPPED: Final = {"addr": OWN_STORE, "port": "see addr", "tls_config": "see addr", "logging": OWN_LOG}
_RAW: Final = (
    "AUDITOR's epilog collector names tasks of arrays by their raw ids; leave it out where the same jobs are also "
    "accounted for by sacct"
)
_CALL: Final = "EpilogSlurmctld calls auditord-epilog now; it only notes the job, and the daemon does the rest"


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a configuration file of AUDITOR's Slurm epilog collector. Return None for any other file."""
    if not set(document) <= {*_TAKEN, *_DROPPED} or "site_id" not in document:
        return None
    given: Sequence[Document] = document.get("components") or ()
    rules: list[dict[str, Any]] = []  # Any: an operator's YAML
    for rule in given:
        rules.append(translated := _with_column(rule))
        if rule.get("key") == "Mem":
            translated |= {"sub_key": "mem", "key_type": "IntegerMega"}
        elif rule.get("key") == "TRES":
            translated |= {"key_type": "String"}
        if "scores" in rule:
            translated["scores"] = [_with_column(score) for score in rule["scores"]]
    remarks = ["a job without a value goes to quarantine (AUDITOR's collector failed)"] if given else []
    if any(rule.get("key") == "Mem" for rule in given):
        remarks.append("Mem: the memory of all nodes in MiB (AUDITOR: of the last node)")
    scores = [score for rule in given for score in rule.get("scores", ())]
    if any(each["only_if"].get("key") in {"UserId", "GroupId"} for each in (*given, *scores) if "only_if" in each):
        remarks.append("UserId and GroupId: the name alone is compared, without the number in parentheses")
    result = ConfigImport(document, "collectors.slurm_epilog")
    result.put("kind", "slurm_epilog")
    result.put("record_prefix", document.get("record_prefix", "slurm"))
    result.put("record_id", "raw", _RAW)
    result.put("sites", [{"name": document["site_id"]}])
    result.put("components", "auditor" if document.get("components") is None else rules, "; ".join(remarks))
    result.remark("", _CALL)
    return result.finish(_TAKEN, _DROPPED)


def _with_column(rule: Document) -> dict[str, Any]:  # Any: an operator's YAML
    translated = dict(rule)
    if "key" in rule:
        translated["key"] = COLUMN_OF.get(rule["key"], rule["key"])
    if "only_if" in rule:
        translated["only_if"] = _with_column(rule["only_if"])
    return translated
