"""Find complete files in the drop folder, parse the records in their lines, and move the files to the results.

Programs that drop files can change the drop folder at any time, so all access goes through
:mod:`auditord_hookspecs.folders`. Results are the daemon's own copies, in folders that only it can write: ``done`` for
files that were read completely, ``failed`` for those that cannot be read, with the reason in a file beside them, and
``quarantine`` for the invalid lines of a file, under the file's name.
"""

import csv
import os
import shutil
import stat
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final

import msgspec
from msgspec.structs import replace
from pydantic import Field

from auditord_hookspecs import AuditordError, Component, InvalidRecord, LeftOut, Quarantined, Record, RunConfig, Score
from auditord_hookspecs.config import NonNegativeDuration
from auditord_hookspecs.folders import Folder, PrivateFolder, SharedFolder, UnsafePath, identity
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

_UNFINISHED: Final = (".tmp", ".part", ".swp", "~")
_LONGEST_NAME: Final = 200
"""The maximum length of a name in bytes. With additions, it must fit into the file system's 255."""

_RESERVE: Final = 256 << 20
"""Bytes that copies leave free, since the spool may be on the same file system."""


class FileChanged(AuditordError):
    """A file was changed or replaced while it was read.

    Remedy:
        none is needed; it is read again once unchanged. Programs should write elsewhere and rename into the folder.
    """


class Dropped(msgspec.Struct, frozen=True):
    """A complete file. Its identity changes if it is modified or replaced.

    ``changed`` is a POSIX time, since a user can set one that no calendar has.
    """

    name: str
    identity: str
    changed: float
    size: int


_CLOCKS_DIFFER: Final = 60.0
"""Seconds by which the clock of a file server may be ahead."""


def complete_files(folder: SharedFolder, now: datetime, settle: timedelta) -> tuple[list[Dropped], list[str]]:
    """Return the complete regular files, oldest first, and the names of those that are dated in the future."""
    found = [dropped for name in folder.names() if (dropped := _look(folder, name)) is not None]
    complete = [dropped for dropped in found if now.timestamp() - dropped.changed >= settle.total_seconds()]
    future = [dropped.name for dropped in found if dropped.changed - now.timestamp() > _CLOCKS_DIFFER]
    return sorted(complete, key=lambda dropped: (dropped.changed, dropped.name)), sorted(future)


def _look(folder: SharedFolder, name: str) -> Dropped | None:
    """Return the file; None if its name marks it as incomplete, or if it is missing or not a regular file."""
    if name.startswith(".") or name.endswith(_UNFINISHED):
        return None
    try:
        status = folder.status(name)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Dropped(name, identity(status), status.st_mtime, status.st_size)


def require_usable_name(folder: Folder, name: str) -> None:
    """Check the name of a file.

    Raises:
        UnsafePath: the name is too long, or not UTF-8.
    """
    encoded = os.fsencode(name)
    if len(encoded) > _LONGEST_NAME:
        raise UnsafePath(f"{folder.path}: {name[:40]}… is too long a name: use at most {_LONGEST_NAME} bytes")
    if encoded.decode(errors="replace") != name:
        raise UnsafePath(f"{folder.path}: the name {name!r} is not UTF-8: rename the file")


@contextmanager
def open_unchanged(folder: Folder, name: str, known: str) -> Generator[BinaryIO, None, None]:
    """Open a file that must not change until the end of the context.

    Raises:
        FileChanged: the file's identity is not the known one, at the start or at the end.
    """

    def refuse_other(file: BinaryIO) -> None:
        if identity(os.fstat(file.fileno())) != known:
            raise FileChanged(f"{folder.path / name} was written to while it was read")

    with folder.open_file(name) as file:
        refuse_other(file)
        yield file
        refuse_other(file)


class Results(msgspec.Struct, frozen=True):
    """The folders for collected files, for unusable ones, and for invalid lines."""

    done: PrivateFolder
    failed: PrivateFolder
    quarantine: PrivateFolder

    @classmethod
    @contextmanager
    def opened(cls, root: Path) -> Generator["Results", None, None]:
        """Open the folders below ``root``, and create missing ones.

        Raises:
            UnsafePath: a folder is a link, belongs to another user, or is writable by others.
        """
        with ExitStack() as stack:
            done, failed, quarantine = (
                stack.enter_context(PrivateFolder.opened(root, name)) for name in ("done", "failed", "quarantine")
            )
            yield cls(done, failed, quarantine)

    def require_room(self, size: int) -> None:
        """Check that a copy of the file fits on the disk.

        Raises:
            AuditordError: there is not enough free space.
        """
        if self.done.room() < size + _RESERVE:
            raise AuditordError(
                f"{self.done.path}: no room for {size} more bytes ({_RESERVE >> 20} MiB stay free): remove old files "
                "there, or set `results` to another folder"
            )


