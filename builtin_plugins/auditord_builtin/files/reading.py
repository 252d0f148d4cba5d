"""Parse the records in the lines of a file, some lines at a time."""

import csv
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final

import msgspec
from msgspec.structs import replace
from pydantic import Field

from auditord_builtin.files.places import SUFFIXES, limit_quarantine, open_unchanged
from auditord_hookspecs import Component, InvalidRecord, LeftOut, Quarantined, Record, RunConfig, Score
from auditord_hookspecs.config import NonNegativeDuration
from auditord_hookspecs.folders import Folder
from auditord_hookspecs.mapping import (
    ComponentRule,
    MetaRule,
    SiteRule,
    build_components,
    build_meta,
    columns,
    find_site,
    parse_number,
)
from auditord_hookspecs.outcomes import Converted, Outcomes
from auditord_hookspecs.wire import decode_record, parse_time


class FilesConfig(RunConfig):
    """Records in files, one per line, that another program writes."""

    folder: Path = Field(description="The folder in which files named *.ndjson, *.jsonl or *.csv are dropped.")
    results: Path | None = Field(
        default=None,
        description="The folder of done, failed and quarantine, owned by the daemon's user. Default: instances/<name> "
        "below state_dir, where users who drop files cannot write.",
    )
    settle: NonNegativeDuration = Field(
        default=timedelta(seconds=10), description="A file is complete when it has not changed for this long."
    )
    record_prefix: str = Field(
        default="", description='Prepended to each record\'s id, with a "-"; empty: ids stay unchanged.'
    )
    sites: tuple[SiteRule, ...] = Field(
        default=(), description="CSV: rules that determine the site from columns; empty: meta.site_id."
    )
    meta: tuple[MetaRule, ...] = Field(default=(), description="CSV: labels from other columns than meta.<name>.")
    components: tuple[ComponentRule, ...] = Field(
        default=(), description="CSV: components from other columns than amount.<name>."
    )

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(columns(self.sites, self.meta, self.components))


_PLAIN: Final = frozenset({"record_id", "start_time", "stop_time", "runtime"})
_NEEDED: Final = ("record_id", "start_time")
_META: Final = "meta."
_AMOUNT: Final = "amount."
_SCORE: Final = "score."
_NAMED: Final = 10
"""The number of unknown columns that an error names."""


_MAX_COLUMNS: Final = 1_000
_LONGEST_HEADER: Final = 32 << 10
"""The maximum length of a CSV file's first line in bytes. Each record repeats the names in it."""


class Header(msgspec.Struct, frozen=True):
    """The columns of a CSV file.

    Args:
        columns: all columns, in order.
        scores: the columns of scores and the scores' names, by component.
    """

    columns: Sequence[str]
    scores: Mapping[str, Sequence[tuple[str, str]]]

    @classmethod
    def of(cls, columns: Sequence[str]) -> "Header":
        """Return the header with these columns."""
        scores: dict[str, list[tuple[str, str]]] = {
            name.removeprefix(_AMOUNT): [] for name in columns if name.startswith(_AMOUNT)
        }
        for column in columns:
            parts = column.removeprefix(_SCORE).split(".") if column.startswith(_SCORE) else []
            for length in range(len(parts) - 1, 0, -1):  # both the component and the score can contain dots
                if (component := ".".join(parts[:length])) in scores:
                    scores[component].append((column, ".".join(parts[length:])))
                    break
        return cls(columns, scores)


def read_header(config: FilesConfig, line: bytes) -> Header:
    """Return the columns of a CSV file.

    Raises:
        InvalidRecord: there are too many columns, or one is missing, unknown or repeated, so that the file cannot be
            used.
    """
    if len(line) > _LONGEST_HEADER:
        raise InvalidRecord(f"the first line has more than {_LONGEST_HEADER} bytes")
    columns = _split(line.removeprefix(b"\xef\xbb\xbf"))
    if len(columns) > _MAX_COLUMNS:
        raise InvalidRecord(f"{len(columns)} columns: at most {_MAX_COLUMNS} are allowed")
    if missing := [name for name in _NEEDED if name not in columns]:
        raise InvalidRecord(f"the first line has no column {', '.join(missing)}")
    if len(set(columns)) != len(columns):
        raise InvalidRecord("the first line names a column twice")
    header = Header.of(columns)
    known = _PLAIN | config.columns | {column for scores in header.scores.values() for column, _ in scores}
    if unknown := [name for name in columns if name not in known and not name.startswith((_META, _AMOUNT))]:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise InvalidRecord(
            f"unknown columns: {', '.join(repr(name[:80]) for name in unknown[:_NAMED])}{more}: allowed are "
            f"{', '.join(sorted(_PLAIN))}, meta.<name>, amount.<component>, score.<component>.<score> beside that "
            "component's amount, and what the collector's sites, meta and components name"
        )
    return header


