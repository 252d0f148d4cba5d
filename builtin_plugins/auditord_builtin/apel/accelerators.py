"""Usage of GPUs by site and month, in the draft of a message that EGI has for clouds.

Format: https://docs.egi.eu/internal/accounting/accelerator-record (draft 4 of 2021: JSON, version 0.1). There is no
agreed one for batch jobs, so nothing is sent unless ``accelerators`` is configured; the text messages never have a
field for it, since APEL refuses what it does not know.

Jobs with the same number of accelerators make one record: ``Count`` times ``AvailableDuration`` is what they held.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from auditord_builtin.apel.config import AcceleratorConfig, ApelConfig, SummaryFields
from auditord_builtin.apel.fields import AmountField, ComponentField, KeyField, RecordField
from auditord_builtin.apel.messages import MOST_BYTES, Message, encoded_size
from auditord_builtin.apel.plausible import Number
from auditord_builtin.apel.questions import Answer, Question
from auditord_builtin.apel.rows import Problem
from auditord_builtin.apel.summaries import half_up
from auditord_builtin.apel.text import clean
from auditord_hookspecs import Records
from auditord_hookspecs.months import Month

_HEAD: Final = '{"Type": "APEL-accelerator-message", "Version": "0.1", "UsageRecords": ['
_TAIL: Final = "]}\n"
_FRAME: Final = 17_000
"""Bytes of signature, certificates, boundaries and the two above."""

UsageRecord: TypeAlias = dict[str, Any]  # Any: JSON
_Key: TypeAlias = tuple[str, str, str | None, str | None, int]


async def accelerator_messages(
    config: ApelConfig, records: Records, site: str, month: Month, most_bytes: int = MOST_BYTES
) -> tuple[Sequence[Message], Sequence[Problem]]:
    """The messages about accelerators of a site and month, and what is left out; none unless ``accelerators`` is set.

    ``most_bytes`` are of a message once it is signed and encoded.
    """
    accelerators, fields = config.accelerators, config.summary_fields
    if accelerators is None or fields is None:
        return (), ()
    answers, left_out = await _question(accelerators, fields).ask(config, records, site, month.window)
    problems = [Problem(f"{site} {month}, accelerators", why.reason, jobs) for why, jobs in sorted(left_out.items())]
    return _messages([*_usage_records(accelerators, site, month, answers)], site, month, most_bytes), problems


def _question(accelerators: AcceleratorConfig, fields: SummaryFields) -> Question:
    count = ComponentField(name=accelerators.component)
    keys: dict[str, KeyField | None] = {
        "FQAN": accelerators.fqan or fields.mandatory.VO,
        "AssociatedRecord": accelerators.associated_record or fields.mandatory.SubmitHost,
        "GlobalUserName": fields.optional.GlobalUserName,
        "Model": accelerators.model,
        "Count": count,
    }
    active: AmountField = accelerators.active or RecordField(name="runtime")
    return Question({name: key for name, key in keys.items() if key is not None}, {"active": active}, only=count)


def _usage_records(
    accelerators: AcceleratorConfig, site: str, month: Month, answers: Sequence[Answer]
) -> Iterator[UsageRecord]:
    """Sum up jobs with the same texts and the same number of accelerators."""
    sums: dict[_Key, tuple[int, Number]] = {}
    for answer in answers:
        texts = {name: clean(text) for name, text in answer.texts.items()}
        user, model = texts.get("GlobalUserName"), texts.get("Model")
        key = (texts["FQAN"], texts["AssociatedRecord"], user, model, int(texts["Count"]))
        available, active = sums.get(key, (0, 0))
        sums[key] = available + answer.group.runtime, active + answer.amounts["active"]
    for key in sorted(sums, key=str):
        yield _usage_record(accelerators, clean(site), month, key, sums[key])


def _usage_record(
    accelerators: AcceleratorConfig, site: str, month: Month, key: _Key, durations: tuple[int, Number]
) -> UsageRecord:
    """As the draft has it; another order of members would send every month again."""
    fqan, record, user, model, count = key
    available, active = durations
    made = {
        "MeasurementMonth": month.month,
        "MeasurementYear": month.year,
        "AssociatedRecordType": accelerators.associated_record_type,
        "AssociatedRecord": record,
        "GlobalUserName": user,
        "FQAN": fqan,
        "SiteName": site,
        "Count": count,
        "AvailableDuration": available,
        "ActiveDuration": half_up(active),
        "Type": accelerators.type,
        "Model": model,
    }
    return {name: value for name, value in made.items() if value is not None}


def _messages(usage_records: Sequence[UsageRecord], site: str, month: Month, most_bytes: int) -> Sequence[Message]:
    batches: list[list[str]] = []
    size = most_bytes
    for text in (json.dumps(record) for record in usage_records):
        more = encoded_size(f"{text}, ")
        if size + more > most_bytes:
            batches.append([])
            size = _FRAME
        batches[-1].append(text)
        size += more
    return [Message(_HEAD + ", ".join(batch) + _TAIL, len(batch), site, month) for batch in batches]
