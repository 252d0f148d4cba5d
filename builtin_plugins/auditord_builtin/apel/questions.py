"""Questions to the store about the jobs of a site, and the values of fields in its answers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.apel import fields
from auditord_builtin.apel.config import ApelConfig, Benchmark
from auditord_hookspecs import Records, Window, aggregates, query

Number: TypeAlias = int | Fraction
"""An exact number; whole ones are added up much faster."""

WHOLE: Final = frozenset({"NodeCount", "Processors", "Count"})
"""Fields that are whole numbers."""

_MOST_LEVEL: Final = 10**7


class LeftOut(Exception):
    """Raised with the reason for which some jobs cannot be reported."""


def conditions(config: ApelConfig, sites: Sequence[str], window: Window) -> Iterator[query.AllOf]:
    """The conditions of records of these sites that stopped in the window: one per meta key, disjoint.

    A record that lists several sites belongs to the first of them: see :func:`site_of`.
    """
    ids = tuple([site_id for site in sites for site_id in config.site.sites_to_report[site]])
    stopped = query.stopped_within(window).conditions
    long_enough = () if config.site.zero_length_jobs else (query.RuntimeCompares(query.Comparison.GT, 0),)
    for number, key in enumerate(config.site.site_meta_field):
        others = [query.MetaAbsent(other) for other in config.site.site_meta_field[:number]]
        yield query.AllOf((*stopped, *long_enough, *others, query.MetaContainsAny(key, ids)))


def site_of(config: ApelConfig, site_id: aggregates.KeyValue) -> str | None:
    """The name in GOCDB of the site with this id in records."""
    return next((site for site, ids in config.site.sites_to_report.items() if site_id in ids), None)


async def site_groups(
    config: ApelConfig,
    records: Records,
    site: str,
    window: Window,
    *asked: aggregates.Dimension,
    usage: Sequence[str] = (),
) -> Sequence[aggregates.Group]:
    """Sums over the records of a site that stopped in the window, by its id and, behind it, by what is asked."""
    found: list[aggregates.Group] = []
    by = (aggregates.MetaValue(*config.site.site_meta_field), *asked)
    summed = tuple([aggregates.ComponentUsage(name) for name in usage])
    for where in conditions(config, (site,), window):
        answer = await records.aggregate(aggregates.AggregateQuery(where, by, summed))
        found += [group for group in answer.groups if site_of(config, group.key[0]) == site]
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """Sums over jobs that are alike in all that was asked for.

    Args:
        alike: equal in groups with equal ``texts``.
        texts: of the key fields, by their names.
        amounts: sums of the amount fields, by their names, each in the field's unit.
        benchmark: the first that the jobs have, with its ``level``; None if none was asked for.
    """

    group: aggregates.Group
    alike: tuple[aggregates.KeyValue, ...]
    texts: Mapping[str, str]
    amounts: Mapping[str, Number]
    benchmark: Benchmark | None
    level: Decimal


@dataclass(frozen=True, slots=True)
class Question:
    """Sums by all that some fields read.

    Args:
        keys: fields that are read as texts, by name.
        amounts: fields that are summed up, by name.
        benchmarks: of which the first counts that jobs have; none: they are not asked for.
        only: a component without which jobs do not count.
    """

    keys: Mapping[str, fields.KeyField]
    amounts: Mapping[str, fields.AmountField]
    benchmarks: Sequence[Benchmark] = ()
    only: fields.ComponentField | None = None

    async def ask(
        self, config: ApelConfig, records: Records, site: str, window: Window
    ) -> tuple[Sequence[Answer], Counter[str]]:
        """The answers for the jobs of a site that stopped in the window; then how many jobs are left out, by reason."""
        summed_fields = (*self.amounts.values(), *(() if self.only is None else (self.only,)))
        components = [field.name for field in summed_fields if isinstance(field, fields.ComponentField)]
        summed = list(dict.fromkeys(components))
        read = [dimension for field in self.keys.values() if (dimension := _dimension(field)) is not None]
        asked = [*read, *map(_score, self.benchmarks), *map(aggregates.ComponentPresent, summed)]
        by = tuple(dict.fromkeys(asked))
        groups = await site_groups(config, records, site, window, *by, usage=summed)
        return _Reading(self, by, summed, frozenset(read)).read(groups)


class _Reading:
    """The reading of one answer of the store."""

    def __init__(
        self,
        question: Question,
        by: Sequence[aggregates.Dimension],
        summed: Sequence[str],
        read: frozenset[aggregates.Dimension],
    ) -> None:
        self._question = question
        self._summed = summed
        self._places = {dimension: place for place, dimension in enumerate(by, 1)}
        self._unread = {
            self._places[each] for each in by if isinstance(each, aggregates.ScoreValue) and each not in read
        }
        self._texts: dict[tuple[aggregates.KeyValue, ...], Mapping[str, str]] = {}

    def read(self, groups: Sequence[aggregates.Group]) -> tuple[Sequence[Answer], Counter[str]]:
        answers: list[Answer] = []
        left_out: Counter[str] = Counter()
        for group in groups:
            try:
                if self._counts(group):
                    answers.append(self._answer(group))
            except LeftOut as reason:
                left_out[str(reason)] += group.records
        return answers, left_out

    def _counts(self, group: aggregates.Group) -> bool:
        only = self._question.only
        return only is None or bool(
            self._value(aggregates.ComponentPresent(only.name), group) and self._amount(only, group)
        )

    def _answer(self, group: aggregates.Group) -> Answer:
        benchmark, level = self._benchmark(group)
        amounts = {name: self._amount(field, group) for name, field in self._question.amounts.items()}
        alike = tuple([value for place, value in enumerate(group.key) if place not in self._unread])
        if alike not in self._texts:
            self._texts[alike] = {name: self._text(name, field, group) for name, field in self._question.keys.items()}
        return Answer(group, alike, self._texts[alike], amounts, benchmark, level)

    def _benchmark(self, group: aggregates.Group) -> tuple[Benchmark | None, Decimal]:
        benchmarks = self._question.benchmarks
        for benchmark in benchmarks:
            value = self._value(_score(benchmark), group)
            if isinstance(value, Decimal) and value:  # AUDITOR writes 0 where a benchmark is not known
                return benchmark, kept_level(value, benchmark.score)
        if benchmarks:
            raise LeftOut(f"no score {' or '.join(each.score for each in benchmarks)}: left out")
        return None, Decimal()

    def _amount(self, field: fields.AmountField, group: aggregates.Group) -> Number:
        match field:
            case fields.RecordField():
                return group.runtime
            case fields.ConstantField(value=value):
                return Fraction(value) * group.records
            case fields.ComponentField(name=name):
                if not self._value(aggregates.ComponentPresent(name), group):
                    raise LeftOut(f"no component {name}: left out")
                amount = group.usage[self._summed.index(name)].sums.amount
                return amount if field.divide_by == 1 else Fraction(amount, field.divide_by)

    def _text(self, name: str, field: fields.KeyField, group: aggregates.Group) -> str:
        if isinstance(field, fields.ConstantField):
            text = str(field.value)
        elif isinstance(field, fields.MetaField):
            value = self._value(aggregates.MetaValue(*field.name), group)
            text = field.text(value if isinstance(value, str) else None)
        else:
            dimension = _dimension(field)
            text = known_text(field, None if dimension is None else self._value(dimension, group))
        return str(whole_number(text, name)) if name in WHOLE else text

    def _value(self, dimension: aggregates.Dimension, group: aggregates.Group) -> aggregates.KeyValue:
        return group.key[self._places[dimension]]


def known_text(field: fields.ComponentField | fields.ScoreField, value: object) -> str:
    """An amount or a score as text.

    Raises:
        LeftOut: there is none.
    """
    match field, value:
        case fields.ComponentField(divide_by=divisor), int(amount):
            return str((2 * amount + divisor) // (2 * divisor))
        case fields.ScoreField(), Decimal() as score:
            return f"{score.normalize():f}"
        case fields.ComponentField(name=name), _:
            raise LeftOut(f"no component {name}: left out")
        case fields.ScoreField(name=name, component_name=component), _:
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


def _score(benchmark: Benchmark) -> aggregates.ScoreValue:
    return aggregates.ScoreValue(benchmark.component, benchmark.score)


def _dimension(field: fields.KeyField) -> aggregates.Dimension | None:
    match field:
        case fields.MetaField(name=names):
            return aggregates.MetaValue(*names)
        case fields.ComponentField(name=name):
            return aggregates.ComponentAmount(name)
        case fields.ScoreField(name=name, component_name=component):
            return aggregates.ScoreValue(component, name)
        case fields.ConstantField():
            return None
