"""Some lines of a file at a time, from a place that is remembered."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any, BinaryIO, Final

from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.folder import open_unchanged
from auditord_builtin.files.lines import SUFFIXES, read_header, read_line
from auditord_hookspecs import InvalidRecord, Quarantined, Record
from auditord_hookspecs.folders import Folder

_LINES: Final = 1_000
_LONGEST: Final = 1_024**2
"""Bytes of a line; a record of the wire has 10 kB."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a file has been read; JSON in the spool.

    Args:
        identity: which file, in which state.
        offset: bytes that are dealt with.
        line: lines that are dealt with.
        rejected: bytes of lines that are no records.
        whole: nothing is left but to move the file.
    """

    identity: str
    offset: int = 0
    line: int = 0
    rejected: int = 0
    whole: bool = False

    @classmethod
    def of(cls, identity: str, stored: Any) -> "Place":  # Any: JSON of the spool, or None
        """The place that was remembered, if the file is the same still; else the beginning."""
        if stored is None or stored["identity"] != identity:
            return cls(identity)
        return cls(**stored)

    def to_json(self) -> Any:  # Any: JSON for the spool
        """What :meth:`of` reads."""
        return asdict(self)


@dataclass
class Part:
    """What some lines hold.

    Args:
        offset: bytes up to behind the last of them.
        line: lines up to the last of them.
        records: in their order.
        quarantined: lines that are no records.
        rejected: these lines as they are.
        at_end: nothing follows.
    """

    offset: int
    line: int
    records: list[Record] = field(default_factory=list[Record])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    rejected: bytearray = field(default_factory=bytearray)
    at_end: bool = False


def read_part(config: FilesConfig, folder: Folder, name: str, place: Place) -> Part:
    """The lines from a place on, up to a thousand.

    Raises:
        InvalidRecord: it is no file that can be read at all.
        FileChanged: it is another one than that of the place, or is being written to.
        UnsafePath: it is no regular file, or has other names.
        OSError: the disk failed.
    """
    suffix = PurePath(name).suffix
    if suffix not in SUFFIXES:
        raise InvalidRecord(f"a name ends in one of {', '.join(sorted(SUFFIXES))}; others say nothing of their form")
    with open_unchanged(folder, name, place.identity) as file:
        header = read_header(config, file.readline(_LONGEST)) if suffix == ".csv" else None
        if place.offset or header is None:
            file.seek(place.offset)
        part = Part(file.tell(), place.line or int(header is not None))
        _read_lines(config, file, name, header, part)
    return part


def _read_lines(config: FilesConfig, file: BinaryIO, name: str, header: Sequence[str] | None, part: Part) -> None:
    last = part.line + _LINES
    while part.line < last and not part.at_end:
        text = file.readline(_LONGEST)
        whole = text
        while len(whole) == _LONGEST and not whole.endswith(b"\n"):  # poison: keep its beginning, skip the rest of it
            whole = file.readline(_LONGEST)
        part.at_end = not text
        part.line += bool(text)
        part.offset = file.tell()
        if text.strip():
            _add(config, name, header, part, text)


def _add(config: FilesConfig, name: str, header: Sequence[str] | None, part: Part, text: bytes) -> None:
    try:
        part.records.append(read_line(config, header, text))
    except InvalidRecord as error:
        raw = {"file": name, "line": part.line, "header": header, "text": text.decode(errors="replace")}
        part.quarantined.append(Quarantined(f"{name}:{part.line}", raw, f"line {part.line} of {name}: {error}"))
        part.rejected += text if text.endswith(b"\n") else text + b"\n"
