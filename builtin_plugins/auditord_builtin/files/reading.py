"""Read records from the lines of a dropped file, from a remembered position on."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final

import msgspec
from msgspec.structs import replace
from pydantic import Field

from auditord_builtin.files.folder import open_unchanged
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
        """The columns that the rules use."""
        return frozenset(columns(self.sites, self.meta, self.components))


SUFFIXES: Final = frozenset({".ndjson", ".jsonl", ".csv"})

_PLAIN: Final = frozenset({"record_id", "start_time", "stop_time", "runtime"})
_NEEDED: Final = ("record_id", "start_time")
_META: Final = "meta."
_AMOUNT: Final = "amount."
_SCORE: Final = "score."


def read_header(config: FilesConfig, line: bytes) -> Sequence[str]:
    """Return the columns of a CSV file.

    Raises:
        InvalidRecord: a column is missing, unknown, or there twice; the file cannot be used.
    """
    header = _split(line.removeprefix(b"\xef\xbb\xbf"))
    if missing := [name for name in _NEEDED if name not in header]:
        raise InvalidRecord(f"the first line has no column {', '.join(missing)}")
    if len(set(header)) != len(header):
        raise InvalidRecord("the first line names a column twice")
    if unknown := [name for name in header if not _is_known(config, name, header)]:
        raise InvalidRecord(
            f"unknown columns: {', '.join(map(repr, unknown))}: allowed are {', '.join(sorted(_PLAIN))}, "
            "meta.<name>, amount.<component>, score.<component>.<score> beside that component's amount, and what the "
            "collector's sites, meta and components name"
        )
    return header


def _is_known(config: FilesConfig, name: str, header: Sequence[str]) -> bool:
    if name.startswith(_SCORE):
        return _scored(name, header) is not None
    return name in _PLAIN or name.startswith((_META, _AMOUNT)) or name in config.columns


def _scored(name: str, header: Sequence[str]) -> tuple[str, str] | None:
    """Split a column into a component and the name of its score: both can have dots."""
    parts = name.removeprefix(_SCORE).split(".")
    for length in range(len(parts) - 1, 0, -1):
        if _AMOUNT + ".".join(parts[:length]) in header:
            return ".".join(parts[:length]), ".".join(parts[length:])
    return None


def _split(line: bytes) -> list[str]:
    try:
        rows = [*csv.reader([line.decode().rstrip("\r\n")], strict=True)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRecord(f"this is no line of CSV in UTF-8 (one line per record): {error}") from error
    return rows[0] if rows else []


def read_line(config: FilesConfig, header: Sequence[str] | None, line: bytes) -> Converted:
    """Return the record of a line, and its missing optional components and labels.

    Raises:
        InvalidRecord: the line is not valid.
    """
    left_out: list[LeftOut] = []
    record = decode_record(line) if header is None else _from_row(config, header, _split(line), left_out)
    if config.record_prefix:
        record = msgspec.structs.replace(record, record_id=f"{config.record_prefix}-{record.record_id}")
    return Converted(record, left_out)


def _from_row(config: FilesConfig, header: Sequence[str], values: Sequence[str], left_out: list[LeftOut]) -> Record:
    if len(values) != len(header):
        raise InvalidRecord(f"{len(values)} values for {len(header)} columns")
    row = dict(zip(header, values, strict=True))
    stop = row.get("stop_time", "")
    return Record(
        record_id=row["record_id"],
        start_time=parse_time(row["start_time"]),
        stop_time=parse_time(stop) if stop else None,
        components=(*_components(header, row), *build_components(config.components, row, left_out)),
        meta=_meta(config, row, left_out) or None,
    )


def _components(header: Sequence[str], row: Mapping[str, str]) -> tuple[Component, ...]:
    names = [name.removeprefix(_AMOUNT) for name in header if name.startswith(_AMOUNT) and row[name]]
    return tuple(Component(name, _whole(row, _AMOUNT + name), _scores(header, row, name)) for name in names)


def _whole(row: Mapping[str, str], column: str) -> int:
    number = parse_number(row[column])
    if number != int(number):
        raise InvalidRecord(f"{column}: {row[column]!r} is no whole number")
    return int(number)


def _scores(header: Sequence[str], row: Mapping[str, str], component: str) -> tuple[Score, ...]:
    found = ((column, _scored(column, header)) for column in header if column.startswith(_SCORE) and row[column])
    return tuple(Score(of[1], float(parse_number(row[column]))) for column, of in found if of and of[0] == component)


def _meta(config: FilesConfig, row: Mapping[str, str], left_out: list[LeftOut]) -> dict[str, tuple[str, ...]]:
    own = {name.removeprefix(_META): (row[name],) for name in row if name.startswith(_META) and row[name]}
    site = {"site_id": (find_site(config.sites, row),)} if config.sites else {}
    labels = build_meta(config.meta, row, (*own, *site))
    left_out += labels.left_out
    return {**own, **labels.meta, **site}


def convert(config: FilesConfig, raw: Any) -> Record:  # Any: JSON from the quarantine
    """Convert a quarantined line again with the current configuration.

    Raises:
        InvalidRecord: the line is still not valid.
    """
    return read_line(config, raw["header"], raw["text"].encode()).record


_LINES: Final = 1_000
_LONGEST: Final = 1_024**2
"""The size limit of a line in bytes. A record of the wire contract has 10 kB."""


class Position(msgspec.Struct, frozen=True):
    """The position in a file; JSON in the spool.

    Args:
        identity: of the file, in its current state.
        offset: the number of handled bytes.
        line: the number of handled lines.
        rejected: the size of the invalid lines, in bytes.
        whole: the file is complete, and only has to be moved.
    """

    identity: str
    offset: int = 0
    line: int = 0
    rejected: int = 0
    whole: bool = False

    @classmethod
    def restored(cls, identity: str, stored: Any) -> "Position":  # Any: JSON of the spool, or None
        """Return the stored position if the file has not changed, else the beginning."""
        return cls(**stored) if stored is not None and stored["identity"] == identity else cls(identity)


@dataclass
class Part:
    """Some lines: their outcomes, and the invalid ones. The position is after the last of them."""

    position: Position
    outcomes: Outcomes = field(default_factory=Outcomes)
    rejected: bytearray = field(default_factory=bytearray)


def read_part(config: FilesConfig, folder: Folder, name: str, position: Position) -> Part:
    """Read up to a thousand lines from a position on.

    Raises:
        InvalidRecord: the whole file cannot be read.
        FileChanged: the file is not that of the position, or changes.
        UnsafePath: it is not a regular file, or has other hard links.
        OSError: the disk failed.
    """
    suffix = PurePath(name).suffix
    if suffix not in SUFFIXES:
        raise InvalidRecord(f"a name ends in one of {', '.join(sorted(SUFFIXES))}; others say nothing of their form")
    with open_unchanged(folder, name, position.identity) as file:
        header = read_header(config, file.readline(_LONGEST)) if suffix == ".csv" else None
        if position.offset or header is None:
            file.seek(position.offset)
        part = Part(replace(position, line=position.line or int(header is not None)))
        _read_lines(config, file, name, header, part)
    return part


def _read_lines(config: FilesConfig, file: BinaryIO, name: str, header: Sequence[str] | None, part: Part) -> None:
    number, text = part.position.line, b"\n"
    last = number + _LINES
    while number < last and text:
        text = file.readline(_LONGEST)
        whole = text
        while len(whole) == _LONGEST and not whole.endswith(b"\n"):  # too long: keep its beginning, skip the rest
            whole = file.readline(_LONGEST)
        number += bool(text)
        try:
            if text.strip():
                part.outcomes.add(read_line(config, header, text))
        except InvalidRecord as error:
            raw = {"file": name, "line": number, "header": header, "text": text.decode(errors="replace")}
            part.outcomes.add(Quarantined(f"{name}:{number}", raw, f"line {number} of {name}: {error}"))
            part.rejected += text if text.endswith(b"\n") else text + b"\n"
    part.position = replace(part.position, offset=file.tell(), line=number, whole=not text)
