"""Find complete files in the drop folder, and move processed ones to the results.

Programs that drop files can change the drop folder at any time, so all access goes through
:mod:`auditord_hookspecs.folders`. Results are the daemon's own copies, in folders that only it can write: ``done`` for
files that were read completely, ``failed`` for those that cannot be read, with the reason in a file beside them, and
``quarantine`` for the invalid lines of a file, under the file's name and after its header.

What a file makes the daemon store is in proportion to its size: two copies in the results, and entries in the
daemon's quarantine up to :func:`limit_quarantine` bytes. One entry counts the invalid lines beyond that.
"""

import fcntl
import os
import shutil
import stat
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from errno import ENXIO
from pathlib import Path, PurePath
from typing import BinaryIO, Final

import msgspec

from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import Folder, PrivateFolder, SharedFolder, UnsafePath, derive_name, identity

SUFFIXES: Final = frozenset({".ndjson", ".jsonl", ".csv"})
_UNFINISHED: Final = (".tmp", ".part", ".swp", "~")
LARGEST_FILE: Final = 256 << 20
"""The most bytes of a file."""

_RESERVE: Final = 256 << 20
"""Bytes that copies leave free, since the spool may be on the same file system."""

_COPIES: Final = 2
"""A file of invalid lines is stored in ``done`` and in ``quarantine``."""

_PIECE: Final = 1 << 20


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
    owner: int


_CLOCKS_DIFFER: Final = 60.0
"""Seconds by which the clock of a file server may be ahead."""


class Listing(msgspec.Struct, frozen=True):
    """The files of the drop folder, without those whose names mark them as incomplete.

    Args:
        complete: the complete regular files, oldest first, one of each owner in turn.
        future: the names of files that are dated in the future.
        irregular: the number of links, folders and FIFOs whose names are those of files to read.
    """

    complete: Sequence[Dropped]
    future: Sequence[str]
    irregular: int


def list_files(folder: SharedFolder, now: datetime, settle: timedelta) -> Listing:
    found, irregular = list[Dropped](), 0
    for name in folder.names():
        if name.startswith(".") or name.endswith(_UNFINISHED):
            continue
        try:
            status = folder.status(name)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(Dropped(name, identity(status), status.st_mtime, status.st_size, status.st_uid))
        else:
            irregular += PurePath(name).suffix in SUFFIXES
    by_age = sorted(found, key=lambda dropped: (dropped.changed, dropped.name))
    complete = [dropped for dropped in by_age if now.timestamp() - dropped.changed >= settle.total_seconds()]
    future = [dropped.name for dropped in found if dropped.changed - now.timestamp() > _CLOCKS_DIFFER]
    # A user with many large files must not delay the others.
    owners = Counter[int]()
    turns = list[tuple[int, Dropped]]()
    for dropped in complete:
        owners[dropped.owner] += 1
        turns.append((owners[dropped.owner], dropped))
    in_turn = [dropped for _, dropped in sorted(turns, key=lambda each: each[0])]
    return Listing(in_turn, sorted(future), irregular)


def require_usable(folder: Folder, file: Dropped) -> None:
    """Check the name and the size of a file.

    Raises:
        UnsafePath: the name is not UTF-8.
        AuditordError: the file is too large.
    """
    name = file.name
    if os.fsencode(name).decode(errors="replace") != name:
        raise UnsafePath(f"{folder.path}: the name {name!r} is not UTF-8: rename the file")
    if file.size > LARGEST_FILE:
        raise AuditordError(f"{folder.path / name} has {file.size} bytes: split it into files of at most 256 MiB")


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

    def claim(self) -> None:
        """Claim the folders for this collector until they are closed.

        Raises:
            AuditordError: another collector has claimed them.
        """
        try:
            fcntl.flock(self.done.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AuditordError(
                f"{self.done.path}: another collector uses it: set `results` to another folder"
            ) from error

    def require_room(self, file: Dropped, state: Path) -> None:
        """Check that all that the file makes the daemon store fits on the disks of the results and of its state.

        Raises:
            AuditordError: there is not enough free space.
        """
        entries = limit_quarantine(file.size)
        needed = (
            (self.done.path, self.done.room(), _COPIES * file.size + entries),
            (state, shutil.disk_usage(state).free, entries),
        )
        for path, room, size in needed:
            if room < size + _RESERVE:
                raise AuditordError(
                    f"{path}: no room for the {size} bytes that {file.name} may need ({_RESERVE >> 20} MiB stay free): "
                    "remove old files there, or set `results` to another folder"
                )


def put_away(folder: SharedFolder, file: Dropped, target: PrivateFolder) -> str:
    """Copy a processed file durably into a folder, remove the original, and return the copy's name.

    Raises:
        FileChanged: the file has changed. It stays, and the copy is discarded.
        OSError: the file cannot be copied or removed. It stays, and the copy is discarded.
    """
    part = derive_name(file.name, before=".", after=".copy")
    with open_unchanged(folder, file.name, file.identity) as source, _create(target, part) as copy:
        _copy(source, copy, file.size)
        copy.flush()
        os.fsync(copy.fileno())
    name = target.rename(part, file.name)  # before the original goes: otherwise a crash would leave no visible file
    is_same = False
    try:
        is_same = folder.take_out(file.name, file.identity)
    except FileNotFoundError:
        is_same = True  # another user has removed it, so this is the only copy
    finally:
        if not is_same:
            target.remove(name)
    if not is_same:
        raise FileChanged(f"{folder.path / file.name} was replaced by another file while it was read")
    return name


def _copy(source: BinaryIO, copy: BinaryIO, size: int) -> None:
    """Copy a file; its holes stay holes, since they could be larger than the disk."""
    position = 0
    while position < size:
        try:
            position = os.lseek(source.fileno(), position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != ENXIO:  # no more data
                raise
            break
        end = min(os.lseek(source.fileno(), position, os.SEEK_HOLE), size)
        source.seek(position)
        copy.seek(position)
        while position < end and (piece := source.read(min(_PIECE, end - position))):
            copy.write(piece)
            position += len(piece)
    copy.truncate(size)


def _create(target: PrivateFolder, name: str) -> BinaryIO:
    if target.exists(name):  # left by a killed daemon
        target.remove(name)
    return target.create(name)


def fail(folder: SharedFolder, file: Dropped, target: PrivateFolder, reason: str) -> None:
    """Move an unusable file into ``failed``, with the reason."""
    name = put_away(folder, file, target)
    with _create(target, derive_name(name, after=".reason")) as text:
        text.write(f"{reason}\n".encode())


class RejectedLines:
    """The invalid lines of a file.

    They are appended to ``.<file>.part``. The length of the part is saved with the position in the file, so that lines
    that a killed daemon wrote after its last save are truncated again.
    """

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._part = derive_name(name, before=".", after=".part")

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


def limit_quarantine(size: int) -> int:
    """Return the bytes of entries in the daemon's quarantine that are allowed for a file of a size."""
    return min(4 * size + (16 << 10), 16 << 20)
