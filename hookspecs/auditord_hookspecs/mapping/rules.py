"""The configuration of rules that convert a job's columns to a record, with AUDITOR's names for the options.

``quantities`` and the other modules of this package apply the rules. When the configuration is loaded, regular
expressions are compiled, and names and combinations are checked. Expressions match anywhere in a value, as in AUDITOR;
anchor them with ``^`` and ``$``.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from typing_extensions import override

from auditord_hookspecs.config import Section
from auditord_hookspecs.records import MAX_AMOUNT, Score, check_name
from auditord_hookspecs.vocabulary import TOTALS, has_both_forms

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
"""The name of a column in a template."""


def _check_name(text: str) -> str:
    check_name(text)
    return text


Name = Annotated[str, AfterValidator(_check_name)]
Key = Annotated[str, Field(min_length=1)]


class KeyType(Enum):
    """The type of a column (``key_type``).

    For numeric types and ``DateTime``, an empty value and sentinels such as ``Unknown`` mean "missing".
    """

    INTEGER = "Integer"
    """A number; a fraction is rounded half up."""
    INTEGER_MEGA = "IntegerMega"
    """A size in MiB (2^20 bytes), rounded half up: ``4G`` is 4096, ``2000M`` is 2000, ``1048576`` (bytes) is 1."""
    SIZE = "Size"
    """A size in bytes: ``132384K`` is 135561216."""
    TIME = "Time"
    """A duration in whole seconds, truncated as in AUDITOR: ``1-02:03:04.567`` is 93784."""
    ENERGY = "Energy"
    """Joules: ``1.23K`` is 1230."""
    STRING = "String"
    """The unchanged value."""
    DATE_TIME = "DateTime"
    """An instant, formatted as ``2023-11-07 09:14:01 UTC``."""
    ID = "Id"
    """The part before the first parenthesis: ``alice(1000)`` is ``alice``."""
    JSON = "Json"
    """An object whose members become separate labels."""

    __hash__ = object.__hash__  # faster than that of Enum, which is in Python; used for each amount

    @property
    def numeric(self) -> bool:
        """True if the value is an amount."""
        return self in {KeyType.INTEGER, KeyType.INTEGER_MEGA, KeyType.SIZE, KeyType.TIME, KeyType.ENERGY}


class Condition(Section):
    """Holds if the expression matches the value of the column. A missing column counts as an empty string."""

    key: Key
    matches: re.Pattern[str]


def _wrap_condition(value: Any) -> Any:  # Any: a value from the file
    alone = isinstance(value, Mapping | Condition)
    return (value,) if alone else value or ()


Conditions = Annotated[
    tuple[Condition, ...],
    BeforeValidator(_wrap_condition, json_schema_input_type=Condition | tuple[Condition, ...]),
]
"""One condition, or several that must all hold."""


class SiteRule(Section):
    """Names the site of a job. The first rule that applies is used.

    The site is ``name``, or the part of column ``key`` that ``matches`` finds. A rule that finds nothing is skipped.
    """

    name: Name | None = None
    key: Key | None = None
    matches: re.Pattern[str] | None = None
    only_if: Conditions = ()

    @model_validator(mode="after")
    def _one_source(self) -> "SiteRule":
        if (self.name is None) is (self.key is None) or (self.matches and self.key is None):
            raise ValueError("a site has either a name or a key (with matches, if only a part of the text names it)")
        return self


NOT_CONFIGURED: Final = "NOT_CONFIGURED"
"""AUDITOR's name for the site of records whose collector has no ``sites``."""


def remarks_on_sites(sites: Iterable[SiteRule]) -> list[str]:
    """Return a remark if a record's site can be :data:`NOT_CONFIGURED` (for ``CollectorKind.remarks``)."""
    if all(site.name != NOT_CONFIGURED for site in sites):
        return []
    return [f"sites is missing: every record is labelled {NOT_CONFIGURED}; set sites: [{{name: YOUR-SITE}}]"]


class ScoreRule(Section):
    """A score of a component: a constant ``value``, or the number in the column ``key``.

    If ``matches`` is given, the number is its first group or, without groups, the whole match.
    """

    name: Name
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    key: Key | None = None
    matches: re.Pattern[str] | None = None
    only_if: Conditions = ()

    @model_validator(mode="after")
    def _one_source(self) -> "ScoreRule":
        if (self.value is None) is (self.key is None):
            raise ValueError("a score has either a value or a key")
        return self


