"""Usage of GPUs by site and month, in the draft of a message that EGI has for clouds.

Format: https://docs.egi.eu/internal/accounting/accelerator-record (draft 4 of 2021: JSON, version 0.1). There is no
agreed one for batch jobs, so nothing is sent unless ``accelerators`` is configured; the text messages never have a
field for it, since APEL refuses what it does not know.

Jobs with the same number of accelerators make one record: ``Count`` times ``AvailableDuration`` is what they held.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from auditord_builtin.apel.config import AcceleratorConfig, ApelConfig, SummaryFields
from auditord_builtin.apel.fields import ComponentField, KeyField
from auditord_builtin.apel.messages.packing import MOST_BYTES, encoded_size
from auditord_builtin.apel.messages.rows import Message, Problem
from auditord_builtin.apel.messages.text import clean
from auditord_builtin.apel.months import Month
from auditord_builtin.apel.questions import LeftOut, Number, Question, conditions, site_of
from auditord_builtin.apel.summing import half_up
from auditord_hookspecs import Group, Records

_HEAD: Final = '{"Type": "APEL-accelerator-message", "Version": "0.1", "UsageRecords": ['
_TAIL: Final = "]}\n"
_FRAME: Final = 17_000
"""Bytes of signature, certificates, boundaries and the two above."""

_Key: TypeAlias = tuple[str, str, str | None, str | None, int]


@dataclass(slots=True)
class _Sums:
    """The jobs with so many accelerators."""

    available: int = 0
    active: Number = 0


async def accelerator_messages(
    config: ApelConfig, records: Records, site: str, month: Month, most_bytes: int = MOST_BYTES
) -> tuple[Sequence[Message], Sequence[Problem]]:
    """What the jobs of a site that ended in a month held of accelerators; nothing unless ``accelerators`` is set.

    Args:
        config: with ``accelerators`` and ``summary_fields``.
        records: where they are; asked for sums only.
        site: its name in GOCDB.
        month: of UTC.
        most_bytes: of a message once it is signed and encoded.
    """
    if config.accelerators is None or config.summary_fields is None:
        return (), ()
    summing = _Summing(config, config.accelerators, config.summary_fields)
    for where in conditions(config, (site,), month.window):
        answer = await records.aggregate(summing.question.query(where))
        for group in answer.groups:
            if site_of(config, group.key[0]) == site:
                summing.add(group)
    problems = [Problem(f"{site} {month}, accelerators", *each) for each in sorted(summing.left_out.items())]
    return _messages(summing.usage_records(site, month), site, month, most_bytes), problems


class _Summing:
    """The usage records of one site and month."""

    def __init__(self, config: ApelConfig, accelerators: AcceleratorConfig, fields: SummaryFields) -> None:
        self._accelerators = accelerators
        self._count = ComponentField(name=accelerators.component)
        self._fqan: KeyField = accelerators.fqan or fields.mandatory.VO
        self._record: KeyField = accelerators.associated_record or fields.mandatory.SubmitHost
        self._user = fields.optional.GlobalUserName
        self._sums: dict[_Key, _Sums] = {}
        self.left_out: Counter[str] = Counter()
        keys = [self._fqan, self._record, self._user, accelerators.model]
        active = [] if accelerators.active is None else [accelerators.active]
        present = [key for key in keys if key is not None]
        self.question = Question.asking(config, [*present, self._count], [self._count, *active], ())

    def add(self, group: Group) -> None:
        """Take up a group; jobs without accelerators are none of ours."""
        if not self._has_accelerators(group):
            return
        try:
            self._add(group)
        except LeftOut as reason:
            self.left_out[str(reason)] += group.records

    def usage_records(self, site: str, month: Month) -> Sequence[dict[str, Any]]:  # Any: JSON
        """As the draft has them."""
        return [self._usage_record(site, month, key, self._sums[key]) for key in sorted(self._sums, key=str)]

    def _has_accelerators(self, group: Group) -> bool:
        try:
            return bool(self.question.amount(self._count, group))
        except LeftOut:
            return False

    def _add(self, group: Group) -> None:
        active = self._accelerators.active
        busy = group.runtime if active is None else self.question.amount(active, group)
        key = (
            clean(self.question.text(self._fqan, group)),
            clean(self.question.text(self._record, group)),
            self._optional(self._user, group),
            self._optional(self._accelerators.model, group),
            self.question.whole(self._count, group, self._count.name),
        )
        sums = self._sums.setdefault(key, _Sums())
        sums.available += group.runtime
        sums.active += busy

    def _optional(self, field: KeyField | None, group: Group) -> str | None:
        return None if field is None else clean(self.question.text(field, group))

    def _usage_record(self, site: str, month: Month, key: _Key, sums: _Sums) -> dict[str, Any]:  # Any: JSON
        fqan, record, user, model, count = key
        made = {
            "MeasurementMonth": month.month,
            "MeasurementYear": month.year,
            "AssociatedRecordType": self._accelerators.associated_record_type,
            "AssociatedRecord": record,
            "GlobalUserName": user,
            "FQAN": fqan,
            "SiteName": clean(site),
            "Count": count,
            "AvailableDuration": sums.available,
            "ActiveDuration": half_up(sums.active),
            "Type": self._accelerators.type,
            "Model": model,
        }
        return {name: value for name, value in made.items() if value is not None}


def _messages(
    usage_records: Sequence[dict[str, Any]],  # Any: JSON
    site: str,
    month: Month,
    most_bytes: int,
) -> Sequence[Message]:
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
