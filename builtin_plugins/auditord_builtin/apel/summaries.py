"""The summary of a site's jobs in a month."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from math import lcm
from typing import Final

import msgspec

from auditord_builtin.apel.config import (
    AmountField,
    ApelConfig,
    KeyField,
    NormalisedAmountField,
    NormalisedField,
    RecordField,
    SummaryFields,
)
from auditord_builtin.apel.messages import (
    LeftOutJobs,
    Problem,
    Summaries,
    SummaryRow,
    clean,
    clean_name,
    render,
)
from auditord_builtin.apel.questions import (
    LONGEST_DESCRIPTION,
    Answer,
    Number,
    Question,
    batch_system_field,
    describe,
    describe_cpu,
    round_half_up,
)
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Records
from auditord_hookspecs.months import Month
from auditord_hookspecs.wording import counted

_THOUSANDTH: Final = Decimal("0.001")
_INFRASTRUCTURE: Final = 20
_RUNTIME: Final = RecordField(name="runtime")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


class _Levels:
    """Benchmark values as multiples of a common unit, since sums of fractions are slow."""

    def __init__(self, levels: Collection[Decimal]) -> None:
        ratios = {level: level.as_integer_ratio() for level in levels}
        self.unit = lcm(*[below for _, below in ratios.values()])
        """The number of units in a benchmark value of one."""
        self.whole = {level: above * (self.unit // below) for level, (above, below) in ratios.items()}
        """The number of units in each level."""


@dataclass(slots=True, eq=False)
class _Sums:
    """The running sums of a row. Amounts to normalise are multiplied by the benchmark's value."""

    row: SummaryRow
    jobs: int = 0
    wall: int = 0
    cpu: Number = 0
    normalised_wall: Number = 0
    normalised_cpu: Number = 0
    stops: list[datetime] = field(default_factory=list[datetime])
    batch_systems: set[str] = field(default_factory=set[str])
    implausible: list[Answer] = field(default_factory=list[Answer])

    def add(self, answer: Answer, level: int) -> None:
        """Add jobs whose benchmark value is ``level`` units."""
        group, amounts = answer.group, answer.amounts
        self.jobs += group.records
        self.wall += group.runtime
        self.cpu += amounts["cpu"]
        self.stops += (group.first_stop, group.last_stop)
        if answer.stored["cpu"] != amounts["cpu"]:
            self.implausible.append(answer)
        if "normalised_wall" in amounts:
            self.normalised_wall += amounts["normalised_wall"] * level
            self.normalised_cpu += amounts["normalised_cpu"] * level

    def result(self, unit: int, description: str | None) -> SummaryRow:
        """Return the row. ``unit`` is the number of units in a benchmark value of one."""
        return msgspec.structs.replace(
            self.row,
            infrastructure_description=description,
            jobs=self.jobs,
            wall=self.wall,
            cpu=round_half_up(self.cpu),
            normalised_wall=round_half_up(self.normalised_wall, unit),
            normalised_cpu=round_half_up(self.normalised_cpu, unit),
            earliest=(min(self.stops) - _EPOCH) // _SECOND,
            latest=(max(self.stops) - _EPOCH) // _SECOND,
        )


async def summaries(config: ApelConfig, records: Records, site: str, month: Month) -> Summaries:
    """Sum up a site's jobs that ended in a month. ``site`` is one of ``sites_to_report``. The store only adds up."""
    if config.summary_fields is None:
        raise ValueError("a summary needs summary_fields")
    fields = config.summary_fields
    answers, left_out = await _make_question(config, fields).ask(config, records, site, month.window)
    levels = _Levels({answer.level for answer in answers})
    rows: list[SummaryRow] = []
    remarks: list[Problem] = []
    given = fields.optional.InfrastructureDescription
    for sums in _add_up(config, site, month, answers, levels):
        if given is None:
            description = describe(config, sums.batch_systems)
        else:
            description = clean_name(str(given.value), LONGEST_DESCRIPTION)
        rows.append(sums.result(levels.unit, description))
        if sums.implausible:  # the jobs are still reported
            groups = [answer.group for answer in sums.implausible]
            jobs, wall = sum(group.records for group in groups), sum(group.runtime for group in groups)
            stored = sum(answer.stored["cpu"] for answer in sums.implausible)
            reported = sum(answer.amounts["cpu"] for answer in sums.implausible)
            first = f"{min(group.first_stop for group in groups):%Y-%m-%dT%H:%M:%SZ}"
            last = f"{max(group.last_stop for group in groups):%Y-%m-%dT%H:%M:%SZ}"
            ends = f"it ended at {first}" if jobs == 1 else f"they ended from {first} to {last}"
            found = counted(jobs, "job has an", "jobs have an")
            remarks.append(Problem(_subject(sums.row), f"{found} {describe_cpu(stored, wall, reported)}; {ends}"))
    good, held, problems = _check_rows(rows)
    left = [
        LeftOutJobs(clean(site), month, clean_name(why.submit_host), jobs, why.reason)
        for why, jobs in sorted(left_out.items())
    ]
    reasons: list[Problem] = []
    for reason, alike in groupby(left, lambda each: each.reason):
        reasons.append(Problem(f"{clean(site)} {month}", reason, sum(each.jobs for each in alike)))
    return Summaries(tuple(good), (*reasons, *problems, *remarks), tuple(held), tuple(left))


