"""Rows of AUDITOR's records from any place, and their conversion: percent-decode names, CPU times in seconds.

AUDITOR's Slurm collectors wrote CPU times in milliseconds before 0.11, and in seconds since. A job cannot use more CPU
time than its wall time on all of its cores; one that seems to have used more than twice as much (threads, and rounding,
explain less) was most likely not counted in seconds.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec

from auditord_hookspecs import AuditordError, Column, Component, ImportPage, ImportRow, InvalidRecord, Record, Table
from auditord_hookspecs.wire import decode_record, decode_records, format_time

PAGE_ROWS: Final = 5_000
PAGE_BYTES: Final = 8 << 20
"""The approximate limit of a page; a few pages are in memory at a time."""


class SourceFailed(AuditordError):
    """The source cannot be read, or not to its end; no record that was imported before is lost.

    Remedy:
        mend the fault that the text names and give the same command again: it resumes where it stopped.
    """


class Rows(msgspec.Struct, frozen=True):
    """Some rows of a source.

    Args:
        texts: of each row, a JSON object in the form of the wire contract; nothing has checked it.
        places: where each row is, for people who look it up.
        position: a source continues behind these rows from here; only the source knows its form.
        fraction: how much of the source has been read, from 0 to 1.
    """

    texts: Sequence[bytes]
    places: Callable[[int], str]
    position: str
    fraction: float


class Source(Protocol):
    """One place that has AUDITOR's records."""

    @property
    def name(self) -> str:
        """The name of the source, for messages; without secrets."""
        ...

    def rows(self, position: str | None) -> AsyncGenerator[Rows, None]:
        """Read all rows, or those behind a position, and some of those before it where a source needs to be sure.

        Raises:
            SourceFailed: the source cannot be read to its end.
        """
        ...


async def in_pages(pieces: AsyncGenerator[Sequence[bytes], None]) -> AsyncGenerator[list[bytes], None]:
    """Gather pieces of rows into pages of about the size limit, without losing or cutting a row."""
    texts: list[bytes] = []
    size = 0
    async with aclosing(pieces):
        async for piece in pieces:
            texts += piece
            size += sum(map(len, piece))
            if len(texts) >= PAGE_ROWS or size >= PAGE_BYTES:
                yield texts
                texts, size = [], 0
    if texts:
        yield texts


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


KEPT_IN_MILLISECONDS: Final = "_milli"
"""AUDITOR's own script for the change of units keeps the old amount of ``X`` as ``X_milli``; ``X`` is right then."""

_OFTEN: Final = 0.5
"""From this share of a month's records on, its unit is in doubt: in milliseconds, only idle jobs stay below."""


@dataclass(slots=True)
class MonthOfUnits:
    """The records of a component and a month (of stop times, in UTC).

    Args:
        month: such as ``2024-02``.
        records: how many have it, with a wall time and cores to compare with.
        before: how many of them use more than twice their wall time on all cores, as they came.
        after: the same once converted.
    """

    month: str
    records: int = 0
    before: int = 0
    after: int = 0

    @property
    def looked_wrong(self) -> bool:
        """True if the month's amounts look like milliseconds as they came."""
        return self.before >= _OFTEN * self.records

    @property
    def looks_wrong(self) -> bool:
        """True if they still do after the conversion."""
        return self.after >= _OFTEN * self.records


class Units:
    """Adds up what records say about the units of their components."""

    def __init__(self, cores: Sequence[str]) -> None:
        self._cores = cores
        self._names: dict[str, bool] = {}
        self._months: dict[tuple[str, int, int], MonthOfUnits] = {}

    def add(self, before: Record, after: Record) -> None:
        """Compare a record before and after conversion. Open records and those without wall time are ignored."""
        stop, runtime = before.stop_time, before.runtime
        if stop is None or not runtime or runtime < 0:
            return
        limit = None
        for came, kept in zip(before.components, after.components, strict=True):
            if self._is_cpu_time(came.name):
                limit = limit or 2 * runtime * self._cores_of(before)
                if not limit:
                    return
                month = self._month(came.name, stop.year, stop.month)
                month.records += 1
                month.before += came.amount > limit
                month.after += kept.amount > limit

    def suspicious(self) -> Iterator[tuple[str, list[MonthOfUnits]]]:
        """The components with months that look like milliseconds, before or after; all of their months, in order."""
        for name in sorted({name for name, *_ in self._months}):
            months = [self._months[key] for key in sorted(self._months) if key[0] == name]
            if any(month.looked_wrong or month.looks_wrong for month in months):
                yield name, months

    def remarks(self) -> Sequence[str | Table]:
        """Return a table of the components that look like milliseconds; nothing if there are none.

        Neighbouring months of one verdict share a row.
        """
        rows = [
            (name, *_figures(list(run)), _verdict(*alike))
            for name, months in self.suspicious()
            for alike, run in groupby(months, key=lambda month: (month.looked_wrong, month.looks_wrong))
        ]
        return [_HEADING, Table(_COLUMNS, rows)] if rows else []

    def _cores_of(self, record: Record) -> int:
        for name in self._cores:
            for component in record.components:
                if component.name == name:
                    return component.amount
        return 0

    def _is_cpu_time(self, name: str) -> bool:
        known = self._names.get(name)
        if known is None:
            candidate = "cpu" in name.lower() and name not in self._cores
            known = self._names[name] = candidate and not name.endswith(KEPT_IN_MILLISECONDS)
        return known

    def _month(self, name: str, year: int, month: int) -> MonthOfUnits:
        key = name, year, month
        if key not in self._months:
            self._months[key] = MonthOfUnits(f"{year:04}-{month:02}")
        return self._months[key]


_HEADING: Final = "CPU times of more than 2 x wall time x cores, which look like milliseconds (--milliseconds NAME):"
_COLUMNS: Final = tuple(
    map(Column, ("component", "months", "records", "too large as they came", "as imported", "unit"))
)


def _figures(months: Sequence[MonthOfUnits]) -> tuple[str, ...]:
    records, before, after = (
        sum(counts) for counts in zip(*((each.records, each.before, each.after) for each in months), strict=True)
    )
    span = months[0].month if len(months) == 1 else f"{months[0].month} to {months[-1].month}"
    return span, f"{records:,}", f"{before:,} ({before / records:.1%})", f"{after:,} ({after / records:.1%})"


def _verdict(looked_wrong: bool, looks_wrong: bool) -> str:  # noqa: FBT001 as groupby has them
    if looks_wrong:
        return "looks like milliseconds"
    return "was milliseconds, is seconds" if looked_wrong else "seconds"
