"""The options of the plugin ``priority``. They have AUDITOR's names and defaults where they mean the same."""

import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from auditord_hookspecs import Duration, PluginConfig

Mode: TypeAlias = Literal["ScaledBySum", "FullSpread"]
Counted: TypeAlias = Literal["stop", "start", "overlap"]
Metric: TypeAlias = Literal["ResourceUsage", "Priority"]

SCONTROL: Final = "/usr/bin/scontrol update PartitionName={1} PriorityJobFactor={priority}"


class PriorityConfig(PluginConfig):
    """Computes priorities from what groups provided or used, and sets them with commands."""

    components: Mapping[str, str | None] = Field(
        default={},
        description="The components to count, each weighted with the named score or (null) unweighted. A component "
        "that lacks its score counts with 1, with a warning. Without components, time alone counts.",
    )
    component_combination: Literal["sum", "product"] = Field(
        default="sum",
        description="sum: add up amount x score x time of all components; product: multiply the amounts and scores of "
        "a record's components with each other, as AUDITOR's plugin does.",
    )
    group_mapping: Mapping[str, tuple[str, ...]] = Field(
        min_length=1, description="The groups that get a priority, and the values of {1}, {2}, ... in their commands."
    )
    group_keys: tuple[str, ...] = Field(
        default=("group_id", "group"),
        min_length=1,
        description="The meta key with the group, and older names of the key.",
    )
    commands: tuple[str, ...] = Field(
        default=(SCONTROL,),
        min_length=1,
        description="The commands that set a group's priority: a program and its arguments, quoted as for a shell, "
        "but run without one. Placeholders: {priority}, {resource} (or {resources}), {group}, {1}, {2}, "
        "...",
    )
    command_timeout: Duration = Field(
        default=timedelta(seconds=30), gt=timedelta(0), description="A command that takes longer is killed."
    )
    min_priority: int = Field(default=0, ge=0, le=2**63 - 1, description="The lowest priority.")
    max_priority: int = Field(default=1024, ge=0, le=2**63 - 1, description="The highest priority.")
    computation_mode: Mode = Field(
        default="ScaledBySum",
        description="ScaledBySum: in proportion to a group's share; FullSpread: the smallest usage gets min_priority, "
        "the largest max_priority.",
    )
    duration: Duration | None = Field(
        default=None, gt=timedelta(0), description="The period to count, back from now; default: all records."
    )
    window: Counted = Field(
        default="stop",
        description="Which records count within duration: those that stopped in it; those that started in it, as in "
        "AUDITOR; or the part of each record that lies in it, running ones included.",
    )
    stale_after: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="If no record of any group stopped within this time, a collector is probably behind, and "
        "priorities stay unchanged.",
    )
    smoothing: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="The weight of the previous priority, which dampens jumps; 0: none."
    )
    metrics: tuple[Metric, ...] = Field(
        default=("ResourceUsage", "Priority"), description="Gauges at /metrics, under auditord's names and AUDITOR's."
    )

    @field_validator("commands")
    @classmethod
    def _splits(cls, commands: tuple[str, ...]) -> tuple[str, ...]:
        for command in commands:
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise ValueError(f"{command!r} cannot be split into words: {error}") from error
            if not words or not words[0]:
                raise ValueError("a command needs a program")
        return commands

    @model_validator(mode="after")
    def _in_order(self) -> "PriorityConfig":
        if self.min_priority > self.max_priority:
            raise ValueError("min_priority is above max_priority: the smallest usage would get the highest priority")
        return self