def _split(line: bytes) -> list[str]:
    try:
        rows = [*csv.reader([line.decode().rstrip("\r\n")], strict=True)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRecord(f"this is not a row of CSV in UTF-8 with all quotes closed: {error}") from error
    return rows[0] if rows else []


def read_line(config: FilesConfig, header: Header | None, line: bytes) -> Converted:
    """Return the record in a line, and its missing optional components and labels.

    Raises:
        InvalidRecord: the line is not valid.
    """
    left_out: list[LeftOut] = []
    record = decode_record(line) if header is None else _build_record(config, header, _split(line), left_out)
    if config.record_prefix:
        record = msgspec.structs.replace(record, record_id=f"{config.record_prefix}-{record.record_id}")
    return Converted(record, left_out)


def _build_record(config: FilesConfig, header: Header, values: Sequence[str], left_out: list[LeftOut]) -> Record:
    if len(values) != len(header.columns):
        raise InvalidRecord(f"{len(values)} values for {len(header.columns)} columns")
    row = dict(zip(header.columns, values, strict=True))
    stop = row.get("stop_time", "")
    own: list[Component] = []
    for name, columns_of_scores in header.scores.items():
        if text := row[_AMOUNT + name]:
            amount = parse_number(text)
            if amount != int(amount):
                raise InvalidRecord(f"{_AMOUNT}{name}: {text!r} is not a whole number")
            known = [(score, parse_number(row[column])) for column, score in columns_of_scores if row[column]]
            own.append(Component(name, int(amount), tuple(Score(score, float(value)) for score, value in known)))
    start_time, stop_time = parse_time(row["start_time"]), parse_time(stop) if stop else None
    components = (*own, *build_components(config.components, row, left_out))
    meta = {name.removeprefix(_META): (row[name],) for name in row if name.startswith(_META) and row[name]}
    site = {"site_id": (find_site(config.sites, row),)} if config.sites else {}
    labels = build_meta(config.meta, row, (*meta, *site))
    left_out += labels.left_out
    return Record(row["record_id"], start_time, components, stop_time, {**meta, **labels.meta, **site} or None)


def convert(config: FilesConfig, raw: Any) -> Record:  # Any: JSON from the quarantine
    """Convert a quarantined line again with the current configuration.

    Raises:
        InvalidRecord: the line is still not valid, or its text is not in the quarantine.
    """
    if "text" not in raw:
        raise InvalidRecord("the text is not here: correct the lines in the file, drop that, then discard this entry")
    header = None if raw["header"] is None else Header.of(raw["header"])
    return read_line(config, header, raw["text"].encode()).record


_RECORDS: Final = 1_000
_LINES: Final = 100_000
_BYTES: Final = 8 << 20
"""A batch ends after this many records, lines or bytes, to which each record adds the header, whose names it repeats. A
file of blank lines makes few batches."""

_LONGEST: Final = 1 << 20
"""The maximum length of a line in bytes. A record of the wire contract has 10 kB."""

_QUOTED: Final = re.compile(rb'(?:[^"]|"")*+')
"""A quoted field up to the quote that closes it."""

_ENTRIES: Final = 1_000
"""The maximum number of entries in the daemon's quarantine for one file."""

_ENTRY: Final = 256
"""The approximate size of an entry without header and text."""


class Position(msgspec.Struct, frozen=True):
    """The position in a file, saved as JSON in the spool.

    Args:
        identity: the identity of the file in its current state.
        offset: the number of processed bytes.
        line: the number of processed lines.
        rejected: the size of the header and the invalid lines in ``quarantine``, in bytes.
        entries: the number of entries in the daemon's quarantine.
        stored: the size of these entries, in bytes.
        more: the number of further invalid lines.
        whole: True if the whole file has been read, and only has to be moved.
    """

    identity: str
    offset: int = 0
    line: int = 0
    rejected: int = 0
    entries: int = 0
    stored: int = 0
    more: int = 0
    whole: bool = False

    @classmethod
    def restored(cls, identity: str, stored: Any) -> "Position":  # Any: JSON of the spool, or None
        """Return the stored position, or the beginning if the file has changed."""
        return cls(**stored) if stored is not None and stored["identity"] == identity else cls(identity)


@dataclass
class Part:
    """The outcomes of some lines, the bytes to append to the invalid lines, and the position after the last line."""

    position: Position
    outcomes: Outcomes = field(default_factory=Outcomes)
    rejected: bytearray = field(default_factory=bytearray)


def read_part(config: FilesConfig, folder: Folder, name: str, position: Position) -> Part:
    """Read up to 1,000 records from a position, and not many more lines without a record.

    Raises:
        InvalidRecord: no line of the file can be read, because of its name or its header.
        FileChanged: the file is not that of the position, or changes.
        UnsafePath: the file is not a regular file, or has other hard links.
        OSError: the disk failed.
    """
    suffix = PurePath(name).suffix
    if suffix not in SUFFIXES:
        raise InvalidRecord(f"the name must end in one of {', '.join(sorted(SUFFIXES))}, which tells the format")
    with open_unchanged(folder, name, position.identity) as file:
        first = file.readline(_LONGEST_HEADER + 1) if suffix == ".csv" else b""
        header = read_header(config, first) if suffix == ".csv" else None
        if position.offset or header is None:
            file.seek(position.offset)
        part = Part(replace(position, line=position.line or int(header is not None)))
        _Reader(config, file, name, first, header, part).read()
    return part


@dataclass
class _Reader:
    """Reads a part of a file.

    Args:
        first: the header's line, empty if the file has none.
    """

    config: FilesConfig
    file: BinaryIO
    name: str
    first: bytes
    header: Header | None
    part: Part

    def read(self) -> None:
        part, begin, text = self.part, self.file.tell(), b"\n"
        number, more = part.position.line, part.position.more
        end, last, records = begin + _BYTES, number + _LINES, part.outcomes.records
        while text and len(records) < _RECORDS and number < last and self.file.tell() < end:
            text, lines = self._read_row()
            if len(text) > _LONGEST:
                hint = f" in {lines} lines: is a quote not closed? The folder done has all of them" if lines > 1 else ""
                self._reject(number + 1, text[:_LONGEST], f"the row has more than {_LONGEST} bytes{hint}")
            elif text.strip():
                try:
                    part.outcomes.add(read_line(self.config, self.header, text))
                    end -= len(self.first)
                except InvalidRecord as error:
                    # The reason does not repeat the place, so that entries with equal reasons are counted together.
                    self._reject(number + 1, text, str(error))
            number += lines
        if part.position.more > more:
            digest = hashlib.blake2b(part.position.identity.encode(), digest_size=4).hexdigest()
            reason = (
                "and more invalid lines: the folder quarantine of the results has all of them, under the file's name"
            )
            raw = {"file": self.name, "lines": part.position.more}
            part.outcomes.add(Quarantined(f"{self.name}:more:{digest}", raw, reason))
        part.position = replace(part.position, offset=self.file.tell(), line=number, whole=not text)

    def _read_row(self) -> tuple[bytes, int]:
        """Return the next line, and 1. A row of CSV with line breaks in quotes has several lines.

        A row that is too long is read to its end, but only a little more than the allowed length is returned.
        """
        piece, row, lines, opened = b"\n", bytearray(), 0, True
        while piece and (opened or not piece.endswith(b"\n")):
            last = piece[-1:]
            piece = self.file.readline(_LONGEST)
            lines += last == b"\n" and bool(piece)
            # In the middle of a line, a quote begins a field only behind a comma.
            text = piece if last in {b"\n", b","} else b" " + piece
            opened = self.header is not None and leaves_quote_open(text, opened=opened and bool(row))
            if len(row) <= _LONGEST:
                row += piece
        return bytes(row), lines

    def _reject(self, number: int, text: bytes, reason: str) -> None:
        part, position = self.part, self.part.position
        if not (position.rejected or part.rejected):
            part.rejected += _end_line(self.first)
        part.rejected += _end_line(text)
        raw: dict[str, object] = {"file": self.name, "line": number}
        if len(text) < _LONGEST:
            raw |= {"header": self.header and self.header.columns, "text": text.decode(errors="replace")}
        stored = position.stored + _ENTRY + (len(self.first) + len(text) if "text" in raw else 0)
        allowed = limit_quarantine(os.fstat(self.file.fileno()).st_size)
        if position.entries >= _ENTRIES or stored > allowed:
            part.position = replace(position, more=position.more + 1)
            return
        part.position = replace(position, entries=position.entries + 1, stored=stored)
        # With a digest, since the next file may have the same name.
        digest = hashlib.blake2b(self.first + text, digest_size=4).hexdigest()
        part.outcomes.add(Quarantined(f"{self.name}:{number}:{digest}", raw, reason))


def leaves_quote_open(line: bytes, *, opened: bool) -> bool:
    """Return whether a quoted field is not closed at the end of a line of CSV, which begins within one if ``opened``.

    As for the csv module, a quote begins a quoted field only at the start of the field.
    """
    at = 0
    while opened or at < len(line):
        if not opened and line.startswith(b'"', at):
            opened, at = True, at + 1
        if opened:
            at = _QUOTED.match(line, at).end()  # type: ignore[union-attr]
            if at == len(line):
                return True
            opened = False
        at = line.find(b",", at) + 1
        if not at:
            break
    return False


def _end_line(line: bytes) -> bytes:
    return line if not line or line.endswith(b"\n") else line + b"\n"
