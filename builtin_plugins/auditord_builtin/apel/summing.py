"""Summaries from sums that the store makes: exact until each row is rounded once, half up.

The store groups by what fields read and by the scores of benchmarks. Expressions and functions are applied to its
answer; rows that become one by that, or are one to APEL's database, are added up.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final

from auditord_builtin.apel.config import ApelConfig, Benchmark, SummaryFields
from auditord_builtin.apel.fields import AmountField, KeyField, NormalisedAmountField, NormalisedField
from auditord_builtin.apel.infrastructure import LONGEST, batch_system_field, describe
from auditord_builtin.apel.messages.rows import Problem, Summaries, SummaryRow
from auditord_builtin.apel.messages.summaries import render
from auditord_builtin.apel.messages.text import LONGEST as LONGEST_NAME
from auditord_builtin.apel.messages.text import clean, clean_name
from auditord_builtin.apel.months import Month
from auditord_builtin.apel.questions import LeftOut, Number, Question, conditions, kept_level, site_of
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Group, Records

_THOUSANDTH: Final = Decimal("0.001")
_INFRASTRUCTURE: Final = 20


@dataclass(slots=True, eq=False)
class _Sums:
    """One row, as it grows.

    Args:
        row: its texts and numbers that are not sums.
        wall_by_score: what is to be normalised, by the value of the benchmark.
        cpu_by_score: the same.
        batch_systems: those of its jobs, by name.
    """

    row: SummaryRow
    jobs: int = 0
    wall: int = 0
    cpu: Number = 0
    wall_by_score: defaultdict[Decimal, Number] = field(default_factory=lambda: defaultdict(int))
    cpu_by_score: defaultdict[Decimal, Number] = field(default_factory=lambda: defaultdict(int))
    stops: list[datetime] = field(default_factory=list[datetime])
    batch_systems: set[str] = field(default_factory=set[str])

    def result(self) -> SummaryRow:
        return replace(
            self.row,
            jobs=self.jobs,
            wall=self.wall,
            cpu=half_up(self.cpu),
            normalised_wall=half_up(_product(self.wall_by_score)),
            normalised_cpu=half_up(_product(self.cpu_by_score)),
            earliest=_epoch(min(self.stops)),
            latest=_epoch(max(self.stops)),
        )


async def summaries(config: ApelConfig, records: Records, site: str, month: Month) -> Summaries:
    """What the jobs of a site that ended in a month come to.

    Args:
        config: with ``summary_fields``.
        records: where they are; asked for sums only.
        site: its name in GOCDB, one of ``sites_to_report``.
        month: of UTC.
    """
    summing = _Summing(config, site, month)
    for where in conditions(config, (site,), month.window):
        answer = await records.aggregate(summing.question.query(where))
        summing.add(group for group in answer.groups if site_of(config, group.key[0]) == site)
    return summing.result()


def half_up(number: Number) -> int:
    """The nearest whole number; halves go up."""
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)


class _Summing:
    """The rows of one site and month."""

    def __init__(self, config: ApelConfig, site: str, month: Month) -> None:
        if config.summary_fields is None:
            raise ValueError("a summary needs summary_fields")
        self._config, self._site, self._month = config, site, month
        self._fields: SummaryFields = config.summary_fields
        self._normalised = config.summary_message.normalised
        self._rows: dict[tuple[str, ...], _Sums] = {}
        self._known: dict[tuple[object, ...], _Sums] = {}  # by what groups tell
        self._left_out: Counter[str] = Counter()
        self._batch_system = batch_system_field(config)
        self.question = _question(config, self._fields, self._batch_system)

    def add(self, groups: Iterator[Group]) -> None:
        for group in groups:
            try:
                self._add(group)
            except LeftOut as reason:
                self._left_out[str(reason)] += group.records

    def result(self) -> Summaries:
        problems = [Problem(f"{self._site} {self._month}", *each) for each in sorted(self._left_out.items())]
        good: list[SummaryRow] = []
        held: list[SummaryRow] = []
        rows = [self._described(self._rows[key]) for key in sorted(self._rows)]
        refused = any(validate(message.text) for message in render(rows))
        for row in rows:
            faults = [fault.reason for message in render([row]) for fault in validate(message.text)] if refused else []
            problems += [Problem(_named(row), f"left out: {'; '.join(faults)}", row.jobs)] if faults else []
            (held if faults else good).append(row)
        return Summaries(tuple(good), tuple(problems), tuple(held))

    def _add(self, group: Group) -> None:
        benchmark, value = self._benchmark(group)
        mandatory = self._fields.mandatory
        cpu = self.question.amount(mandatory.CpuDuration, group)
        sums = self._sums_of(group, benchmark, value)
        sums.jobs += group.records
        sums.wall += group.runtime
        sums.cpu += cpu
        sums.stops += [group.first_stop, group.last_stop]
        if self._normalised:
            sums.wall_by_score[value] += self._base(mandatory.NormalisedWallDuration, group.runtime, group)
            sums.cpu_by_score[value] += self._base(mandatory.NormalisedCpuDuration, cpu, group)

    def _sums_of(self, group: Group, benchmark: Benchmark, value: Decimal) -> _Sums:
        told = (*self.question.told(group), benchmark.type, None if self._normalised else value)
        if told not in self._known:
            self._known[told] = self._sums(self._row(group, benchmark, value))
            self._known[told].batch_systems |= self._batch_systems(group)
        return self._known[told]

    def _sums(self, row: SummaryRow) -> _Sums:
        known = self._rows.setdefault(row.key, _Sums(row))
        if _spelling(row) < _spelling(known.row):  # of several spellings always the same one
            known.row = row
        return known

    def _described(self, sums: _Sums) -> SummaryRow:
        row, given = sums.result(), self._fields.optional.InfrastructureDescription
        text = describe(self._config, sums.batch_systems) if given is None else clean_name(str(given.value), LONGEST)
        return replace(row, infrastructure_description=text)

    def _base(self, field: NormalisedAmountField, other: Number, group: Group) -> Number:
        if isinstance(field, NormalisedField):
            return other if field.base_value is None else self.question.amount(field.base_value, group)
        return group.runtime

    def _benchmark(self, group: Group) -> tuple[Benchmark, Decimal]:
        for benchmark in self._config.scores:
            if value := self.question.score(benchmark, group):  # AUDITOR writes 0 where a benchmark is not known
                return benchmark, kept_level(value, benchmark.score)
        raise LeftOut(f"no score {' or '.join(each.score for each in self._config.scores)}: left out")

    def _row(self, group: Group, benchmark: Benchmark, value: Decimal) -> SummaryRow:
        mandatory, optional = self._fields.mandatory, self._fields.optional
        layout = self._config.summary_message
        return SummaryRow(
            layout=layout,
            site=clean(self._site),
            month=self._month,
            vo=clean(self.question.text(mandatory.VO, group)),
            submit_host=clean_name(self.question.text(mandatory.SubmitHost, group)),
            node_count=self.question.whole(optional.NodeCount, group, "NodeCount"),
            processors=self.question.whole(mandatory.Processors, group, "Processors"),
            benchmark=benchmark.type,
            service_level=None if layout.normalised else value.quantize(_THOUSANDTH, ROUND_HALF_UP),
            jobs=0,
            wall=0,
            cpu=0,
            global_user_name=self._name(optional.GlobalUserName, group),
            vo_group=self._text(optional.VOGroup, group),
            vo_role=self._text(optional.VORole, group),
            infrastructure=self._name(optional.Infrastructure, group, _INFRASTRUCTURE),
        )

    def _batch_systems(self, group: Group) -> set[str]:
        return set() if self._batch_system is None else {self.question.text(self._batch_system, group)}

    def _text(self, field: KeyField | None, group: Group) -> str | None:
        return None if field is None else clean(self.question.text(field, group))

    def _name(self, field: KeyField | None, group: Group, longest: int = LONGEST_NAME) -> str | None:
        return None if field is None else clean_name(self.question.text(field, group), longest)


def _question(config: ApelConfig, fields: SummaryFields, batch_system: KeyField | None) -> Question:
    mandatory, optional = fields.mandatory, fields.optional
    keys = [mandatory.VO, mandatory.SubmitHost, mandatory.Processors, optional.NodeCount, optional.GlobalUserName]
    keys += [optional.VOGroup, optional.VORole, optional.Infrastructure, batch_system]
    amounts: list[AmountField] = [mandatory.CpuDuration]
    normalised = [mandatory.NormalisedCpuDuration, mandatory.NormalisedWallDuration]
    bases = [field.base_value for field in normalised if isinstance(field, NormalisedField)]
    amounts += [base for base in bases if base is not None]
    return Question.asking(config, [key for key in keys if key is not None], amounts, config.scores)


def _product(by_score: Mapping[Decimal, Number]) -> Number:
    return sum((Fraction(value) * number for value, number in by_score.items()), Fraction())


def _spelling(row: SummaryRow) -> tuple[str, ...]:
    texts: Mapping[str, str | None] = {
        "vo": row.vo,
        "host": row.submit_host,
        "user": row.global_user_name,
        "group": row.vo_group,
        "role": row.vo_role,
        "infrastructure": row.infrastructure,
    }
    return tuple([text or "" for text in texts.values()])


def _named(row: SummaryRow) -> str:
    return f"{row.site} {row.month} {row.vo} on {row.submit_host}, {row.processors} processors"


def _epoch(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
