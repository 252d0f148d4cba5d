"""Convert rows from any of AUDITOR's sources: percent-decode names, and convert CPU times to seconds.

AUDITOR's Slurm collectors wrote CPU times in milliseconds before 0.11, and in seconds since. A job cannot use more CPU
time than its wall time on all its cores. Threads and rounding explain up to twice as much, so a CPU time above that is
most likely not in seconds.
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
"""The approximate maximum size of a page. A few pages are in memory at a time."""


class SourceFailed(AuditordError):
    """The source cannot be read, or not to its end. Records that were imported before are kept.

    Remedy:
        fix the problem in the message and run the same command again; it resumes where it stopped.
    """


class Rows(msgspec.Struct, frozen=True):
    """A page of rows of a source.

    Args:
        texts: each row as a JSON object of the wire contract, not yet validated.
        places: returns a description of a row's location, for messages.
        position: the position after these rows, from which the source can continue. Its format is up to the source.
        fraction: how much of the source has been read, from 0 to 1.
    """

    texts: Sequence[bytes]
    places: Callable[[int], str]
    position: str
    fraction: float


class Source(Protocol):
    """A place with AUDITOR's records."""

    @property
    def name(self) -> str:
        """The name of the source for messages, without secrets."""
        ...

    def rows(self, position: str | None) -> AsyncGenerator[Rows, None]:
        """Read all rows, or those after a position. Some rows before the position may be read again.

        Raises:
            SourceFailed: the source cannot be read to its end.
        """
        ...


