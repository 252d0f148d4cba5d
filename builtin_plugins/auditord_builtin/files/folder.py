"""The dropped files that are complete, and the folders of their results.

Those who drop files may change the drop folder at any moment, so it is worked in through
:mod:`auditord_hookspecs.folders`. Results are the daemon's own copies, in folders that only it can write: ``done`` has
files that were read to their end, ``failed`` those that cannot be read at all, with the reason beside them,
``quarantine`` the lines of a file that are no records, under the file's name.
"""

import os
import shutil
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import Folder, PrivateFolder, SharedFolder, UnsafePath, identity

_UNFINISHED: Final = (".tmp", ".part", ".swp", "~")
_LONGEST_NAME: Final = 200
"""Bytes; what is added to a name must still fit the file system's 255."""

_RESERVE: Final = 256 << 20
"""Bytes that copies leave free: the queue of records may be on the same file system."""


class FileChanged(AuditordError):
    """A file was written to, or replaced, while it was read.

    Remedy:
        none: it is read again once it has settled. Programs should write elsewhere and rename into the folder.
    """


@dataclass(frozen=True, slots=True)
class Dropped:
    """A file that is complete; another one of its name, or a later state of it, has another identity."""

    name: str
    identity: str
    changed: datetime
    size: int


def complete_files(folder: SharedFolder, now: datetime, settle: timedelta) -> list[Dropped]:
    """Return the complete files, the oldest first; links, folders and the like are none."""
    found = [dropped for name in folder.names() if (dropped := _look(folder, name)) is not None]
    complete = [dropped for dropped in found if now - dropped.changed >= settle]
    return sorted(complete, key=lambda dropped: (dropped.changed, dropped.name))


def _look(folder: SharedFolder, name: str) -> Dropped | None:
    """Return the file, unless its name says that it is not finished; or it has gone in this moment."""
    if name.startswith(".") or name.endswith(_UNFINISHED):
        return None
    try:
        status = folder.status(name)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Dropped(name, identity(status), datetime.fromtimestamp(status.st_mtime, UTC), status.st_size)


def require_usable_name(folder: Folder, name: str) -> None:
    """Refuse a name that cannot be kept.

    Raises:
        UnsafePath: it is too long or no text.
    """
    encoded = os.fsencode(name)
    if len(encoded) > _LONGEST_NAME:
        raise UnsafePath(f"{folder.path}: {name[:40]}… is too long a name: take at most {_LONGEST_NAME} bytes")
    if encoded.decode(errors="replace") != name:
        raise UnsafePath(f"{folder.path}: the name {name!r} is no UTF-8: rename the file")


@contextmanager
def open_unchanged(folder: Folder, name: str, known: str) -> Generator[BinaryIO, None, None]:
    """Open a file that must stay as it is.

    Raises:
        FileChanged: it is another file than the known one, or was written to until the end of the context.
    """

    def refuse_other(file: BinaryIO) -> None:
        if identity(os.fstat(file.fileno())) != known:
            raise FileChanged(f"{folder.path / name} was written to while it was read")

    with folder.open_file(name) as file:
        refuse_other(file)
        yield file
        refuse_other(file)


@dataclass(frozen=True, slots=True)
class Results:
    """The folders for files that were read, for those that cannot be used, and for lines that are no records."""

    done: PrivateFolder
    failed: PrivateFolder
    quarantine: PrivateFolder

    @classmethod
    @contextmanager
    def opened(cls, root: Path) -> Generator["Results", None, None]:
        """Open the folders below a folder, and make those that are missing.

        Raises:
            UnsafePath: one of them is not this daemon's alone.
        """
        with ExitStack() as stack:
            done, failed, quarantine = (
                stack.enter_context(PrivateFolder.opened(root, name)) for name in ("done", "failed", "quarantine")
            )
            yield cls(done, failed, quarantine)

    def require_room(self, size: int) -> None:
        """Refuse a file whose copy would not fit.

        Raises:
            AuditordError: there is no room for it.
        """
        if self.done.room() < size + _RESERVE:
            raise AuditordError(
                f"{self.done.path}: no room for {size} bytes more ({_RESERVE >> 20} MiB stay free): remove old files "
                "there, or name another folder as `results`"
            )


def put_away(folder: SharedFolder, file: Dropped, target: PrivateFolder) -> str:
    """Copy a file that is dealt with into a folder, then remove it; returns the copy's name, durable by then.

    Raises:
        FileChanged: it is not the same any more; it stays, and no copy does.
    """
    part = f".{file.name}.copy"
    with open_unchanged(folder, file.name, file.identity) as source, _replaced(target, part) as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(copy.fileno())
    if not folder.take_out(file.name, file.identity):
        target.remove(part)
        raise FileChanged(f"{folder.path / file.name} was replaced by another file while it was read")
    return target.rename(part, file.name)


def _replaced(target: PrivateFolder, name: str) -> BinaryIO:
    if target.exists(name):  # a killed daemon's
        target.remove(name)
    return target.create(name)


def fail(folder: SharedFolder, file: Dropped, target: PrivateFolder, reason: str) -> None:
    """Set a file aside that cannot be used, and say why."""
    name = put_away(folder, file, target)
    with _replaced(target, f"{name}.reason") as text:
        text.write(f"{reason}\n".encode())


class RejectedLines:
    """The lines of a file that are no records, as they are found.

    They grow in ``.<file>.part``, whose length is remembered with the position in the file, so that what a killed
    daemon had written and not remembered is cut off again.
    """

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._part = f".{name}.part"

    def keep(self, length: int, lines: bytes) -> int:
        """Put lines behind the first ``length`` bytes; returns the new length, durably."""
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
        """Give the lines the name of their file; does nothing if that is done, or there are none."""
        if not self._folder.exists(self._part):
            return
        if length:
            self._folder.rename(self._part, self._name)
        else:
            self._folder.remove(self._part)
