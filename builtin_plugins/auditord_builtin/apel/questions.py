"""Query the store for sums of a site's jobs, and read the values of message fields from the results."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from auditord_builtin.apel.config import (
    NOTHING,
    AmountField,
    ApelConfig,
    Benchmark,
    ComponentField,
    ConstantField,
    KeyField,
    MetaField,
    RecordField,
    ScoreField,
)
from auditord_builtin.apel.messages import clean_name
from auditord_hookspecs import ExceedsRuntime, Records, Window, aggregates, query
from auditord_hookspecs.query import MOST_CPU_TIME
from auditord_hookspecs.vocabulary import TOTALS

Number: TypeAlias = int | Fraction
"""An exact number. Sums of ``int`` are much faster."""


def round_half_up(number: Number, divisor: int = 1) -> int:
    """Return ``number`` divided by ``divisor``, rounded half up to a whole number."""
    below = number.denominator * divisor
    return (2 * number.numerator + below) // (2 * below)


_MOST: Final = Fraction(MOST_CPU_TIME)
_DECIMALS: Final = 9
_MILLISECONDS: Final = 100
"""From this factor on, an implausible CPU time was probably given in milliseconds."""


def implausible(cpu: AmountField, processors: KeyField) -> ExceedsRuntime | None:
    """Return the dimension that separates implausible jobs from others, or None if the store cannot separate them."""
    match cpu, processors:
        case ComponentField(), ComponentField():
            factor = MOST_CPU_TIME * cpu.divide_by / processors.divide_by
            return ExceedsRuntime(cpu.name, round(factor, _DECIMALS), processors.name)
        case ComponentField(), ConstantField() if str(processors.value).isdecimal() and int(processors.value):
            return ExceedsRuntime(cpu.name, MOST_CPU_TIME * cpu.divide_by * int(processors.value))
        case _:
            return None


def plausible_cpu(cpu: Number, wall: int, jobs: int, processors: int) -> Number:
    """Return the CPU time of jobs or, if it is implausible, the maximum that their processors could use.

    Args:
        cpu: the sum of CPU times in seconds.
        wall: the sum of runtimes in seconds. Each is truncated to whole seconds, so it can be one second short.
        jobs: the number of jobs.
        processors: the processors of each job; 0 if unknown, so that every CPU time is plausible.
    """
    most = (wall + jobs) * processors
    return most if processors and cpu > _MOST * most else cpu


def describe_cpu(cpu: Number, wall: int, plausible: Number) -> str:
    """Return the remark on jobs with an implausible CPU time. The arguments are sums over these jobs."""
    hint = "; are these milliseconds (divide_by: 1000)?" if cpu > _MILLISECONDS * plausible else ""
    return f"implausible CPU time, {float(cpu):.0f} s in {wall} s: reported with {float(plausible):.0f} s{hint}"


UNKNOWN: Final = "UNKNOWN"
"""AUDITOR's word for a compute element or batch system without a name."""

LONGEST_DESCRIPTION: Final = 100
_CLIENT: Final = "AUDITORD"


def batch_system_field(config: ApelConfig) -> MetaField | None:
    """Return the field with the records' batch system, or None if the options name it or it is not reported."""
    if config.site.ce is None or config.site.batch_system is not None:
        return None
    return MetaField(name=config.site.batch_system_meta_field)


def describe(config: ApelConfig, batch_systems: Iterable[str]) -> str | None:
    """Return the InfrastructureDescription of jobs of these batch systems, or None if ``site.ce`` is null.

    Several batch systems are sorted and joined by a plus sign. The description is not part of APEL's key.
    """
    if config.site.ce is None:
        return None
    named = {name for name in batch_systems if name != NOTHING} - {UNKNOWN}
    known = config.site.batch_system or "+".join(sorted(named)) or UNKNOWN
    return clean_name(f"{_CLIENT}-{config.site.ce}-{known}", LONGEST_DESCRIPTION)


