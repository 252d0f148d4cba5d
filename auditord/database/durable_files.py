"""Files and folders that are on the disk when the call returns."""

import os
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
