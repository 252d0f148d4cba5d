"""Create files and folders that are durable when the call returns, and that other users cannot read.

Accounting data names people, and outside systemd the umask is usually 022. So modes are set explicitly.
"""

import errno
import os
from collections.abc import Iterable
from io import BufferedWriter, FileIO
from pathlib import Path


def make_private(path: Path) -> None:
    """Create an empty file that owner and group can read, unless it exists.

    An existing file is not opened, because closing any descriptor of it releases all locks that this process holds on
    it, including those of SQLite. Another process could then take itself for the last user, and delete the log that
    this one writes.

    Raises:
        OSError: the file cannot be created, or this process may not write to it.
    """
    target = os.path.realpath(path)  # a link may point to a file that does not exist yet
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
    except FileExistsError:
        is_folder = Path(target).is_dir()
        if is_folder or not os.access(target, os.R_OK | os.W_OK):
            number = errno.EISDIR if is_folder else errno.EACCES
            raise OSError(number, os.strerror(number), target) from None


def make_private_folder(folder: Path, mode: int = 0o750) -> None:
    """Create a folder with a mode, and its missing parents with mode 750.

    Raises:
        OSError: a folder cannot be created.
    """
    if not folder.parent.exists():  # Path.mkdir(parents=True) would give parents the mode of the umask
        make_private_folder(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file's content atomically and durably. A crash leaves the old or the new content."""
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "wb", opener=_private) as file:
        file.write(content)
    sync(draft)
    draft.replace(path)
    sync(path.parent)


class SyncedFile(BufferedWriter):
    """A new file whose bytes and name are on disk once it is closed."""

    def __init__(self, path: Path, mode: str, folders: Iterable[Path]) -> None:
        super().__init__(FileIO(path, mode, opener=_private))
        self._folders = folders

    def close(self) -> None:
        """Synchronise the file and the folders that lead to it, then close it."""
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        super().close()
        for folder in self._folders:
            sync(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)
