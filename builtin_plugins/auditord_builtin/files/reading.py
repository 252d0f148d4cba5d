"""Some lines of a file at a time, from a position that is remembered."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, BinaryIO, Final

from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.folder import open_unchanged
from auditord_builtin.files.lines import SUFFIXES, read_header, read_line
from auditord_hookspecs import InvalidRecord, Quarantined
from auditord_hookspecs.folders import Folder
from auditord_hookspecs.outcomes import Outcomes

_LINES: Final = 1_000
_LONGEST: Final = 1_024**2
"""Bytes of a line; a record of the wire has 10 kB."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position in a file; JSON in the spool.

    Args:
        identity: of the file, in its present state.
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
    def restored(cls, identity: str, stored: Any) -> "Position":  # Any: JSON of the spool, or None
        """The stored position, if the file is the same still; else the beginning."""
        return cls(**stored) if stored is not None and stored["identity"] == identity else cls(identity)


@dataclass
class Part:
    """Some lines: their outcomes, and those that are no records; the position is behind the last of them."""

    position: Position
    outcomes: Outcomes = field(default_factory=Outcomes)
    rejected: bytearray = field(default_factory=bytearray)


def read_part(config: FilesConfig, folder: Folder, name: str, position: Position) -> Part:
    """The lines from a position on, up to a thousand.

    Raises:
        InvalidRecord: it is no file that can be read at all.
        FileChanged: it is another one than that of the position, or is being written to.
        UnsafePath: it is no regular file, or has other names.
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
        while len(whole) == _LONGEST and not whole.endswith(b"\n"):  # poison: keep its beginning, skip the rest of it
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
