"""From a line of a file to a record.

NDJSON: one record of AUDITOR's wire form per line. CSV: a header, and one record per line with the columns

- ``record_id``, ``start_time`` and, unless the record is open, ``stop_time`` (as on the wire: 2026-01-02T03:04:05Z),
- ``meta.<name>``: a label; empty means none,
- ``amount.<component>``: a whole number; empty means that the record has no such component,
- ``score.<component>.<score>``: a number; empty means that the score is not known,
- ``runtime``: not read; it follows from the times,
- and those that the rules of the configuration name.

The columns of the tables of :mod:`auditord.client` have these names.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from auditord_builtin.files.config import FilesConfig
from auditord_hookspecs import Component, InvalidRecord, LeftOut, Record, Score
from auditord_hookspecs.mapping import build_components, build_meta, find_site, parse_number
from auditord_hookspecs.outcomes import Converted
from auditord_hookspecs.wire import decode_record, parse_time

SUFFIXES: Final = frozenset({".ndjson", ".jsonl", ".csv"})

_PLAIN: Final = frozenset({"record_id", "start_time", "stop_time", "runtime"})
_NEEDED: Final = ("record_id", "start_time")
_META: Final = "meta."
_AMOUNT: Final = "amount."
_SCORE: Final = "score."


def read_header(config: FilesConfig, line: bytes) -> Sequence[str]:
    """The columns of a CSV file.

    Raises:
        InvalidRecord: a column is missing, stands twice or is not known; the file cannot be used.
    """
    header = _split(line.removeprefix(b"\xef\xbb\xbf"))
    if missing := [name for name in _NEEDED if name not in header]:
        raise InvalidRecord(f"the first line has no column {', '.join(missing)}")
    if len(set(header)) != len(header):
        raise InvalidRecord("the first line names a column twice")
    if unknown := [name for name in header if not _is_known(config, name, header)]:
        raise InvalidRecord(
            f"nobody knows the columns {', '.join(map(repr, unknown))}: allowed are {', '.join(sorted(_PLAIN))}, "
            "meta.<name>, amount.<component>, score.<component>.<score> beside that component's amount, and what the "
            "collector's sites, meta and components name"
        )
    return header


def _is_known(config: FilesConfig, name: str, header: Sequence[str]) -> bool:
    if name.startswith(_SCORE):
        return _scored(name, header) is not None
    return name in _PLAIN or name.startswith((_META, _AMOUNT)) or name in config.columns


def _scored(name: str, header: Sequence[str]) -> tuple[str, str] | None:
    """The component that a column is a score of, and the score: both may have dots in their names."""
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
    """The record of a line, and what it lacks of the optional components and labels of the configuration.

    Raises:
        InvalidRecord: what is wrong with it.
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
    """Try a quarantined line again under today's configuration.

    Raises:
        InvalidRecord: what is still wrong.
    """
    return read_line(config, raw["header"], raw["text"].encode()).record
