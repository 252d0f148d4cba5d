"""Individual jobs, one record after the other."""

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final

from auditord_builtin.apel.config import ApelConfig, JobFields, JobLayout
from auditord_builtin.apel.fields import (
    AmountField,
    ComponentField,
    ConstantField,
    JobField,
    MetaField,
    RecordField,
    ScoreField,
)
from auditord_builtin.apel.infrastructure import batch_system_field, describe
from auditord_builtin.apel.messages import render_jobs
from auditord_builtin.apel.months import Month
from auditord_builtin.apel.questions import LeftOut, conditions, kept_level, known_text, site_of, whole_number
from auditord_builtin.apel.rows import JobRow, Problem
from auditord_builtin.apel.text import LONGEST, clean
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Record, RecordQuery, Records, Window
from auditord_hookspecs.aggregates import exact_score

_LENGTHS: Final = {"Queue": 100, "InfrastructureDescription": 100, "InfrastructureType": 20}
_NUMBERS: Final = frozenset({"Processors", "NodeCount", "MemoryReal", "MemoryVirtual"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def individual_jobs(
    config: ApelConfig, records: Records, window: Window, sites: Sequence[str] | None = None
) -> AsyncIterator[JobRow | Problem]:
    """The jobs of sites that stopped in the window, but none from before ``publish_since``; bad ones as problems.

    Args:
        config: with ``individual_job_fields``.
        records: are streamed, so memory stays bounded.
        window: of stop times.
        sites: by their names in GOCDB; None: all of ``sites_to_report``.
    """
    wanted = tuple(config.site.sites_to_report) if sites is None else tuple(sites)
    since = config.site.publish_since
    begin = window.start if since is None else max(window.start, since)
    if begin >= window.stop:
        return
    for where in conditions(config, wanted, Window(begin, window.stop)):
        async with records.stream(RecordQuery(where)) as found:
            async for record in found:
                if _site(config, record) in wanted and (job := job_row(config, record)) is not None:
                    yield job


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
    return site_of(config, _first(record, config.site.site_meta_field))


def _row(config: ApelConfig, record: Record, site: str) -> JobRow:
    if config.individual_job_fields is None:
        raise ValueError("individual jobs need individual_job_fields")
    stop, runtime = record.stop_time, record.runtime
    if stop is None or runtime is None or stop < record.start_time:
        raise LeftOut("it stops before it starts: left out")
    values = {
        **_infrastructure(config, record),
        "Site": clean(site),
        **_values(config.individual_job_fields, record),
        "WallDuration": str(runtime),
        "CpuDuration": str(_amount(config.individual_job_fields.mandatory.CpuDuration, record)),
        "StartTime": _seconds(record.start_time),
        "EndTime": _seconds(stop),
        **_service_level(config, record),
    }
    return JobRow(config.job_message, record.record_id, site, Month.of(stop), values)


def _values(fields: JobFields, record: Record) -> Mapping[str, str]:
    mandatory = fields.mandatory
    given: dict[str, JobField | None] = {
        "LocalJobId": mandatory.LocalJobId,
        "Processors": mandatory.Processors,
        "NodeCount": mandatory.NodeCount,
    }
    optional: Iterable[tuple[str, JobField | None]] = fields.optional
    given |= {name: field for name, field in optional if not name.startswith("ServiceLevel")}
    return {name: _value(name, field, record) for name, field in given.items() if field is not None}


def _infrastructure(config: ApelConfig, record: Record) -> Mapping[str, str]:
    """The description where no field gives one; none where ``site.ce`` is null."""
    field = batch_system_field(config)
    text = describe(config, () if field is None else (field.text(_first(record, field.name)),))
    return {} if text is None else {"InfrastructureDescription": text}


def _value(name: str, field: JobField, record: Record) -> str:
    text = _text(field, record)
    if name in _NUMBERS:
        return str(whole_number(text, name))
    if name == "LocalJobId":
        return _job_id(text)
    return clean(text, _LENGTHS.get(name, LONGEST))


def _job_id(text: str) -> str:
    """The id, still one of its kind if APEL cannot keep all of it."""
    cleaned = clean(text)
    if cleaned == text:
        return text
    return f"{cleaned[: LONGEST - 65]}-{hashlib.sha256(text.encode()).hexdigest()}"


def _text(field: JobField, record: Record) -> str:
    match field:
        case MetaField(name=names):
            return field.text(_first(record, names))
        case ConstantField(value=value):
            return str(value)
        case ComponentField(name=name):
            amounts = [each.amount for each in record.components if each.name == name]
            return known_text(field, sum(amounts) if amounts else None)
        case ScoreField():
            return known_text(field, _score(record, field.component_name, field.name))
        case RecordField(name=name, modify=part):
            return _of_record(record, name, part)


def _of_record(record: Record, name: str, part: str | None) -> str:
    if name == "record_id":
        return record.record_id
    if name == "runtime" or record.stop_time is None:
        return str(record.runtime)
    moment = record.start_time if name == "start_time" else record.stop_time
    return _seconds(moment) if part is None else str(getattr(moment, part))


def _amount(field: AmountField, record: Record) -> int:
    match field:
        case RecordField():
            return record.runtime or 0
        case ConstantField(value=value):
            return int(Fraction(value) + Fraction(1, 2))
        case ComponentField():
            return int(_text(field, record))


def _service_level(config: ApelConfig, record: Record) -> Mapping[str, str]:
    kind, value = _benchmark(config, record)
    level = f"{value.quantize(Decimal('0.001'), ROUND_HALF_UP):f}"
    if config.job_message is JobLayout.V4:
        return {"ServiceLevel": f"{{{kind}: {level}}}"}
    return {"ServiceLevelType": kind, "ServiceLevel": level}


def _benchmark(config: ApelConfig, record: Record) -> tuple[str, Decimal]:
    fields = None if config.individual_job_fields is None else config.individual_job_fields.optional
    if fields is not None and fields.ServiceLevel is not None:
        named = None if fields.ServiceLevelType is None else _text(fields.ServiceLevelType, record)
        return named or config.site.benchmark_type, _decimal(_text(fields.ServiceLevel, record))
    for benchmark in config.scores:
        if value := _score(record, benchmark.component, benchmark.score):  # AUDITOR writes 0 where it is not known
            return benchmark.type, kept_level(value, benchmark.score)
    raise LeftOut(f"no score {' or '.join(each.score for each in config.scores)}: left out")


def _decimal(text: str) -> Decimal:
    try:
        return kept_level(Decimal(text), "ServiceLevel")
    except ArithmeticError:
        raise LeftOut(f"ServiceLevel is {text[:40]!r}, no number: left out") from None


def _first(record: Record, keys: Sequence[str]) -> str | None:
    lists = [values for key in keys if (values := (record.meta or {}).get(key)) is not None]
    return lists[0][0] if lists and lists[0] else None


def _score(record: Record, component: str, score: str) -> Decimal | None:
    scores = next((each.scores for each in record.components if each.name == component), ())
    return next((exact_score(each.value) for each in scores if each.name == score), None)


def _seconds(moment: datetime) -> str:
    return str((moment - _EPOCH) // timedelta(seconds=1))
