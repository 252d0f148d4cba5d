"""The summary of a site and month, from sums that the store makes: exact until each row is rounded once, half up.

The store groups by what fields read and by the scores of benchmarks. Expressions and functions are applied to its
answer; rows that become one by that, or are one to APEL's database, are added up.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Final

from auditord_builtin.apel.config import ApelConfig, SummaryFields
from auditord_builtin.apel.fields import AmountField, KeyField, NormalisedAmountField, NormalisedField, RecordField
from auditord_builtin.apel.infrastructure import LONGEST, batch_system_field, describe
from auditord_builtin.apel.messages import render
from auditord_builtin.apel.questions import Answer, Number, Question
from auditord_builtin.apel.rows import Problem, Summaries, SummaryRow
from auditord_builtin.apel.text import clean, clean_name
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Records
from auditord_hookspecs.months import Month

_THOUSANDTH: Final = Decimal("0.001")
_INFRASTRUCTURE: Final = 20
_RUNTIME: Final = RecordField(name="runtime")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class _Sums:
    """One row, as it grows; amounts to be normalised are kept by the value of the benchmark."""

    row: SummaryRow
    jobs: int = 0
    wall: int = 0
    cpu: Number = 0
    wall_by_score: defaultdict[Decimal, Number] = field(default_factory=lambda: defaultdict(int))
    cpu_by_score: defaultdict[Decimal, Number] = field(default_factory=lambda: defaultdict(int))
    stops: list[datetime] = field(default_factory=list[datetime])
    batch_systems: set[str] = field(default_factory=set[str])

    def add(self, answer: Answer) -> None:
        self.jobs += answer.group.records
        self.wall += answer.group.runtime
        self.cpu += answer.amounts["cpu"]
        self.stops += [answer.group.first_stop, answer.group.last_stop]
        if "normalised_wall" in answer.amounts:
            self.wall_by_score[answer.level] += answer.amounts["normalised_wall"]
            self.cpu_by_score[answer.level] += answer.amounts["normalised_cpu"]

    def result(self, description: str | None) -> SummaryRow:
        return replace(
            self.row,
            infrastructure_description=description,
            jobs=self.jobs,
            wall=self.wall,
            cpu=half_up(self.cpu),
            normalised_wall=half_up(_product(self.wall_by_score)),
            normalised_cpu=half_up(_product(self.cpu_by_score)),
            earliest=(min(self.stops) - _EPOCH) // timedelta(seconds=1),
            latest=(max(self.stops) - _EPOCH) // timedelta(seconds=1),
        )


async def summaries(config: ApelConfig, records: Records, site: str, month: Month) -> Summaries:
    """Sum up the jobs of a site, one of ``sites_to_report``, that ended in a month; records are asked for sums only."""
    if config.summary_fields is None:
        raise ValueError("a summary needs summary_fields")
    fields = config.summary_fields
    answers, left_out = await _question(config, fields).ask(config, records, site, month.window)
    rows = [_described(config, fields, sums) for sums in _added_up(config, site, month, answers)]
    good, held, problems = _checked(rows)
    left = [Problem(f"{site} {month}", *each) for each in sorted(left_out.items())]
    return Summaries(tuple(good), (*left, *problems), tuple(held))


def half_up(number: Number) -> int:
    """The nearest whole number; halves go up."""
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)


def _question(config: ApelConfig, fields: SummaryFields) -> Question:
    mandatory, optional = fields.mandatory, fields.optional
    keys: dict[str, KeyField | None] = {
        **{name: getattr(mandatory, name) for name in ("VO", "SubmitHost", "Processors")},
        **{name: getattr(optional, name) for name in ("NodeCount", "GlobalUserName", "VOGroup", "VORole")},
        "Infrastructure": optional.Infrastructure,
        "batch_system": batch_system_field(config),
    }
    amounts: dict[str, AmountField] = {"cpu": mandatory.CpuDuration}
    if config.summary_message.normalised:
        amounts["normalised_wall"] = _base(mandatory.NormalisedWallDuration, _RUNTIME)
        amounts["normalised_cpu"] = _base(mandatory.NormalisedCpuDuration, mandatory.CpuDuration)
    return Question({name: key for name, key in keys.items() if key is not None}, amounts, config.scores)


def _base(field: NormalisedAmountField, default: AmountField) -> AmountField:
    if isinstance(field, NormalisedField):
        return default if field.base_value is None else field.base_value
    return _RUNTIME


def _added_up(config: ApelConfig, site: str, month: Month, answers: Sequence[Answer]) -> Iterator[_Sums]:
    """The rows in the order of their keys."""
    rows: dict[tuple[str, ...], _Sums] = {}
    known: dict[tuple[object, ...], _Sums] = {}  # most answers differ in the value of the benchmark alone
    for answer in answers:
        alike = (answer.alike, answer.benchmark, None if config.summary_message.normalised else answer.level)
        if alike not in known:
            row = _row(config, site, month, answer)
            sums = known[alike] = rows.setdefault(row.key, _Sums(row))
            sums.row = min(sums.row, row, key=_spelling)  # of several spellings always the same one
            sums.batch_systems |= {answer.texts["batch_system"]} if "batch_system" in answer.texts else set()
        known[alike].add(answer)
    return (rows[key] for key in sorted(rows))


def _row(config: ApelConfig, site: str, month: Month, answer: Answer) -> SummaryRow:
    texts, benchmark, layout = answer.texts, answer.benchmark, config.summary_message
    return SummaryRow(
        layout=layout,
        site=clean(site),
        month=month,
        vo=clean(texts["VO"]),
        submit_host=clean_name(texts["SubmitHost"]),
        node_count=int(texts["NodeCount"]),
        processors=int(texts["Processors"]),
        benchmark="" if benchmark is None else benchmark.type,
        service_level=None if layout.normalised else answer.level.quantize(_THOUSANDTH, ROUND_HALF_UP),
        jobs=0,
        wall=0,
        cpu=0,
        global_user_name=clean_name(texts["GlobalUserName"]) if "GlobalUserName" in texts else None,
        vo_group=clean(texts["VOGroup"]) if "VOGroup" in texts else None,
        vo_role=clean(texts["VORole"]) if "VORole" in texts else None,
        infrastructure=clean_name(texts["Infrastructure"], _INFRASTRUCTURE) if "Infrastructure" in texts else None,
    )


def _described(config: ApelConfig, fields: SummaryFields, sums: _Sums) -> SummaryRow:
    given = fields.optional.InfrastructureDescription
    text = describe(config, sums.batch_systems) if given is None else clean_name(str(given.value), LONGEST)
    return sums.result(text)


def _checked(rows: Sequence[SummaryRow]) -> tuple[Sequence[SummaryRow], Sequence[SummaryRow], Sequence[Problem]]:
    """The rows that APEL takes, those that it would refuse, and why; rows are validated apart only if one is bad."""
    if not any(validate(message.text) for message in render(rows)):
        return rows, (), ()
    good: list[SummaryRow] = []
    held: list[SummaryRow] = []
    problems: list[Problem] = []
    for row in rows:
        faults = [fault.reason for message in render([row]) for fault in validate(message.text)]
        subject = f"{row.site} {row.month} {row.vo} on {row.submit_host}, {row.processors} processors"
        problems += [Problem(subject, f"left out: {'; '.join(faults)}", row.jobs)] if faults else []
        (held if faults else good).append(row)
    return good, held, problems


def _product(by_score: Mapping[Decimal, Number]) -> Number:
    """The sum of values times numbers, over one denominator: fractions would be reduced with each of them."""
    parts = [(*_ratio(value), number) for value, number in by_score.items()]
    below = lcm(*[denominator for _, denominator, _ in parts])
    return Fraction(sum([above * (below // denominator) * number for above, denominator, number in parts]), below)


@lru_cache(1_000)
def _ratio(value: Decimal) -> tuple[int, int]:
    return value.as_integer_ratio()


def _spelling(row: SummaryRow) -> tuple[str, ...]:
    texts = (row.vo, row.submit_host, row.global_user_name, row.vo_group, row.vo_role, row.infrastructure)
    return tuple([text or "" for text in texts])