WHOLE: Final = frozenset({"NodeCount", "Processors", "Count"})
"""Fields with whole numbers."""

_MOST_LEVEL: Final = 10**7


class LeftOut(Exception):
    """Raised with the reason why jobs cannot be reported."""


class LeftOutFor(NamedTuple):
    """The reason why jobs cannot be reported, and their submit host."""

    reason: str
    submit_host: str


def conditions(config: ApelConfig, sites: Sequence[str], window: Window) -> Iterator[query.AllOf]:
    """Yield disjoint conditions, one per meta key, for records of these sites that ended in the window.

    A record that lists several sites belongs to the first of them: see :func:`site_of`.
    """
    ids = tuple([site_id for site in sites for site_id in config.site.sites_to_report[site]])
    stopped = query.match_stopped(window).conditions
    long_enough = () if config.site.zero_length_jobs else (query.RuntimeCompares(query.Comparison.GT, 0),)
    for number, key in enumerate(config.site.site_meta_field):
        others = [query.MetaAbsent(other) for other in config.site.site_meta_field[:number]]
        yield query.AllOf((*stopped, *long_enough, *others, query.MetaContainsAny(key, ids)))


def site_of(config: ApelConfig, site_id: aggregates.KeyValue) -> str | None:
    """Return the name in GOCDB of the site with this id in records."""
    return next((site for site, ids in config.site.sites_to_report.items() if site_id in ids), None)


async def site_groups(
    config: ApelConfig,
    records: Records,
    site: str,
    window: Window,
    *asked: aggregates.Dimension,
    usage: Sequence[str] = (),
) -> Sequence[aggregates.Group]:
    """Return sums of a site's records that ended in the window, grouped by site id and the dimensions ``asked``."""
    found: list[aggregates.Group] = []
    by = (aggregates.MetaValue(*config.site.site_meta_field), *asked)
    summed = tuple([aggregates.ComponentUsage(name) for name in usage])
    for where in conditions(config, (site,), window):
        answer = await records.aggregate(aggregates.AggregateQuery(where, by, summed))
        ids = {site_id for site_id in {group.key[0] for group in answer.groups} if site_of(config, site_id) == site}
        found += [group for group in answer.groups if group.key[0] in ids]
    return found


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The sums of a group of jobs that have the same values in all dimensions of the question.

    Args:
        alike: groups with equal values have equal ``texts``.
        texts: the texts of the key fields, by name.
        amounts: the sums of the amount fields, by name, each in the field's unit.
        stored: the amounts before implausible CPU times were replaced.
        benchmark: the preferred benchmark of the jobs, with its value as ``level``; None if it was not requested.
    """

    group: aggregates.Group
    alike: tuple[aggregates.KeyValue, ...]
    texts: Mapping[str, str]
    amounts: Mapping[str, Number]
    stored: Mapping[str, Number]
    benchmark: Benchmark | None
    level: Decimal


class Question(msgspec.Struct, frozen=True):
    """A query for the sums of ``amounts``, grouped by ``keys`` and ``benchmarks``.

    Args:
        keys: the fields to read as texts, by name.
        amounts: the fields to sum up, by name.
        benchmarks: the benchmarks in order of preference. The first one that jobs have is used. Empty: none is read.
        only: the component that jobs must have, with an amount above 0, to be counted.
        cpu_times: the names of the amounts that are CPU times of the processors in the key ``Processors``.
    """

    keys: Mapping[str, KeyField]
    amounts: Mapping[str, AmountField]
    benchmarks: Sequence[Benchmark] = ()
    only: ComponentField | None = None
    cpu_times: Sequence[str] = ()

    async def ask(
        self, config: ApelConfig, records: Records, site: str, window: Window
    ) -> tuple[Sequence[Answer], Counter[LeftOutFor]]:
        """Return the answers for a site's jobs that ended in the window, and the number of jobs left out, by reason."""
        summed_fields = (*self.amounts.values(), *(() if self.only is None else (self.only,)))
        components = list(dict.fromkeys(field.name for field in summed_fields if isinstance(field, ComponentField)))
        summed = list(dict.fromkeys([*components, *filter(None, map(name_of_held, self.keys.values()))]))
        read = [dimension for field in self.keys.values() if (dimension := _dimension(field)) is not None]
        apart = [implausible(self.amounts[name], self.keys["Processors"]) for name in self.cpu_times]
        asked = [
            *read,
            *map(_score, self.benchmarks),
            *map(aggregates.ComponentPresent, components),
            *filter(None, apart),
        ]
        by = tuple(dict.fromkeys(asked))
        groups = await site_groups(config, records, site, window, *by, usage=summed)
        return _Reading(self, by, summed, frozenset(read)).read(groups)


