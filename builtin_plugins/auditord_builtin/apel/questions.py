"""What the store is asked, and how fields read its answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.apel.config import ApelConfig, Benchmark
from auditord_builtin.apel.fields import (
    AmountField,
    ComponentField,
    ConstantField,
    KeyField,
    MetaField,
    RecordField,
    ScoreField,
)
from auditord_hookspecs import (
    AggregateQuery,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    Group,
    MetaValue,
    ScoreValue,
    Window,
)
from auditord_hookspecs.aggregates import KeyValue
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
    MetaAbsent,
    MetaContainsAny,
    RuntimeCompares,
    TimeCompares,
    TimeField,
)

_MOST_LEVEL: Final = 10**7


Number: TypeAlias = int | Fraction
"""An exact number; whole ones are added up much faster."""


class LeftOut(Exception):
    """Why some jobs cannot be reported."""


def conditions(config: ApelConfig, sites: Sequence[str], window: Window) -> Iterator[AllOf]:
    """Which records of these sites stopped in the window, one condition per meta key; no record meets two of them.

    A record that lists several sites belongs to the first of them: see :func:`site_of`.
    """
    ids = tuple([site_id for site in sites for site_id in config.site.sites_to_report[site]])
    after = TimeCompares(TimeField.STOP, Comparison.GTE, window.start)
    before = TimeCompares(TimeField.STOP, Comparison.LT, window.stop)
    long_enough = () if config.site.zero_length_jobs else (RuntimeCompares(Comparison.GT, 0),)
    for number, key in enumerate(config.site.site_meta_field):
        others: list[Condition] = [MetaAbsent(other) for other in config.site.site_meta_field[:number]]
        yield AllOf((after, before, *long_enough, *others, MetaContainsAny(key, ids)))


def site_of(config: ApelConfig, site_id: KeyValue) -> str | None:
    """The name in GOCDB of the site with this id in records."""
    return next((site for site, ids in config.site.sites_to_report.items() if site_id in ids), None)


@dataclass(frozen=True, slots=True)
class Question:
    """Sums by all that some fields read.

    Args:
        by: the site first.
        usage: the components to sum up.
        places: where each dimension stands in ``by``.
        scored: the places of benchmarks that no key field reads.
    """

    by: tuple[Dimension, ...]
    usage: tuple[ComponentUsage, ...]
    places: Mapping[Dimension, int]
    scored: frozenset[int]

    @classmethod
    def asking(
        cls, config: ApelConfig, keys: Sequence[KeyField], amounts: Sequence[AmountField], scores: Sequence[Benchmark]
    ) -> "Question":
        """The question that tells all of these fields."""
        summed = list(dict.fromkeys(field.name for field in amounts if isinstance(field, ComponentField)))
        asked = [
            MetaValue(*config.site.site_meta_field),
            *(dimension for field in keys if (dimension := _dimension(field)) is not None),
            *(ScoreValue(each.component, each.score) for each in scores),
            *(ComponentPresent(name) for name in summed),
        ]
        by = tuple(dict.fromkeys(asked))
        usage = tuple([ComponentUsage(name) for name in summed])
        read = {_dimension(field) for field in keys}
        scored = [place for place, each in enumerate(by) if isinstance(each, ScoreValue) and each not in read]
        return cls(by, usage, {dimension: place for place, dimension in enumerate(by)}, frozenset(scored))

    def query(self, where: Condition) -> AggregateQuery:
        """What the store is asked."""
        return AggregateQuery(where, self.by, self.usage)

    def told(self, group: Group) -> tuple[KeyValue, ...]:
        """What is known of the group but for the values of scores that no field reads as a text."""
        return tuple([value for place, value in enumerate(group.key) if place not in self.scored])

    def score(self, benchmark: Benchmark, group: Group) -> Decimal | None:
        """The value of a benchmark in the group."""
        value = self._value(ScoreValue(benchmark.component, benchmark.score), group)
        return value if isinstance(value, Decimal) else None

    def amount(self, field: AmountField, group: Group) -> Number:
        """The sum over the group, in the field's unit.

        Raises:
            LeftOut: its records do not have the component.
        """
        match field:
            case RecordField():
                return group.runtime
            case ConstantField(value=value):
                return Fraction(value) * group.records
            case ComponentField(name=name):
                if not self._value(ComponentPresent(name), group):
                    raise LeftOut(f"no component {name}: left out")
                place = self.usage.index(ComponentUsage(name))
                amount = group.usage[place].sums.amount
                return amount if field.divide_by == 1 else Fraction(amount, field.divide_by)

    def text(self, field: KeyField, group: Group) -> str:
        """The value of the field in the group.

        Raises:
            LeftOut: its records do not have the component or the score.
        """
        if isinstance(field, ConstantField):
            return str(field.value)
        dimension = _dimension(field)
        value = None if dimension is None else self._value(dimension, group)
        if isinstance(field, MetaField):
            return field.text(value if isinstance(value, str) else None)
        return known_text(field, value)

    def whole(self, field: KeyField, group: Group, name: str) -> int:
        """The value of the field in the group as a number.

        Raises:
            LeftOut: it is none.
        """
        return whole_number(self.text(field, group), name)

    def _value(self, dimension: Dimension, group: Group) -> KeyValue:
        return group.key[self.places[dimension]]


def known_text(field: ComponentField | ScoreField, value: object) -> str:
    """An amount or a score as text.

    Raises:
        LeftOut: there is none.
    """
    match field, value:
        case ComponentField(divide_by=divisor), int(amount):
            return str((2 * amount + divisor) // (2 * divisor))
        case ScoreField(), Decimal() as score:
            return f"{score.normalize():f}"
        case ComponentField(name=name), _:
            raise LeftOut(f"no component {name}: left out")
        case ScoreField(name=name, component_name=component), _:
            raise LeftOut(f"no score {name} of {component}: left out")


def kept_level(value: Decimal, name: str) -> Decimal:
    """A benchmark's value that fits APEL's column, which has seven digits before the point.

    Raises:
        LeftOut: it does not fit.
    """
    if not (value.is_finite() and 0 <= value < _MOST_LEVEL):
        raise LeftOut(f"{name} is {value:.6g}, not from 0 to {_MOST_LEVEL}: left out")
    return value


def whole_number(text: str, name: str) -> int:
    """A number of processors or nodes.

    Raises:
        LeftOut: the text is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 20):  # noqa: PLR2004 more than any database keeps
        raise LeftOut(f"{name} is {text[:40]!r}, no whole number: left out")
    return int(text)


def _dimension(field: KeyField) -> Dimension | None:
    match field:
        case MetaField(name=names):
            return MetaValue(*names)
        case ComponentField(name=name):
            return ComponentAmount(name)
        case ScoreField(name=name, component_name=component):
            return ScoreValue(component, name)
        case ConstantField():
            return None