def put_away(folder: SharedFolder, file: Dropped, target: PrivateFolder) -> str:
    """Copy a processed file durably into a folder, remove the original, and return the copy's name.

    Raises:
        FileChanged: the file has changed. It stays, and the copy is discarded.
    """
    part = f".{file.name}.copy"
    with open_unchanged(folder, file.name, file.identity) as source, _create(target, part) as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(copy.fileno())
    if not folder.take_out(file.name, file.identity):
        target.remove(part)
        raise FileChanged(f"{folder.path / file.name} was replaced by another file while it was read")
    return target.rename(part, file.name)


def _create(target: PrivateFolder, name: str) -> BinaryIO:
    if target.exists(name):  # left by a killed daemon
        target.remove(name)
    return target.create(name)


def fail(folder: SharedFolder, file: Dropped, target: PrivateFolder, reason: str) -> None:
    """Move an unusable file into ``failed``, with the reason."""
    name = put_away(folder, file, target)
    with _create(target, f"{name}.reason") as text:
        text.write(f"{reason}\n".encode())


class RejectedLines:
    """The invalid lines of a file.

    They are appended to ``.<file>.part``. The length of the part is saved with the position in the file, so that lines
    that a killed daemon wrote after its last save are truncated again.
    """

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._part = f".{name}.part"

    def keep(self, length: int, lines: bytes) -> int:
        """Truncate the part to ``length`` bytes, append lines durably, and return the new length."""
        if not length and not lines:
            return 0
        with self._folder.open_to_write(self._part) as part:
            kept = min(length, part.seek(0, os.SEEK_END))
            part.truncate(kept)
            part.seek(kept)
            part.write(lines)
            part.flush()
            os.fsync(part.fileno())
        return kept + len(lines)

    def finish(self, length: int) -> None:
        """Rename the part to the name of the file, or remove it if ``length`` is 0. No-op without a part."""
        if not self._folder.exists(self._part):
            return
        if length:
            self._folder.rename(self._part, self._name)
        else:
            self._folder.remove(self._part)


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
        InvalidRecord: a column is missing, unknown or repeated, so that the file cannot be used.
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
    """Split a column into a component and the name of its score. Both can contain dots."""
    parts = name.removeprefix(_SCORE).split(".")
    for length in range(len(parts) - 1, 0, -1):
        if _AMOUNT + ".".join(parts[:length]) in header:
            return ".".join(parts[:length]), ".".join(parts[length:])
    return None


def _split(line: bytes) -> list[str]:
    try:
        rows = [*csv.reader([line.decode().rstrip("\r\n")], strict=True)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRecord(f"this is not a line of CSV in UTF-8 (one line per record): {error}") from error
    return rows[0] if rows else []


def read_line(config: FilesConfig, header: Sequence[str] | None, line: bytes) -> Converted:
    """Return the record in a line, and its missing optional components and labels.

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
        raise InvalidRecord(f"{column}: {row[column]!r} is not a whole number")
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
"""The maximum length of a line in bytes. A record of the wire contract has 10 kB."""


class Position(msgspec.Struct, frozen=True):
    """The position in a file, saved as JSON in the spool.

    Args:
        identity: the identity of the file in its current state.
        offset: the number of processed bytes.
        line: the number of processed lines.
        rejected: the size of the invalid lines, in bytes.
        whole: True if the whole file has been read, and only has to be moved.
    """

    identity: str
    offset: int = 0
    line: int = 0
    rejected: int = 0
    whole: bool = False

    @classmethod
    def restored(cls, identity: str, stored: Any) -> "Position":  # Any: JSON of the spool, or None
        """Return the stored position, or the beginning if the file has changed."""
        return cls(**stored) if stored is not None and stored["identity"] == identity else cls(identity)


@dataclass
class Part:
    """The outcomes of some lines, the invalid lines, and the position after the last line."""

    position: Position
    outcomes: Outcomes = field(default_factory=Outcomes)
    rejected: bytearray = field(default_factory=bytearray)


def read_part(config: FilesConfig, folder: Folder, name: str, position: Position) -> Part:
    """Read up to 1,000 lines from a position.

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
        while len(whole) == _LONGEST and not whole.endswith(b"\n"):  # too long: keep the beginning, skip the rest
            whole = file.readline(_LONGEST)
        number += bool(text)
        try:
            if text.strip():
                part.outcomes.add(read_line(config, header, text))
        except InvalidRecord as error:
            raw = {"file": name, "line": number, "header": header, "text": text.decode(errors="replace")}
            # The reason does not repeat the place, so that entries with equal reasons are counted together.
            part.outcomes.add(Quarantined(f"{name}:{number}", raw, str(error)))
            part.rejected += text if text.endswith(b"\n") else text + b"\n"
    part.position = replace(part.position, offset=file.tell(), line=number, whole=not text)
