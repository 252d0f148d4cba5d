"""Access to private folders, and to folders that other users can write to, by descriptors instead of paths.

Between the check of a path and its use, another user of the folder can replace the path with a link. So a folder is
opened once, and its files are opened relative to its descriptor (``openat``). Links inside the folder are never
followed, and checks apply to the opened file. Links in the path of the folder itself are followed, and so are those of
:func:`open_regular`, since the administrator chose these paths. All calls block: call them in a worker thread.
"""

import ctypes
import os
import pwd
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from errno import EEXIST, EINVAL, ELOOP, ENOSYS, ENOTDIR, ENXIO
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final, Self

from auditord_hookspecs.errors import AuditordError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Without O_NONBLOCK, opening a FIFO would block the thread until another process opens it for writing."""

_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_TAKEN: Final = ".taken-"
_MARKED: Final = re.compile(rf"{re.escape(_TAKEN)}[0-9a-f]{{16}}-(.+)", re.DOTALL)
_RENAME_NOREPLACE: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MAX_NAME: Final = 255
"""Bytes. File systems of Linux accept no longer names."""

_MAX_TAIL: Final = 200
_FEW: Final = 100
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class UnsafePath(AuditordError):
    """A path is not used because another user could have prepared it. The message names the path and the remedy.

    Remedy:
        change owner and mode of the path as the message says, or use another folder.
    """


def identity(status: os.stat_result) -> str:
    """Return a string that changes if the file is written to, or if another file gets its name.

    It includes the time of the last change of the inode, which a user cannot set, unlike that of the content.
    """
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def replace_private(path: Path, content: bytes) -> None:
    """Replace a private file atomically.

    If root writes the file, its owner becomes that of the folder: the daemon's user, who must be able to read it.
    """
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        give_to_owner(file.fileno(), path.parent)
    new.replace(path)


def give_to_owner(descriptor: int, folder: Path) -> None:
    """Change the owner of a file to that of its folder, if this process runs as root."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


@contextmanager
def open_regular(path: Path) -> Generator[BinaryIO, None, None]:
    """Open a file that the configuration names, for reading. Links are followed, and a FIFO does not block.

    Raises:
        UnsafePath: it is not a regular file.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, _READ & ~os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafePath(f"{path}: is not a regular file: name a file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def derive_name(name: str, *, before: str = "", after: str = "") -> str:
    """Return a file's name with texts before and after it.

    If the result would have more than 255 bytes, a hash takes the place of the end of the name.
    """
    derived = f"{before}{name}{after}"
    if len(os.fsencode(derived)) <= _MAX_NAME:
        return derived
    mark = blake2b(os.fsencode(name), digest_size=8).hexdigest()
    room = _MAX_NAME - len(os.fsencode(f"{before}{mark}{after}"))
    return f"{before}{os.fsencode(name)[:room].decode(errors='ignore')}{mark}{after}"


def _insert_mark(name: str, mark: int | str) -> str:
    """Return a name with a mark before its ending: ``a.1.csv``."""
    path = Path(name)
    is_ending = len(os.fsencode(path.suffix)) < _MAX_TAIL
    stem, ending = (path.stem, path.suffix) if is_ending else (name, "")
    return derive_name(stem, after=f".{mark}{ending}")


class Folder:
    """An open folder.

    Args:
        path: the path, used only in messages.
        descriptor: the folder's descriptor, which the caller closes.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path: Final = path
        self.descriptor: Final = descriptor

    def names(self) -> list[str]:
        """Return the names of all entries."""
        return os.listdir(self.descriptor)  # noqa: PTH208 pathlib has no descriptors

    def status(self, name: str) -> os.stat_result:
        """Return the status of an entry; for a link, that of the link itself."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def is_file(self, name: str) -> bool:
        """Return whether the entry is a regular file, not a link to one."""
        try:
            return stat.S_ISREG(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    @contextmanager
    def open_file(self, name: str) -> Generator[BinaryIO, None, None]:
        """Open a regular file of this folder for reading.

        Raises:
            UnsafePath: it is a link, FIFO, device or folder, or has other hard links: it may be another user's file.
            OSError: it does not exist or cannot be read.
        """
        try:
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in {ELOOP, ENXIO}:
                text = f"{self.path / name}: is a link or not a file: drop a copy of the file itself"
                raise UnsafePath(text) from error
            raise
        status = os.fstat(descriptor)
        if not (is_file := stat.S_ISREG(status.st_mode)) or status.st_nlink > 1:
            os.close(descriptor)
            fault = "has other names (hard links): drop a copy of it instead"
            raise UnsafePath(f"{self.path / name}: {fault if is_file else 'is not a regular file: remove it'}")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def remove(self, name: str) -> None:
        """Remove a file; of a link, only the link itself."""
        os.unlink(name, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make created, renamed and removed names durable."""
        os.fsync(self.descriptor)

    def _rename_new(self, name: str, new: str) -> None:
        """Rename a file without replacing another one.

        Raises:
            FileExistsError: the new name exists.
        """
        rename = getattr(_LIBC, "renameat2", None)  # musl has none
        if rename is not None:
            names = (self.descriptor, os.fsencode(name), self.descriptor, os.fsencode(new), _RENAME_NOREPLACE)
            if rename(*names) == 0:
                return
            if (error := ctypes.get_errno()) not in {EINVAL, ENOSYS}:  # such as NFS, which cannot refuse to replace
                raise OSError(error, os.strerror(error), name, None, new)
        with suppress(FileNotFoundError):
            self.status(new)
            raise FileExistsError(EEXIST, os.strerror(EEXIST), name, None, new)
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)


