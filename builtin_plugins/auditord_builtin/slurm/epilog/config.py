"""The options of the collector that reads the notes of ``auditord-epilog``."""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from pydantic import Field, model_validator

from auditord_builtin.slurm.config import CORES, DEFAULT_COMPONENTS, GPU, MEMORY, Components, JobsConfig
from auditord_builtin.slurm.epilog.rows import COLUMNS
from auditord_builtin.slurm.runs import FIRST_COLUMN, LAST_COLUMN
from auditord_hookspecs import Duration
from auditord_hookspecs.config import Words

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
"""Columns of sacct by the names that scontrol, and so AUDITOR's epilog collector, has for them."""


class SlurmEpilogConfig(JobsConfig):
    """Finished jobs of the local Slurm cluster, each noted by auditord-epilog at its end."""

    components: Components = Field(
        default=(CORES, MEMORY, GPU),
        description="Default: Cores; where known Memory (MiB), GPU; with same_source_as those of the kind slurm. "
        "auditor: Cores alone.",
    )
    spool: Path = Field(
        default=Path("/var/spool/auditord-epilog"), description="The folder that auditord-epilog writes to."
    )
    record_id: Literal["job", "raw"] = Field(
        default="job", description="job: as the kind slurm, 7_4 for a task of an array; raw: as AUDITOR's epilog, 11."
    )
    sacct: Words = Field(
        default=("sacct",),
        description="The program, or a list of it and its first arguments; []: there is no accounting database.",
    )
    scontrol: Words = Field(
        default=("scontrol",), min_length=1, description="The program, or a list of it and its first arguments."
    )
    squeue: Words = Field(
        default=("squeue",),
        description="The program, or a list of it and its first arguments, for a Slurm whose scontrol prints no JSON "
        "(before 23.02); []: read what scontrol prints as text.",
    )
    scontrol_timeout: Duration = Field(
        default=timedelta(seconds=30), description="scontrol or squeue is killed after this long."
    )

    @cached_property
    def id_column(self) -> str:
        """The column that a record's id is made of."""
        return FIRST_COLUMN if self.record_id == "job" else LAST_COLUMN

    @cached_property
    def all_steps(self) -> bool:
        """Always: sacct is asked for few jobs at a time."""
        return True

    @cached_property
    def scontrol_suffices(self) -> bool:
        """True if the rules need nothing that only sacct knows, such as the use of steps."""
        return COLUMNS.issuperset((*self.columns, *self.merge))

    @model_validator(mode="before")
    @classmethod
    def _same_components(cls, given: Any) -> Any:  # Any: whatever stood in the file
        """Beside the kind ``slurm`` both must say the same of each job, whichever is first."""
        if not isinstance(given, dict):
            return given
        options = cast("dict[str, Any]", given)
        beside = bool(options.get("same_source_as")) and "components" not in options
        return {**options, "components": DEFAULT_COMPONENTS} if beside else options

    @model_validator(mode="after")
    def _columns_of_sacct(self) -> Self:
        for column in self.columns:
            if column in COLUMN_OF:
                raise ValueError(f"'{column}' is called '{COLUMN_OF[column]}' here, as sacct calls it")
        return self

    @model_validator(mode="after")
    def _known_to_slurmctld(self) -> Self:
        if not self.sacct and not self.scontrol_suffices:
            unknown = sorted({*self.columns, *self.merge} - COLUMNS)
            raise ValueError(f"sacct: []: but only sacct knows {', '.join(unknown)}")
        return self

    @model_validator(mode="after")
    def _one_id_for_a_job(self) -> Self:
        if self.record_id == "raw" and self.same_source_as:
            other = self.same_source_as
            raise ValueError(f"record_id: raw: tasks of arrays would be counted twice, as {other} names them otherwise")
        return self
