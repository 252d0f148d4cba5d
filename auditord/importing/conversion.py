"""Changes of old records on their way in: names as they were meant, CPU times in seconds."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import unquote

import msgspec

from auditord.importing.source import Page
from auditord_hookspecs import Component, InvalidRecord, Record, Transform
from auditord_hookspecs.wire import decode_record, decode_records

KEPT_IN_MILLISECONDS: Final = "_milli"
"""AUDITOR's own script for the change of units keeps the old amount of ``X`` as ``X_milli``; ``X`` is right then."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The changes of records on their way in.

    Args:
        unquoted: whether ids and values of meta are percent-decoded: AUDITOR's collectors before 0.7 encoded them.
        in_milliseconds: components whose amounts are milliseconds, and become whole seconds, rounded half up.
        until: only records that stopped (open ones: started) before this instant have milliseconds; None: all have.
        transform: what every record meets before it is kept here.
    """

    unquoted: bool = False
    in_milliseconds: frozenset[str] = frozenset()
    until: datetime | None = None
    transform: Transform | None = field(default=None, repr=False)  # the position's file is named by the others

    def convert(self, record: Record) -> Record:
        """The record as it should be.

        Raises:
            InvalidRecord: a name is none after percent-decoding.
        """
        if self.in_milliseconds and self._is_old(record):
            record = msgspec.structs.replace(record, components=_in_seconds(record.components, self.in_milliseconds))
        record = _unquoted(record) if self.unquoted else record
        return record if self.transform is None else self.transform(record)

    def _is_old(self, record: Record) -> bool:
        return self.until is None or (record.stop_time or record.start_time) < self.until


@dataclass(frozen=True, slots=True)
class ConvertedRow:
    """A row that is a record."""

    place: int
    before: Record
    after: Record


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is none."""

    where: str
    reason: str
    text: bytes


def convert_page(page: Page, conversion: Conversion) -> tuple[list[ConvertedRow], list[BadRow]]:
    """The records of a page, and what is none."""
    good: list[ConvertedRow] = []
    bad: list[BadRow] = []
    decoded = _decoded_together(page.texts)
    for place, text in enumerate(page.texts):
        try:
            record = decoded[place] if decoded else decode_record(text)
            good.append(ConvertedRow(place, record, conversion.convert(record)))
        except InvalidRecord as error:
            bad.append(BadRow(page.places(place), str(error), text))
    return good, bad


def _decoded_together(texts: Sequence[bytes]) -> Sequence[Record]:
    """The records of all texts, which share what is the same; none if one of the texts is no record."""
    with suppress(InvalidRecord):
        records = decode_records(b"[%b]" % b",".join(texts))
        if len(records) == len(texts):  # a text that holds two, or none, is not one of them
            return records
    return ()


def _in_seconds(components: tuple[Component, ...], names: frozenset[str]) -> tuple[Component, ...]:
    present = {component.name for component in components}
    done = {name for name in names if name + KEPT_IN_MILLISECONDS in present}
    return tuple(
        Component(each.name, (each.amount + 500) // 1_000, each.scores) if each.name in names - done else each
        for each in components
    )


def _unquoted(record: Record) -> Record:
    meta = record.meta
    if meta is not None:
        meta = {key: tuple(map(_decoded, values)) for key, values in meta.items()}
    return Record(_decoded(record.record_id), record.start_time, record.components, record.stop_time, meta)


def _decoded(name: str) -> str:
    if "%" not in name:
        return name
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"Percent-decoding '{name}' failed: it is not UTF-8 ({error.reason})") from error