class _Reading:
    """Reads the groups of one result, which can have a group for each user and job size.

    For speed, the position of each field is looked up once, and texts are made once for groups with equal keys.
    """

    def __init__(
        self,
        question: Question,
        by: Sequence[aggregates.Dimension],
        summed: Sequence[str],
        read: frozenset[aggregates.Dimension],
    ) -> None:
        self._summed = summed
        self._places = {dimension: place for place, dimension in enumerate(by, 1)}
        unread = {self._places[each] for each in by if isinstance(each, aggregates.ScoreValue) and each not in read}
        self._alike = [place for place in range(len(by) + 1) if place not in unread]
        self._only = None if question.only is None else self._places[aggregates.ComponentPresent(question.only.name)]
        self._only_sum = None if question.only is None else self._sum(question.only)
        self._benchmarks = [(each, self._places[_score(each)]) for each in question.benchmarks]
        fields_of_sums = list(dict.fromkeys(question.amounts.values()))
        self._sums = [self._sum(field) for field in fields_of_sums]
        self._amounts = [(name, fields_of_sums.index(field)) for name, field in question.amounts.items()]
        dimensions = [(name, field, _dimension(field)) for name, field in question.keys.items()]
        self._keys = [(name, field, None if by is None else self._places[by]) for name, field, by in dimensions]
        self._cpu_times = question.cpu_times
        held = [(name_of_held(field), place) for _, field, place in self._keys]
        self._held = [(place, summed.index(name)) for name, place in held if name is not None and place is not None]
        self._texts: dict[tuple[aggregates.KeyValue, ...], Mapping[str, str]] = {}

    def read(self, groups: Sequence[aggregates.Group]) -> tuple[Sequence[Answer], Counter[LeftOutFor]]:
        answers: list[Answer] = []
        left_out: Counter[LeftOutFor] = Counter()
        for group in map(self._in_seconds, groups):
            try:
                if self._only is None or self._only_sum is None or (group.key[self._only] and self._only_sum(group)):
                    answers.append(self._answer(group))
            except LeftOut as reason:
                host = NOTHING
                for name, field, place in self._keys:
                    if name == "SubmitHost":
                        with suppress(LeftOut):
                            host = _text(name, field, None if place is None else group.key[place])
                left_out[LeftOutFor(str(reason), host)] += group.records
        return answers, left_out

    def _in_seconds(self, group: aggregates.Group) -> aggregates.Group:
        """Return a group of jobs that have core-seconds as jobs of one core that ran for as many seconds."""
        for place, at in self._held:
            used = group.usage[at]
            if group.key[place] is None and used.known:
                seconds = used.sums.amount_runtime
                used = msgspec.structs.replace(used, sums=aggregates.AmountSums(seconds, seconds))
                usage = (*group.usage[:at], used, *group.usage[at + 1 :])
                key = (*group.key[:place], 1, *group.key[place + 1 :])
                return msgspec.structs.replace(group, key=key, runtime=seconds, usage=usage)
        return group

    def _answer(self, group: aggregates.Group) -> Answer:
        key = group.key
        benchmark, level = None, Decimal()
        for each, place in self._benchmarks:
            value = key[place]
            if isinstance(value, Decimal) and value:  # AUDITOR writes 0 for an unknown benchmark
                benchmark, level = each, check_level(value, each.score)
                break
        if self._benchmarks and benchmark is None:
            raise LeftOut(f"no score {' or '.join(each.score for each, _ in self._benchmarks)}: left out")
        sums = [read(group) for read in self._sums]
        alike = tuple([key[place] for place in self._alike])
        texts = self._texts.get(alike)
        if texts is None:
            texts = self._texts[alike] = {
                name: _text(name, field, None if place is None else key[place]) for name, field, place in self._keys
            }
        stored = {name: sums[at] for name, at in self._amounts}
        amounts = stored
        if self._cpu_times:
            # The jobs of a group are all plausible or all implausible.
            processors = int(texts["Processors"])
            possible = {
                name: plausible_cpu(stored[name], group.runtime, group.records, processors) for name in self._cpu_times
            }
            amounts = {**stored, **possible}
        return Answer(group, alike, texts, amounts, stored, benchmark, level)

    def _sum(self, field: AmountField) -> Callable[[aggregates.Group], Number]:
        """Return a function that sums a field over a group, and raises LeftOut if the jobs lack the component."""
        match field:
            case RecordField():
                return lambda group: group.runtime
            case ConstantField(value=value):
                each = Fraction(value)
                return lambda group: each * group.records
            case ComponentField(name=name, divide_by=divisor):
                place, at = self._places[aggregates.ComponentPresent(name)], self._summed.index(name)
                return partial(_component_sum, name, place, at, divisor)


