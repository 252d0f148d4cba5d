"""Convert AUDITOR's rows into records: percent-decode names, and convert CPU times to seconds."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from auditord_builtin.auditor.source import Rows, Source
from auditord_builtin.auditor.units import KEPT_IN_MILLISECONDS, Units
from auditord_hookspecs import Component, ImportPage, ImportRow, InvalidRecord, Record, Table
from auditord_hookspecs.wire import decode_record, decode_records, format_time


class Conversion(msgspec.Struct, frozen=True):
    """The changes of records on their way in.

    Args:
        unquoted: whether ids and values of meta are percent-decoded: AUDITOR's collectors before 0.7 encoded them.
        in_milliseconds: components whose amounts are milliseconds, and become whole seconds, rounded half up.
        until: only records that stopped (open ones: started) before this instant have milliseconds; None: all have.
    """

    unquoted: bool = False
    in_milliseconds: frozenset[str] = frozenset()
    until: datetime | None = None

    def __str__(self) -> str:
        names = ", ".join(sorted(self.in_milliseconds))
        until = f" before {format_time(self.until)}" if self.until else ""
        return f"{'; percent-decoded' if self.unquoted else ''}{f'; milliseconds in {names}{until}' if names else ''}"

    def convert(self, record: Record) -> Record:
        """Return the record as it should be.

        Raises:
            InvalidRecord: a name is none after percent-decoding.
        """
        if self.in_milliseconds and self._is_old(record):
            record = msgspec.structs.replace(record, components=_in_seconds(record.components, self.in_milliseconds))
        return _unquoted(record) if self.unquoted else record

    def _is_old(self, record: Record) -> bool:
        return self.until is None or (record.stop_time or record.start_time) < self.until


class AuditorImporter:
    """Implements :class:`auditord_hookspecs.Importer` on one of AUDITOR's sources.

    Args:
        cores: components that say how many cores a job had, see :class:`Units`.
    """

    def __init__(self, source: Source, conversion: Conversion, cores: Sequence[str]) -> None:
        self.name = f"{source.name}{conversion}"
        self._source = source
        self._conversion = conversion
        self._cores = cores
        self._units = Units(cores)

    async def pages(self, position: str | None) -> AsyncGenerator[ImportPage, None]:
        """Read the source and convert its rows."""
        self._units = Units(self._cores)
        async with aclosing(self._source.rows(position)) as found:
            async for rows in found:
                yield self.page(rows)

    def remarks(self) -> Sequence[str | Table]:
        """Return the months of components that look like milliseconds."""
        return self._units.remarks()

    def page(self, rows: Rows) -> ImportPage:
        """Convert rows; one that is no record harms no other."""
        came, runtimes = _decoded(rows.texts)
        records = [self._convert(each) for each in came]
        return ImportPage(records, rows.position, rows.fraction, lambda place: _row(rows, place), runtimes)

    def _convert(self, came: Record | InvalidRecord) -> Record | InvalidRecord:
        if isinstance(came, InvalidRecord):
            return came
        try:
            record = self._conversion.convert(came)
        except InvalidRecord as error:
            return error
        self._units.add(came, record)
        return record


def _row(rows: Rows, place: int) -> ImportRow:
    return ImportRow(rows.places(place), rows.texts[place])


class _Kept(msgspec.Struct, gc=False):
    """The runtime of a row. AUDITOR computes it once, and does not update it when the times change."""

    runtime: Any = None  # Any: nothing has checked it


_kept: Final = msgspec.json.Decoder(_Kept)
_all_kept: Final = msgspec.json.Decoder(list[_Kept])


def _decoded(texts: Sequence[bytes]) -> tuple[Sequence[Record | InvalidRecord], Sequence[int | None]]:
    """Decode all rows together, so that they share equal values; one by one if a row is no record."""
    together = b"[%b]" % b",".join(texts)
    with suppress(InvalidRecord):
        records = decode_records(together)
        if len(records) == len(texts):  # a text that holds two, or none, is not one of them
            return records, [each.runtime for each in _all_kept.decode(together)]
    rows = [_decoded_alone(text) for text in texts]
    return [record for record, _ in rows], [runtime for _, runtime in rows]


def _decoded_alone(text: bytes) -> tuple[Record | InvalidRecord, int | None]:
    try:
        return decode_record(text), _kept.decode(text).runtime
    except InvalidRecord as error:
        return error, None


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
        meta = {key: tuple(map(_percent_decoded, values)) for key, values in meta.items()}
    return Record(_percent_decoded(record.record_id), record.start_time, record.components, record.stop_time, meta)


def _percent_decoded(name: str) -> str:
    if "%" not in name:
        return name
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"Percent-decoding '{name}' failed: it is not UTF-8 ({error.reason})") from error