class ValueRule(Section):
    """The source of a value: the column ``key``, or the value of ``sub_key`` if the column is a list of pairs.

    ``matches`` selects a part of this value: its first group, or the whole match. Without a match, it is missing.
    """

    name: Name
    key: Key | None = None
    key_type: KeyType = KeyType.INTEGER
    key_allow_empty: bool = False
    """An empty string is not a fault, even if the value is not optional: the value is left out."""
    sub_key: Key | None = None
    matches: re.Pattern[str] | None = None
    only_if: Conditions = ()

    @property
    def source(self) -> str:
        """The source of the value, for messages: ``AllocTRES[gres/gpu]``; empty if there is none."""
        return (self.key or "") + (f"[{self.sub_key}]" if self.sub_key else "")


class ComponentRule(ValueRule):
    """An amount: either a constant ``value``, or the number in the column ``key``.

    ``factor`` multiplies the number before rounding. If the number is missing, ``default_value`` is used; without one,
    the job is invalid unless the component is ``optional``.
    """

    value: Annotated[int, Field(ge=0, le=MAX_AMOUNT)] | None = None
    factor: Annotated[Decimal, Field(gt=0)] = Decimal(1)
    default_value: Annotated[int, Field(ge=0, le=MAX_AMOUNT)] | None = None
    optional: bool = False
    scores: tuple[ScoreRule, ...] = ()

    @cached_property
    def known_scores(self) -> tuple[Score, ...] | None:
        """The scores if they are the same for every job, or None if they depend on columns."""
        if any(score.only_if for score in self.scores):
            return None
        known = tuple(Score(score.name, score.value) for score in self.scores if score.value is not None)
        return known if len(known) == len(self.scores) else None

    @model_validator(mode="after")
    def _an_amount(self) -> "ComponentRule":
        if (self.value is None) is (self.key is None):
            raise ValueError(f"component {self.name}: give either a key or a constant value")
        if not self.key_type.numeric:
            raise ValueError(f"component {self.name}: key_type {self.key_type.value} is not a number")
        return self


def remarks_on_fractions(
    rules: Iterable[ComponentRule], fractions: Collection[str], totals: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return a remark for each rule that rounds fractions away (for ``CollectorKind.remarks``).

    Args:
        rules: the rules of the components.
        fractions: the sources whose values can have a fraction that matters: columns, or ``column[sub_key]``.
        totals: the rule for a total over the run, which keeps the fraction, by source.
    """
    factor = "keep it with a factor, such as factor: 1000, and name the component after its unit"
    return [
        f"component {rule.name}: {source} can have a fraction, which is rounded away (0.4 becomes 0); "
        + (f"use a total instead: {totals[source]}" if source in totals else factor)
        for rule in rules
        if rule.key_type is KeyType.INTEGER and rule.factor <= 1 and (source := rule.source) in fractions
    ]


def auditor_preset(rules: tuple[ComponentRule, ...]) -> WrapValidator:
    """Return a validator of an option ``components``: the word ``auditor`` stands for AUDITOR's components.

    Rules that would give a record both forms of an amount, such as Cores and CoreSeconds, are refused.
    """

    def validate(value: Any, read: ValidatorFunctionWrapHandler) -> tuple[ComponentRule, ...]:  # Any: from the file
        found: tuple[ComponentRule, ...] = read(rules if value == "auditor" else value)
        if (name := has_both_forms(rule.name for rule in found if not rule.only_if)) is not None:
            raise ValueError(
                f"{name} and {TOTALS[name]} are two forms of one amount, and a record has one of them: leave one out, "
                "or give it an only_if"
            )
        return found

    return WrapValidator(validate, json_schema_input_type=Literal["auditor"] | tuple[ComponentRule, ...])


def component_names(config: "HasComponents") -> list[str]:
    """Return the names of the components that a collector's rules make (for ``CollectorKind.provides``)."""
    return [rule.name for rule in config.components]


class HasComponents(Protocol):
    """The configuration of a collector with rules for components."""

    @property
    def components(self) -> tuple[ComponentRule, ...]:
        """The rules."""
        ...


class MetaRule(ValueRule):
    """A label. If several rules have one name, the first with a value is used; later ones with ``append`` add theirs.

    If the value is missing, or unreadable and ``optional``, ``default_value`` is used. Without one, the label is left
    out. With ``optional: false``, a job with an unreadable value, or with a missing value and no default, cannot be
    converted.

    ``template`` inserts columns into a string (``{Cluster}/{Partition}``). If a column is missing, so is the value.

    Labels from ``Json`` never use a name of another rule or of the collector itself, since users write this JSON.
    """

    value: Name | None = None
    template: str | None = None
    default_value: Name | None = None
    optional: bool = True
    append: bool = False

    @property
    @override
    def source(self) -> str:
        return self.template or super().source

    @model_validator(mode="after")
    def _one_source(self) -> "MetaRule":
        if [self.key, self.value, self.template].count(None) != 2:  # noqa: PLR2004 two of the three are not given
            raise ValueError(f"meta {self.name}: give one of key, value and template")
        return self