def _make_question(config: ApelConfig, fields: SummaryFields) -> Question:
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
    cpu_times = [name for name in ("cpu", "normalised_cpu") if name in amounts]
    given = {name: key for name, key in keys.items() if key is not None}
    return Question(given, amounts, config.scores, cpu_times=cpu_times)


def _base(field: NormalisedAmountField, default: AmountField) -> AmountField:
    if isinstance(field, NormalisedField):
        return default if field.base_value is None else field.base_value
    return _RUNTIME


def _add_up(config: ApelConfig, site: str, month: Month, answers: Sequence[Answer], levels: _Levels) -> Iterator[_Sums]:
    """Return the rows, sorted by key."""
    rows: dict[tuple[str, ...], _Sums] = {}
    known: dict[tuple[object, ...], _Sums] = {}  # most answers differ only in the benchmark's value
    normalised, whole = config.summary_message.normalised, levels.whole
    for answer in answers:
        benchmark, level = answer.benchmark, answer.level
        alike = (answer.alike, benchmark and benchmark.type, None if normalised else level)
        sums = known.get(alike)
        if sums is None:
            texts = answer.texts
            row = SummaryRow(
                layout=config.summary_message,
                site=clean(site),
                month=month,
                vo=clean(texts["VO"]),
                submit_host=clean_name(texts["SubmitHost"]),
                node_count=int(texts["NodeCount"]),
                processors=int(texts["Processors"]),
                benchmark="" if benchmark is None else benchmark.type,
                service_level=None if normalised else level.quantize(_THOUSANDTH, ROUND_HALF_UP),
                jobs=0,
                wall=0,
                cpu=0,
                global_user_name=clean_name(texts["GlobalUserName"]) if "GlobalUserName" in texts else None,
                vo_group=clean(texts["VOGroup"]) if "VOGroup" in texts else None,
                vo_role=clean(texts["VORole"]) if "VORole" in texts else None,
                infrastructure=clean_name(texts["Infrastructure"], _INFRASTRUCTURE)
                if "Infrastructure" in texts
                else None,
            )
            sums = known[alike] = rows.setdefault(row.key, _Sums(row))
            sums.row = min(sums.row, row, key=_spelling)  # a key can have several spellings
            if "batch_system" in texts:
                sums.batch_systems.add(texts["batch_system"])
        sums.add(answer, whole[level])
    return (rows[key] for key in sorted(rows))


def _check_rows(rows: Sequence[SummaryRow]) -> tuple[Sequence[SummaryRow], Sequence[SummaryRow], Sequence[Problem]]:
    """Return the accepted rows, the rows that APEL would refuse, and why. Validate one by one only if any is bad."""
    if not any(validate(message.text) for message in render(rows)):
        return rows, (), ()
    good: list[SummaryRow] = []
    held: list[SummaryRow] = []
    problems: list[Problem] = []
    for row in rows:
        faults = [fault.reason for message in render([row]) for fault in validate(message.text)]
        problems += [Problem(_subject(row), f"left out: {'; '.join(faults)}", row.jobs)] if faults else []
        (held if faults else good).append(row)
    return good, held, problems


def _subject(row: SummaryRow) -> str:
    return f"{row.site} {row.month} {row.vo} on {row.submit_host}, {row.processors} processors"


def _spelling(row: SummaryRow) -> tuple[str, ...]:
    texts = (row.vo, row.submit_host, row.global_user_name, row.vo_group, row.vo_role, row.infrastructure)
    return tuple([text or "" for text in texts])