def name_of_held(field: object) -> str | None:
    """Return the name of the held amount that a field counts, or None; records may have its total instead."""
    return field.name if isinstance(field, ComponentField) and field.divide_by == 1 and field.name in TOTALS else None


def _component_sum(name: str, place: int, at: int, divisor: int, group: aggregates.Group) -> Number:
    if not group.key[place]:
        raise LeftOut(f"no component {name}: left out")
    amount = group.usage[at].sums.amount
    return amount if divisor == 1 else Fraction(amount, divisor)


def _text(name: str, field: KeyField, value: aggregates.KeyValue) -> str:
    match field:
        case ConstantField():
            text = str(field.value)
        case MetaField():
            text = field.text(value if isinstance(value, str) else None)
        case ComponentField() | ScoreField():
            text = format_value(field, value)
    return str(whole_number(text, name)) if name in WHOLE else text


def format_value(field: ComponentField | ScoreField, value: object) -> str:
    """Return an amount or a score as text.

    Raises:
        LeftOut: the value is missing.
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


def check_level(value: Decimal, name: str) -> Decimal:
    """Return a benchmark's value unchanged.

    Raises:
        LeftOut: it does not fit APEL's column, which has seven digits before the point.
    """
    if not (value.is_finite() and 0 <= value < _MOST_LEVEL):
        raise LeftOut(f"{name} is {value:.6g}, not from 0 to {_MOST_LEVEL}: left out")
    return value


def whole_number(text: str, name: str) -> int:
    """Parse a number of processors or nodes.

    Raises:
        LeftOut: the text is not a whole number.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 20):  # noqa: PLR2004 more than any database keeps
        raise LeftOut(f"{name} is {text[:40]!r}, not a whole number: left out")
    return int(text)


def _score(benchmark: Benchmark) -> aggregates.ScoreValue:
    return aggregates.ScoreValue(benchmark.component, benchmark.score)


def _dimension(field: KeyField) -> aggregates.Dimension | None:
    match field:
        case MetaField(name=names):
            return aggregates.MetaValue(*names)
        case ComponentField(name=name):
            return aggregates.ComponentAmount(name)
        case ScoreField(name=name, component_name=component):
            return aggregates.ScoreValue(component, name)
        case ConstantField():
            return None
