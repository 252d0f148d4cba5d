"""A file that is there as a whole or not at all."""

from pathlib import Path

from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import SharedFolder


class Unwritable(AuditordError):
    """The CSV file cannot be written."""


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name, durably, then rename it.

    Raises:
        Unwritable: the disk is full, the folder is missing, …; what was there before stays.
    """
    try:
        with SharedFolder.opened(path.parent) as folder:
            folder.write_whole(path.name, text.encode())
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}; is csv.folder right?") from error
