"""The folder and its sub-folders: which files are complete, and where they go when they are dealt with.

``done`` has files that were read to their end, ``failed`` those that cannot be read at all, with the reason beside
them, ``quarantine`` the lines of a file that are no records, under the file's name. Every move is one rename within a
file system, made durable before anything is forgotten.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from auditord_hookspecs import AuditordError

DONE: Final = "done"
FAILED: Final = "failed"
QUARANTINE: Final = "quarantine"

_UNFINISHED: Final = (".tmp", ".part", ".swp", "~")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A file that nobody writes to any more.

    Args:
        path: where it is.
        identity: changes if it is written to or replaced by another file.
        changed: when it was written to last.
    """

    path: Path
    identity: str
    changed: datetime


def prepare(folder: Path) -> None:
    """Make the sub-folders.

    Raises:
        AuditordError: the folder is not there, or nothing can be moved in it.
    """
    try:
        for name in (DONE, FAILED, QUARANTINE):
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise AuditordError(f"{folder}: {error.strerror}: make it, and let this daemon write to it") from error


def complete_files(folder: Path, now: datetime, settle: timedelta) -> list[Dropped]:
    """The complete files, the oldest first.

    Raises:
        AuditordError: the folder cannot be read.
    """
    try:
        found = [dropped for path in folder.iterdir() if (dropped := _look(path)) is not None]
    except OSError as error:
        raise AuditordError(f"{folder}: {error.strerror}") from error
    complete = [dropped for dropped in found if now - dropped.changed >= settle]
    return sorted(complete, key=lambda dropped: (dropped.changed, dropped.path.name))


def _look(path: Path) -> Dropped | None:
    """The file, unless its name says that it is not finished; or it has gone in this moment."""
    if path.name.startswith(".") or path.name.endswith(_UNFINISHED) or path.is_symlink() or not path.is_file():
        return None
    try:
        return dropped_as(path)
    except FileNotFoundError:
        return None


def dropped_as(path: Path) -> Dropped:
    """The file as it is now."""
    status = path.stat()
    identity = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    return Dropped(path, identity, datetime.fromtimestamp(status.st_mtime, UTC))


def move(path: Path, place: str) -> Path:
    """Move a file into a sub-folder, beside one of the same name if there is one; durable when this returns."""
    target = next(name for name in _names(path.parent / place / path.name) if not name.exists())
    path.rename(target)
    for folder in (target.parent, path.parent):
        sync(folder)
    return target


def _names(path: Path) -> Iterator[Path]:
    yield path
    number = 1
    while True:
        yield path.with_name(f"{path.stem}.{number}{path.suffix}")
        number += 1


def fail(path: Path, reason: str) -> None:
    """Set a file aside that cannot be used, and say why."""
    target = move(path, FAILED)
    target.with_name(f"{target.name}.reason").write_text(f"{reason}\n")


def sync(path: Path) -> None:
    """Make a file or a folder durable."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class RejectedLines:
    """The lines of a file that are no records, as they are found.

    They grow in ``quarantine/.<file>.part``, whose length is remembered with the place in the file, so that what a
    killed daemon had written and not remembered is cut off again.

    Args:
        path: the file that they are in.
    """

    def __init__(self, path: Path) -> None:
        self._final = path.parent / QUARANTINE / path.name
        self._part = self._final.with_name(f".{path.name}.part")

    def keep(self, length: int, lines: bytes) -> int:
        """Put lines behind the first ``length`` bytes; returns the new length, durably."""
        if not length and not lines:
            return 0
        with self._part.open("r+b" if self._part.exists() else "x+b") as part:
            part.truncate(length)
            part.seek(length)
            part.write(lines)
            part.flush()
            os.fsync(part.fileno())
        return length + len(lines)

    def finish(self, length: int) -> None:
        """Give the lines the name of their file; does nothing if that is done, or there are none."""
        if length and self._part.exists():
            self._part.rename(next(name for name in _names(self._final) if not name.exists()))
            sync(self._final.parent)
        elif not length:
            self._part.unlink(missing_ok=True)
