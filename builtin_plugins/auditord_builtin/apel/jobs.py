"""Individual jobs, one record after the other."""

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final

from auditord_builtin.apel import fields
from auditord_builtin.apel.config import ApelConfig, JobFields, JobLayout
from auditord_builtin.apel.infrastructure import batch_system_field, describe
from auditord_builtin.apel.messages import render_jobs
from auditord_builtin.apel.plausible import plausible_cpu, reported_as
from auditord_builtin.apel.questions import LeftOut, conditions, kept_level, known_text, site_of, whole_number
from auditord_builtin.apel.rows import JobRow, Problem
from auditord_builtin.apel.text import LONGEST, clean
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Record, RecordQuery, Records, Window
from auditord_hookspecs.aggregates import amount_of, exact_score, meta_value
from auditord_hookspecs.months import Month

_LENGTHS: Final = {"Queue": 100, "InfrastructureDescription": 100, "InfrastructureType": 20}
_OTHERWISE: Final = frozenset({"CpuDuration", "ServiceLevel", "ServiceLevelType"})
_NUMBERS: Final = frozenset({"Processors", "NodeCount", "MemoryReal", "MemoryVirtual"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def individual_jobs(
    config: ApelConfig, records: Records, window: Window, sites: Sequence[str] | None = None
) -> AsyncIterator[JobRow | Problem]:
    """The jobs of sites that stopped in the window, but none from before ``publish_since``; bad ones as problems.

    Records are streamed, so memory stays bounded. Without ``sites`` (names in GOCDB) all of ``sites_to_report`` count.
    """
    wanted = tuple(config.site.sites_to_report) if sites is None else tuple(sites)
    begin = max(window.start, config.site.publish_since or window.start)
    if begin >= window.stop:
        return
    for where in conditions(config, wanted, Window(begin, window.stop)):
        async with records.stream(RecordQuery(where)) as found:
            async for record in found:
                if _site(config, record) not in wanted or (job := job_row(config, record)) is None:
                    continue
                yield job
                if isinstance(job, JobRow) and job.remark is not None:
                    yield job.remark


def job_row(config: ApelConfig, record: Record) -> JobRow | Problem | None:
    """A record as a job of APEL, or why it cannot be one; None if it is of no site that is reported."""
    site = _site(config, record)
    if site is None:
        return None
    try:
        row = _row(config, record, site)
    except LeftOut as reason:
        return Problem(record.record_id, str(reason), 1)
    faults = [fault.reason for message in render_jobs([row]) for fault in validate(message.text)]
    return Problem(record.record_id, f"left out: {'; '.join(faults)}", 1) if faults else row


def _site(config: ApelConfig, record: Record) -> str | None:
    return site_of(config, meta_value(record, config.site.site_meta_field))


def _row(config: ApelConfig, record: Record, site: str) -> JobRow:
    chosen = config.individual_job_fields
    if chosen is None:
        raise ValueError("individual jobs need individual_job_fields")
    stop, runtime = record.stop_time, record.runtime
    if stop is None or runtime is None or stop < record.start_time:
        raise LeftOut("it stops before it starts: left out")
    batch_system = batch_system_field(config)
    description = describe(
        config, () if batch_system is None else (batch_system.text(meta_value(record, batch_system.name)),)
    )
    texts = {name: _value(name, field, record) for name, field in _fields(chosen)}
    stored = _amount(chosen.mandatory.CpuDuration, record)
    cpu = plausible_cpu(stored, runtime, 1, int(texts["Processors"]))
    values = {
        **({} if description is None else {"InfrastructureDescription": description}),
        "Site": clean(site),
        **texts,
        "WallDuration": str(runtime),
        "CpuDuration": str(cpu),
        "StartTime": _seconds(record.start_time),
        "EndTime": _seconds(stop),
        **_service_level(config, chosen, record),
    }
    remark = None if cpu == stored else Problem(record.record_id, f"an {reported_as(stored, runtime, cpu)}")
    return JobRow(config.job_message, record.record_id, site, Month.of(stop), values, remark)


def _fields(chosen: JobFields) -> Iterator[tuple[str, fields.JobField]]:
    for section in (chosen.mandatory, chosen.optional):
        named: Iterable[tuple[str, fields.JobField | None]] = section
        yield from ((name, field) for name, field in named if field is not None and name not in _OTHERWISE)


def _value(name: str, field: fields.JobField, record: Record) -> str:
    text = _text(field, record)
    if name in _NUMBERS:
        return str(whole_number(text, name))
    cleaned = clean(text, _LENGTHS.get(name, LONGEST))
    if name != "LocalJobId" or cleaned == text:
        return cleaned
    # Still one of its kind if APEL cannot keep all of it.
    return f"{cleaned[: LONGEST - 65]}-{hashlib.sha256(text.encode()).hexdigest()}"


def _text(field: fields.JobField, record: Record) -> str:
    match field:
        case fields.MetaField(name=names):
            return field.text(meta_value(record, names))
        case fields.ConstantField(value=value):
            return str(value)
        case fields.ComponentField(name=name):
            return known_text(field, amount_of(record, name))
        case fields.ScoreField():
            return known_text(field, _score(record, field.component_name, field.name))
        case fields.RecordField(name=name, modify=part):
            value = getattr(record, name)
            moment = getattr(value, part) if part is not None else value
            return _seconds(moment) if isinstance(moment, datetime) else str(moment)


def _amount(field: fields.AmountField, record: Record) -> int:
    match field:
        case fields.RecordField():
            return record.runtime or 0
        case fields.ConstantField(value=value):
            return int(Fraction(value) + Fraction(1, 2))
        case fields.ComponentField():
            return int(_text(field, record))


def _service_level(config: ApelConfig, chosen: JobFields, record: Record) -> Mapping[str, str]:
    kind, value = _benchmark(config, chosen, record)
    level = f"{value.quantize(Decimal('0.001'), ROUND_HALF_UP):f}"
    if config.job_message is JobLayout.V4:
        return {"ServiceLevel": f"{{{kind}: {level}}}"}
    return {"ServiceLevelType": kind, "ServiceLevel": level}


def _benchmark(config: ApelConfig, chosen: JobFields, record: Record) -> tuple[str, Decimal]:
    given, kind = chosen.optional.ServiceLevel, chosen.optional.ServiceLevelType
    if given is not None:
        text, named = _text(given, record), None if kind is None else _text(kind, record)
        try:
            return named or config.site.benchmark_type, kept_level(Decimal(text), "ServiceLevel")
        except ArithmeticError:
            raise LeftOut(f"ServiceLevel is {text[:40]!r}, no number: left out") from None
    for benchmark in config.scores:
        if value := _score(record, benchmark.component, benchmark.score):  # AUDITOR writes 0 where it is not known
            return benchmark.type, kept_level(value, benchmark.score)
    raise LeftOut(f"no score {' or '.join(each.score for each in config.scores)}: left out")


def _score(record: Record, component: str, score: str) -> Decimal | None:
    scores = next((each.scores for each in record.components if each.name == component), ())
    return next((exact_score(each.value) for each in scores if each.name == score), None)


def _seconds(moment: datetime) -> str:
    return str((moment - _EPOCH) // timedelta(seconds=1))
