"""The sources of values in messages: AUDITOR's field types, each with its tag as ``type``.

Records are never looked at one by one for a summary: the store is asked for sums by what a summary is grouped by
(:mod:`auditord_builtin.apel.questions`), and expressions and functions are applied to its answer.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from auditord_hookspecs import Section

NOTHING: Final = "None"
"""APEL's word for a text that is not known."""

Name: TypeAlias = Annotated[str, Field(min_length=1)]


def _listed(value: Any) -> Any:  # Any: whatever stood in the file
    return (value,) if isinstance(value, str) else value


Names = Annotated[
    tuple[Name, ...],
    Field(min_length=1),
    BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...]),
]
"""A meta key, or several of which the first that a record has counts."""


class ComponentField(Section):
    """The amount of a component, all of one name in a record added up."""

    type: Literal["ComponentField"] = "ComponentField"
    name: Name
    divide_by: int = Field(default=1, gt=0, description="Amounts are divided by this, for milliseconds: 1000.")


class Function(Section):
    """``vo_mapping``: the VO of the first prefix, in this order, that the value starts with.

    ``fqan_vo``, ``fqan_group`` and ``fqan_role``: the parts of a FQAN, by the rules of APEL's own parser.
    """

    name: Literal["vo_mapping", "fqan_vo", "fqan_group", "fqan_role"]
    parameters: Mapping[str, str] | None = None

    @model_validator(mode="after")
    def _parameters_of_mapping(self) -> "Function":
        if (self.name == "vo_mapping") is (self.parameters is None):
            raise ValueError("vo_mapping needs parameters, and no other function takes any")
        return self

    def __call__(self, text: str) -> str:
        """The VO, group or role, or ``None`` as a text."""
        if self.parameters is not None:
            return next((vo for prefix, vo in self.parameters.items() if text.startswith(prefix)), NOTHING)
        return _parts_of_fqan(text)[self.name] or NOTHING


def _parts_of_fqan(text: str) -> Mapping[str, str]:
    """Read the first of several FQANs; a text without a slash at its begin is a VO.

    The rules are those of parse_fqan() in APEL's parsers: the group is all before the role, whose case does not matter.
    """
    first = text.partition(";")[0]
    if not first.startswith("/"):
        return {"fqan_vo": first, "fqan_group": "", "fqan_role": ""}
    pieces = [piece for piece in first.split("/") if piece]
    place = next((at for at, piece in enumerate(pieces) if piece.lower().startswith("role=")), len(pieces))
    group = "".join([f"/{piece}" for piece in pieces[:place]])
    return {"fqan_vo": first.split("/")[1], "fqan_group": group, "fqan_role": "".join(pieces[place : place + 1])}


class MetaField(Section):
    """The first value of a meta key, all that ``regex`` finds in it, or what ``function`` makes of it.

    What is not there, or not found, is the text ``None``.
    """

    type: Literal["MetaField"] = "MetaField"
    name: Names
    regex: re.Pattern[str] | None = None
    function: Function | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "MetaField":
        if self.regex is not None and self.function is not None:
            raise ValueError("regex and function exclude each other: keep one")
        return self

    def text(self, value: str | None) -> str:
        """The text for a first value."""
        if value is None:
            return NOTHING
        if self.function is not None:
            return self.function(value)
        found = None if self.regex is None else self.regex.search(value)
        return value if self.regex is None else NOTHING if found is None else found[0]


class ConstantField(Section):
    """The same value for every record."""

    type: Literal["ConstantField"] = "ConstantField"
    value: str | int | Decimal


class ScoreField(Section):
    """The value of a score of the first component of this name."""

    type: Literal["ScoreField"] = "ScoreField"
    name: Name
    component_name: Name


class RecordField(Section):
    """Something that every record has; of a time, ``modify`` names a part."""

    type: Literal["RecordField"] = "RecordField"
    name: Literal["record_id", "runtime", "start_time", "stop_time"]
    modify: Literal["year", "month", "day", "hour", "minute", "second"] | None = None

    @model_validator(mode="after")
    def _a_time(self) -> "RecordField":
        if self.modify is not None and self.name not in {"start_time", "stop_time"}:
            raise ValueError(f"{self.name} has no {self.modify}: modify is for start_time and stop_time")
        return self


class NormalisedField(Section):
    """``base_value`` times a benchmark.

    Without ``score`` the first of ``benchmarks`` counts that the record has; without ``base_value`` the duration that
    is normalised: ``CpuDuration`` for ``NormalisedCpuDuration``, else the runtime.
    """

    type: Literal["NormalisedField"] = "NormalisedField"
    score: ScoreField | None = None
    base_value: Annotated[ComponentField | RecordField, Field(discriminator="type")] | None = None

    @model_validator(mode="after")
    def _a_number(self) -> "NormalisedField":
        if isinstance(self.base_value, RecordField) and self.base_value.name != "runtime":
            raise ValueError(f"base_value: {self.base_value.name} is no duration; of a record only runtime is one")
        return self


class NormalisedWallDurationField(Section):
    """The runtime times a benchmark, as AUDITOR's plugin wrote it until version 0.7."""

    type: Literal["NormalisedWallDurationField"] = "NormalisedWallDurationField"
    score: ScoreField | None = None


KeyField: TypeAlias = Annotated[ComponentField | MetaField | ConstantField | ScoreField, Field(discriminator="type")]
"""Fields by which a summary can be grouped."""

AmountField: TypeAlias = Annotated[ComponentField | ConstantField | RecordField, Field(discriminator="type")]
"""Fields that can be summed up."""

NormalisedAmountField: TypeAlias = Annotated[NormalisedField | NormalisedWallDurationField, Field(discriminator="type")]

JobField: TypeAlias = Annotated[
    ComponentField | MetaField | ConstantField | ScoreField | RecordField, Field(discriminator="type")
]
"""Fields of individual jobs."""
