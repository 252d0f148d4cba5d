"""Files and folders that are on the disk when the call returns."""

import os
from collections.abc import Iterable
from io import BufferedWriter, FileIO
from pathlib import Path


def synced(path: Path) -> None:
    """Return once a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Let a file have this content, or be as it was, whatever happens."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    synced(draft)
    draft.replace(path)
    synced(path.parent)


class SyncedFile(BufferedWriter):
    """A new file whose bytes and name are on the disk when it is closed."""

    def __init__(self, path: Path, mode: str, folders: Iterable[Path]) -> None:
        super().__init__(FileIO(path, mode))
        self._folders = folders

    def close(self) -> None:
        """Synchronise the file and the folders that lead to it, then close it."""
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        super().close()
        for folder in self._folders:
            synced(folder)
