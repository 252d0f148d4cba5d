"""The complete files of the drop folder, and the folders for their results.

Programs that drop files can change the drop folder at any moment, so all access goes through
:mod:`auditord_hookspecs.folders`. Results are the daemon's own copies, in folders that only it can write: ``done`` for
files that were read completely, ``failed`` for those that cannot be read, with the reason beside them, and
``quarantine`` for the invalid lines of a file, under the file's name.
"""

import os
import shutil
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import Folder, PrivateFolder, SharedFolder, UnsafePath, identity

_UNFINISHED: Final = (".tmp", ".part", ".swp", "~")
_LONGEST_NAME: Final = 200
"""The size limit of a name in bytes. With additions, it must fit into the file system's 255."""

_RESERVE: Final = 256 << 20
"""Bytes that copies leave free, since the spool may be on the same file system."""


class FileChanged(AuditordError):
    """A file was changed or replaced while it was read.

    Remedy:
        none: it is read again when it no longer changes. Programs should write elsewhere and rename into the folder.
    """


class Dropped(msgspec.Struct, frozen=True):
    """A complete file. Another file of its name, or a later state, has another identity."""

    name: str
    identity: str
    changed: datetime
    size: int


def complete_files(folder: SharedFolder, now: datetime, settle: timedelta) -> list[Dropped]:
    """Return the complete regular files, the oldest first."""
    found = [dropped for name in folder.names() if (dropped := _look(folder, name)) is not None]
    complete = [dropped for dropped in found if now - dropped.changed >= settle]
    return sorted(complete, key=lambda dropped: (dropped.changed, dropped.name))


def _look(folder: SharedFolder, name: str) -> Dropped | None:
    """Return the file; None if its name marks it as incomplete, or it is gone."""
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
    """Check the name of a file.

    Raises:
        UnsafePath: it is too long, or not text.
    """
    encoded = os.fsencode(name)
    if len(encoded) > _LONGEST_NAME:
        raise UnsafePath(f"{folder.path}: {name[:40]}… is too long a name: take at most {_LONGEST_NAME} bytes")
    if encoded.decode(errors="replace") != name:
        raise UnsafePath(f"{folder.path}: the name {name!r} is no UTF-8: rename the file")


@contextmanager
def open_unchanged(folder: Folder, name: str, known: str) -> Generator[BinaryIO, None, None]:
    """Open a file that must not change meanwhile.

    Raises:
        FileChanged: it is not the known file, or changed before the end of the context.
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
        """Open the folders below a folder, and create missing ones.

        Raises:
            UnsafePath: one of them is not only the daemon's own.
        """
        with ExitStack() as stack:
            done, failed, quarantine = (
                stack.enter_context(PrivateFolder.opened(root, name)) for name in ("done", "failed", "quarantine")
            )
            yield cls(done, failed, quarantine)

    def require_room(self, size: int) -> None:
        """Check that a copy of the file fits on the disk.

        Raises:
            AuditordError: there is not enough room.
        """
        if self.done.room() < size + _RESERVE:
            raise AuditordError(
                f"{self.done.path}: no room for {size} bytes more ({_RESERVE >> 20} MiB stay free): remove old files "
                "there, or name another folder as `results`"
            )


def put_away(folder: SharedFolder, file: Dropped, target: PrivateFolder) -> str:
    """Copy a handled file into a folder durably, remove the original, and return the copy's name.

    Raises:
        FileChanged: it has changed; it stays, and no copy is kept.
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
    if target.exists(name):  # left by a killed daemon
        target.remove(name)
    return target.create(name)


def fail(folder: SharedFolder, file: Dropped, target: PrivateFolder, reason: str) -> None:
    """Move an unusable file into ``failed``, with the reason."""
    name = put_away(folder, file, target)
    with _replaced(target, f"{name}.reason") as text:
        text.write(f"{reason}\n".encode())


class RejectedLines:
    """The invalid lines of a file.

    They are appended to ``.<file>.part``. Its length is saved with the position in the file, so that lines that a
    killed daemon wrote after its last save are cut off again.
    """

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._part = f".{name}.part"

    def keep(self, length: int, lines: bytes) -> int:
        """Write lines after the first ``length`` bytes durably, and return the new length."""
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
        """Rename the part to the name of the file. Does nothing without a part."""
        if not self._folder.exists(self._part):
            return
        if length:
            self._folder.rename(self._part, self._name)
        else:
            self._folder.remove(self._part)
