"""The folder of notes about ended jobs. Each note is a file; see ``script.py`` for the format."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from auditord_hookspecs import (
    AuditordError,
)
from auditord_hookspecs.folders import SharedFolder, UnsafePath

SUFFIX: Final = ".job"

_NAME = re.compile(r"(?P<job_id>[1-9][0-9]{0,9})\.[0-9a-f]{16}\.job")

_END = b"\0\0"

_BEING_WRITTEN: Final = timedelta(seconds=10)

_LONGEST: Final = 2**20
"""The maximum size of a note in bytes. The environment of a process is smaller."""


class JobNote(msgspec.Struct, frozen=True):
    """A note that a run of a job has ended.

    Args:
        name: the file's name, which is unique.
        job_id: Slurm's raw id. Each task of an array has its own.
        noted: the time of the note, just after the end of the run.
        hints: the variables that Slurm set. They identify the job but never supply amounts.
    """

    name: str
    job_id: str
    noted: datetime
    hints: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    @property
    def question(self) -> str:
        """The id that selects only this job in a query to Slurm."""
        for first, second, between in (
            ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "_"),
            ("SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET", "+"),
        ):
            parts = self.hints.get(first, ""), self.hints.get(second, "")
            if all(part.isascii() and part.isdigit() for part in parts):
                return between.join(parts)
        return self.job_id


class Unreadable(msgspec.Struct, frozen=True):
    """A file that is not a valid note."""

    name: str
    content: str


class Folder(msgspec.Struct, frozen=True):
    """The folder's notes, oldest first, the invalid notes, and the number of ``others``, which are ignored."""

    notes: Sequence[JobNote]
    unreadable: Sequence[Unreadable]
    others: int


def read_folder(path: Path, now: datetime) -> Folder:
    """Read all notes, except those that may still be incomplete, which the next run reads.

    Raises:
        AuditordError: the folder does not exist, or it cannot be read.
    """
    try:
        with SharedFolder.opened(path) as folder:
            found = {name: _read(folder, name, now) for name in folder.names() if name.endswith(SUFFIX)}
            others = sum(not name.endswith(SUFFIX) and folder.is_file(name) for name in folder.names())
    except OSError as error:
        raise AuditordError(
            f"{path}: {error.strerror}: the folder must exist, and this daemon must be able to read and write it "
            "(owner: Slurm's user, group: the daemon's, mode 2770)"
        ) from error
    notes = [each for each in found.values() if isinstance(each, JobNote)]
    unreadable = [each for each in found.values() if isinstance(each, Unreadable)]
    unsafe = sum(isinstance(each, UnsafePath) for each in found.values())
    return Folder(sorted(notes, key=lambda note: (note.noted, note.name)), unreadable, others + unsafe)


def _read(folder: SharedFolder, name: str, now: datetime) -> JobNote | Unreadable | UnsafePath | None:
    try:
        with folder.open_file(name) as opened:
            content = opened.read(_LONGEST)
            changed = os.fstat(opened.fileno()).st_mtime
    except UnsafePath as error:  # auditord-epilog creates neither links nor FIFOs
        return error
    except PermissionError as error:
        return UnsafePath(f"{folder.path / name}: {error.strerror}")
    except FileNotFoundError:
        return None
    match = _NAME.fullmatch(name)
    try:
        noted = datetime.fromtimestamp(changed, UTC)
    except (OverflowError, ValueError, OSError):  # a user has set a time that no calendar has
        match = None
        noted = now
    if match is None:
        return Unreadable(name, content.decode(errors="replace"))
    if not content.endswith(_END) and now - noted < _BEING_WRITTEN:
        return None
    # Leave out the last variable of a truncated file, since it may be truncated itself.
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0")[:-1])
    return JobNote(name, match["job_id"], noted, {variable: value for variable, equals, value in pairs if equals})


def remove(path: Path, names: Iterable[str]) -> None:
    """Remove settled notes. Missing notes are ignored.

    Raises:
        AuditordError: the daemon has no permission to remove them. No job is lost, and the notes are remembered.
    """
    try:
        with SharedFolder.opened(path) as folder:
            for name in names:
                with suppress(FileNotFoundError):
                    folder.remove(name)
    except OSError as error:
        raise AuditordError(
            f"{path}: {error.filename}: {error.strerror}: cannot be removed: the daemon must have write access there"
        ) from error