class SharedFolder(Folder):
    """A folder that other users can write to."""

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Generator[Self, None, None]:
        """Open the folder. Links in the path are followed, since the administrator chose it.

        Raises:
            OSError: it does not exist, is not a folder, or cannot be read.
        """
        descriptor = os.open(path, _FOLDER)
        try:
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def holds(self, path: Path) -> bool:
        """Return whether a path is this folder or lies in it."""
        own = os.fstat(self.descriptor)
        return any(os.path.samestat(own, each.stat()) for each in (path, *path.parents) if each.exists())

    def may_change(self) -> bool:
        """Return whether this process can rename and remove files here, except others' files in a sticky folder."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self.descriptor)

    def take_out(self, name: str, known: str) -> bool:
        """Remove a processed file durably.

        If another file has got its name in the meantime, that file is not removed but put back under a new name.

        Args:
            name: the file's name.
            known: the file's :func:`identity` when it was read.

        Returns:
            True if the file was unchanged, and so is removed.

        Raises:
            FileNotFoundError: another user has removed it.
        """
        tail = os.fsencode(name)[-_MAX_TAIL:].decode(errors="ignore")
        temporary = f"{_TAKEN}{token_hex(8)}-{tail}"
        self._rename_new(name, temporary)
        found = identity(self.status(temporary))
        is_unchanged = found.rpartition(":")[0] == known.rpartition(":")[0]  # a rename changes the inode
        if is_unchanged:
            self.remove(temporary)
        else:
            self._give_back(temporary)
        self.sync()
        return is_unchanged

    def write_whole(self, name: str, content: bytes) -> None:
        """Write a file durably under another name, then rename it. A link with that name is replaced, not followed.

        Raises:
            OSError: the file cannot be written. The previous file is unchanged.
        """
        # The random part keeps other users from predicting the name, so that a file or link of theirs is never in the
        # way. Only files of this user, left by a killed process, are removed.
        mark = f".{token_hex(8)}.part"
        part = derive_name(name, before=".", after=mark)
        begin = re.escape(part.removesuffix(mark))
        for left in filter(re.compile(rf"{begin}\.[0-9a-f]{{16}}\.part").fullmatch, self.names()):
            with suppress(FileNotFoundError):
                if self.status(left).st_uid == os.geteuid():
                    self.remove(left)
        try:
            with os.fdopen(os.open(part, _WRITE | os.O_EXCL, 0o666, dir_fd=self.descriptor), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except OSError:
            with suppress(OSError):
                self.remove(part)
            raise
        self.sync()

    def give_back(self) -> list[OSError]:
        """Put files back that a killed process was removing with :meth:`take_out`, so that they are read again.

        They get a new name: ``a.csv`` becomes ``a.1f2e3d4c5b6a7988.csv``. Other names that begin with ``.taken-`` are
        those of other users.

        Returns:
            The errors of the files that could not be renamed, and stay.
        """
        errors = list[OSError]()
        for name in filter(_MARKED.fullmatch, self.names()):
            try:
                self._give_back(name)
            except FileNotFoundError:
                pass  # removed by another user
            except OSError as error:
                errors.append(error)
        return errors

    def _give_back(self, temporary: str) -> None:
        # The end of a long name can begin with a dot, and hidden files are not read.
        tail = re.sub(r"^\.", "_", temporary[len(_TAKEN) + 16 + 1 :])
        # Random, since another user may have prepared a file under a name that can be predicted.
        self._rename_new(temporary, _insert_mark(tail, token_hex(8)))


class PrivateFolder(Folder):
    """A folder that other users cannot write to."""

    @classmethod
    @contextmanager
    def opened(cls, parent: Path, name: str) -> Generator[Self, None, None]:
        """Open the folder ``name`` in a parent that other users can write to. Create it if it is missing.

        Raises:
            UnsafePath: it is a link, belongs to another user, or is writable for others. A folder that others may write
                to is accepted if only this user can reach it, since the parent is private.
            OSError: it cannot be created.
        """
        with SharedFolder.opened(parent) as shared:
            descriptor = _open_or_create(shared, name)
        try:
            yield cls(parent / name, descriptor)
        finally:
            os.close(descriptor)

    def create(self, name: str) -> BinaryIO:
        """Return a new file for reading and writing.

        Raises:
            FileExistsError: the name exists.
        """
        return os.fdopen(os.open(name, _WRITE | os.O_EXCL, 0o640, dir_fd=self.descriptor), "w+b")

    def open_to_write(self, name: str) -> BinaryIO:
        """Open a file for reading and writing without changing its content. Create it if it is missing."""
        return os.fdopen(os.open(name, _WRITE, 0o640, dir_fd=self.descriptor), "r+b")

    def exists(self, name: str) -> bool:
        """Return whether an entry with this name exists."""
        try:
            self.status(name)
        except FileNotFoundError:
            return False
        return True

    def rename(self, name: str, wanted: str) -> str:
        """Rename a file durably to ``wanted`` or, if that exists, the next free name (``a.1.csv``); return the name."""
        free, number = wanted, 0
        while True:
            try:
                self._rename_new(name, free)
            except FileExistsError:
                number += 1
                mark = number if number < _FEW else token_hex(8)  # thousands of attempts would be slow
                free = _insert_mark(wanted, mark)
            else:
                self.sync()
                return free

    def room(self) -> int:
        """Return the number of free bytes in the folder's file system."""
        status = os.fstatvfs(self.descriptor)
        return status.f_bavail * status.f_frsize


def _open_or_create(parent: SharedFolder, name: str) -> int:
    path = parent.path / name
    try:
        os.mkdir(name, 0o750, dir_fd=parent.descriptor)
        parent.sync()
    except FileExistsError:
        pass
    try:
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent.descriptor)
    except OSError as error:
        if error.errno in {ELOOP, ENOTDIR}:
            raise UnsafePath(f"{path}: is a link or not a folder: remove it, and the daemon makes its own") from error
        raise
    status, above = os.fstat(descriptor), os.fstat(parent.descriptor)
    is_out_of_reach = above.st_uid == os.geteuid() and not above.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    fault = None
    if status.st_uid != os.geteuid():
        owner = user_name(status.st_uid)
        fault = f"belongs to user {owner}, not to the daemon's user: remove it, and the daemon makes its own"
    elif status.st_mode & _OTHERS_WRITE and not is_out_of_reach:
        fault = f"other users can write to it: check its contents, then chmod go-w {path}"
    if fault is not None:
        os.close(descriptor)
        raise UnsafePath(f"{path}: {fault}")
    return descriptor


def user_name(uid: int) -> str:
    """Return the name of a user, or the number if the system has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