async def in_pages(pieces: AsyncGenerator[Sequence[bytes], None]) -> AsyncGenerator[list[bytes], None]:
    """Combine lists of rows into pages of about the maximum size."""
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
    """The changes to make to imported records.

    Args:
        unquoted: percent-decode ids and meta values, which AUDITOR's collectors before 0.7 encoded.
        in_milliseconds: components to convert from milliseconds to whole seconds, rounded half up.
        until: only convert milliseconds in records that stopped (open ones: started) before this; None: in all.
    """

    unquoted: bool = False
    in_milliseconds: frozenset[str] = frozenset()
    until: datetime | None = None

    def __str__(self) -> str:
        names = ", ".join(sorted(self.in_milliseconds))
        until = f" before {format_time(self.until)}" if self.until else ""
        return f"{'; percent-decoded' if self.unquoted else ''}{f'; milliseconds in {names}{until}' if names else ''}"

    def convert(self, record: Record) -> Record:
        """Return the converted record.

        Raises:
            InvalidRecord: a name is not valid after percent-decoding.
        """
        is_old = self.until is None or (record.stop_time or record.start_time) < self.until
        if self.in_milliseconds and is_old:
            present = {component.name for component in record.components}
            names = {name for name in self.in_milliseconds if name + KEPT_IN_MILLISECONDS not in present}
            components = tuple(
                Component(each.name, (each.amount + 500) // 1_000, each.scores) if each.name in names else each
                for each in record.components
            )
            record = msgspec.structs.replace(record, components=components)
        if not self.unquoted:
            return record
        meta = record.meta
        if meta is not None:
            meta = {key: tuple(map(_percent_decode, values)) for key, values in meta.items()}
        return Record(_percent_decode(record.record_id), record.start_time, record.components, record.stop_time, meta)


class AuditorImporter:
    """Implements :class:`auditord_hookspecs.Importer` for one of AUDITOR's sources.

    Args:
        cores: the components with a job's number of cores, see :class:`Units`.
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
        """Convert a page of rows. Invalid rows become errors and do not affect the others."""
        decoded: list[Record | InvalidRecord] = []
        runtimes: list[int | None] = []
        together = b"[%b]" % b",".join(rows.texts)
        with suppress(InvalidRecord):  # records that are decoded together share equal values
            decoded = [*decode_records(together)]
            runtimes = [each.runtime for each in _runtimes.decode(together)]
        if len(decoded) != len(rows.texts):  # a row is not a record, or contains two or none
            decoded, runtimes = [], []
            for text in rows.texts:
                try:
                    record, runtime = decode_record(text), _runtime.decode(text).runtime
                except InvalidRecord as error:
                    decoded.append(error)
                    runtimes.append(None)
                else:
                    decoded.append(record)
                    runtimes.append(runtime)
        records = list(decoded)
        for place, original in enumerate(decoded):
            if not isinstance(original, InvalidRecord):
                try:
                    records[place] = converted = self._conversion.convert(original)
                    self._units.add(original, converted)
                except InvalidRecord as error:
                    records[place] = error

        def row(place: int) -> ImportRow:
            return ImportRow(rows.places(place), rows.texts[place])

        return ImportPage(records, rows.position, rows.fraction, row, runtimes)


class _Runtime(msgspec.Struct, gc=False):
    """The runtime of a row. AUDITOR computes it once, and does not update it when the times change."""

    runtime: Any = None  # Any: not validated


_runtime: Final = msgspec.json.Decoder(_Runtime)
_runtimes: Final = msgspec.json.Decoder(list[_Runtime])


def _percent_decode(name: str) -> str:
    if "%" not in name:
        return name
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"Percent-decoding '{name}' failed: it is not UTF-8 ({error.reason})") from error


KEPT_IN_MILLISECONDS: Final = "_milli"
"""AUDITOR's script for the change of units keeps the old amount of ``X`` as ``X_milli``. ``X`` is in seconds then."""

_OFTEN: Final = 0.5
"""A month's unit is in doubt from this share of records. With milliseconds, only idle jobs are below the limit."""


@dataclass(slots=True)
class MonthOfUnits:
    """Statistics of a component in the records that stopped in a month (in UTC).

    Args:
        month: the month, such as ``2024-02``.
        records: the number of records with the component, a wall time and cores.
        before: how many of these exceed twice their wall time on all cores before the conversion.
        after: how many do after the conversion.
    """

    month: str
    records: int = 0
    before: int = 0
    after: int = 0

    @property
    def looked_wrong(self) -> bool:
        """True if the month's amounts look like milliseconds before the conversion."""
        return self.before >= _OFTEN * self.records

    @property
    def looks_wrong(self) -> bool:
        """True if the month's amounts look like milliseconds after the conversion."""
        return self.after >= _OFTEN * self.records


class Units:
    """Collects statistics to recognise the units of CPU times."""

    def __init__(self, cores: Sequence[str]) -> None:
        self._cores = cores
        self._names: dict[str, bool] = {}
        self._months: dict[tuple[str, int, int], MonthOfUnits] = {}

    def add(self, before: Record, after: Record) -> None:
        """Count a record before and after conversion. Open records and those without wall time are ignored."""
        stop, runtime = before.stop_time, before.runtime
        if stop is None or not runtime or runtime < 0:
            return
        cores = next((each.amount for name in self._cores for each in before.components if each.name == name), 0)
        limit = 2 * runtime * cores
        for original, converted in zip(before.components, after.components, strict=True) if limit else ():
            name = original.name
            if name not in self._names:
                is_cpu_time = "cpu" in name.lower() and not name.endswith(KEPT_IN_MILLISECONDS)
                self._names[name] = is_cpu_time and name not in self._cores
            if self._names[name]:
                key = name, stop.year, stop.month
                if key not in self._months:
                    self._months[key] = MonthOfUnits(f"{stop.year:04}-{stop.month:02}")
                month = self._months[key]
                month.records += 1
                month.before += original.amount > limit
                month.after += converted.amount > limit

    def suspicious(self) -> Iterator[tuple[str, list[MonthOfUnits]]]:
        """Yield each component that has a month that looks like milliseconds, with all its months in order."""
        for name in sorted({name for name, *_ in self._months}):
            months = [self._months[key] for key in sorted(self._months) if key[0] == name]
            if any(month.looked_wrong or month.looks_wrong for month in months):
                yield name, months

    def remarks(self) -> Sequence[str | Table]:
        """Return a table of the components that look like milliseconds, or nothing if there are none.

        Consecutive months with the same verdict share a row.
        """
        rows: list[tuple[str, ...]] = []
        for name, months in self.suspicious():
            for alike, run in groupby(months, key=lambda month: (month.looked_wrong, month.looks_wrong)):
                looked_wrong, looks_wrong = alike
                unit = "converted from milliseconds" if looked_wrong else "seconds"
                of_run = list(run)
                records, before, after = (
                    sum(counts)
                    for counts in zip(*((each.records, each.before, each.after) for each in of_run), strict=True)
                )
                span = of_run[0].month if len(of_run) == 1 else f"{of_run[0].month} to {of_run[-1].month}"
                shares = f"{before:,} ({before / records:.1%})", f"{after:,} ({after / records:.1%})"
                rows.append((name, span, f"{records:,}", *shares, "looks like milliseconds" if looks_wrong else unit))
        return [_HEADING, Table(_COLUMNS, rows)] if rows else []


_HEADING: Final = "CPU times of more than 2 x wall time x cores, which look like milliseconds (--milliseconds NAME):"
_COLUMNS: Final = tuple(
    map(Column, ("component", "months", "records", "too large in AUDITOR", "too large as imported", "unit"))
)
