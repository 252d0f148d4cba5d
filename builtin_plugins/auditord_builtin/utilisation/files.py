"""A file that is there as a whole or not at all."""

import os
from pathlib import Path

from auditord_hookspecs import AuditordError


class Unwritable(AuditordError):
    """The CSV file cannot be written."""


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name, durably, then rename it.

    Raises:
        Unwritable: the disk is full, the folder is missing, …; what was there before stays.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}; is csv.folder right?") from error


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
