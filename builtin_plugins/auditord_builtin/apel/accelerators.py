"""Messages about accelerators, in EGI's draft of a JSON format."""

import json
from collections.abc import Sequence
from typing import Final

from auditord_builtin.apel.config import (
    AmountField,
    ApelConfig,
    ComponentField,
    KeyField,
    RecordField,
)
from auditord_builtin.apel.messages import MOST_BYTES, Message, Problem, clean, measure_encoded
from auditord_builtin.apel.questions import Number, Question, round_half_up
from auditord_hookspecs import Records
from auditord_hookspecs.months import Month

_HEAD: Final = '{"Type": "APEL-accelerator-message", "Version": "0.1", "UsageRecords": ['
_TAIL: Final = "]}\n"
_FRAME: Final = 17_000
"""Bytes of signature, certificates, boundaries, ``_HEAD`` and ``_TAIL``."""


async def accelerator_messages(
    config: ApelConfig, records: Records, site: str, month: Month, most_bytes: int = MOST_BYTES
) -> tuple[Sequence[Message], Sequence[Problem]]:
    """Return a site's messages about accelerators in a month, and the problems. Both need ``accelerators`` to be set.

    ``most_bytes`` is the size limit of a message after signing and encoding.
    """
    accelerators, fields = config.accelerators, config.summary_fields
    if accelerators is None or fields is None:
        return (), ()
    count = ComponentField(name=accelerators.component)
    keys: dict[str, KeyField | None] = {
        "FQAN": accelerators.fqan or fields.mandatory.VO,
        "AssociatedRecord": accelerators.associated_record or fields.mandatory.SubmitHost,
        "GlobalUserName": fields.optional.GlobalUserName,
        "Model": accelerators.model,
        "Count": count,
    }
    active: AmountField = accelerators.active or RecordField(name="runtime")
    question = Question({name: key for name, key in keys.items() if key is not None}, {"active": active}, only=count)
    answers, left_out = await question.ask(config, records, site, month.window)
    problems = [Problem(f"{site} {month}, accelerators", why.reason, jobs) for why, jobs in sorted(left_out.items())]
    # Sum up jobs with the same texts and the same number of accelerators.
    sums: dict[tuple[str, str, str | None, str | None, int], tuple[int, Number]] = {}
    for answer in answers:
        texts = {name: clean(text) for name, text in answer.texts.items()}
        user, model = texts.get("GlobalUserName"), texts.get("Model")
        key = (texts["FQAN"], texts["AssociatedRecord"], user, model, int(texts["Count"]))
        available, busy = sums.get(key, (0, 0))
        sums[key] = available + answer.group.runtime, busy + answer.amounts["active"]
    batches: list[list[str]] = []
    size = most_bytes
    for key in sorted(sums, key=str):
        fqan, record, user, model, number = key
        available, busy = sums[key]
        # Keep the order of the members, or every month would be sent again.
        members = {
            "MeasurementMonth": month.month,
            "MeasurementYear": month.year,
            "AssociatedRecordType": accelerators.associated_record_type,
            "AssociatedRecord": record,
            "GlobalUserName": user,
            "FQAN": fqan,
            "SiteName": clean(site),
            "Count": number,
            "AvailableDuration": available,
            "ActiveDuration": round_half_up(busy),
            "Type": accelerators.type,
            "Model": model,
        }
        text = json.dumps({name: value for name, value in members.items() if value is not None})
        more = measure_encoded(f"{text}, ")
        if size + more > most_bytes:
            batches.append([])
            size = _FRAME
        batches[-1].append(text)
        size += more
    return [Message(_HEAD + ", ".join(batch) + _TAIL, len(batch), site, month) for batch in batches], problems
