"""The folder in which ``auditord-epilog`` notes jobs, one file each (see ``script.py`` for the format)."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import SharedFolder, UnsafePath

SUFFIX: Final = ".job"

_NAME = re.compile(r"(?P<job_id>[1-9][0-9]{0,9})\.[0-9a-f]{16}\.job")
_END = b"\0\0"
_BEING_WRITTEN: Final = timedelta(seconds=10)
_LONGEST: Final = 2**20
"""The size limit of a note in bytes. The environment of a process is smaller."""


class JobNote(msgspec.Struct, frozen=True):
    """A note that a run of a job has ended.

    Args:
        name: the file's name, which is unique.
        job_id: Slurm's raw id (an array's task has one of its own).
        noted: the time of the note, just after the end of the run.
        hints: the variables that Slurm set. They say which job to ask for. Amounts never come from them.
    """

    name: str
    job_id: str
    noted: datetime
    hints: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    @property
    def question(self) -> str:
        """The id to ask Slurm for, so that the answer is about this job alone."""
        for first, second, between in (
            ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "_"),
            ("SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET", "+"),
        ):
            parts = self.hints.get(first, ""), self.hints.get(second, "")
            if all(part.isascii() and part.isdigit() for part in parts):
                return between.join(parts)
        return self.job_id


class Unreadable(msgspec.Struct, frozen=True):
    """A file that is no note."""

    name: str
    content: str


class Folder(msgspec.Struct, frozen=True):
    """The notes in the folder, the oldest first. ``others`` is the number of files that are not notes."""

    notes: Sequence[JobNote]
    unreadable: Sequence[Unreadable]
    others: int


def read_folder(path: Path, now: datetime) -> Folder:
    """Read all notes. A note that may still be incomplete is left for the next run.

    Raises:
        AuditordError: there is no such folder, or it cannot be read.
    """
    try:
        with SharedFolder.opened(path) as folder:
            found = {name: _read_safely(folder, name, now) for name in folder.names() if name.endswith(SUFFIX)}
            others = sum(not name.endswith(SUFFIX) and folder.is_file(name) for name in folder.names())
    except OSError as error:
        raise AuditordError(
            f"{path}: {error.strerror}: the folder must be there and be readable and writable for this daemon (owner: "
            "Slurm's user, group: the daemon's, mode 2770)"
        ) from error
    notes = [each for each in found.values() if isinstance(each, JobNote)]
    unreadable = [each for each in found.values() if isinstance(each, Unreadable)]
    unsafe = sum(isinstance(each, UnsafePath) for each in found.values())
    return Folder(sorted(notes, key=lambda note: (note.noted, note.name)), unreadable, others + unsafe)


def _read_safely(folder: SharedFolder, name: str, now: datetime) -> JobNote | Unreadable | UnsafePath | None:
    try:
        return _read(folder, name, now)
    except UnsafePath as error:  # auditord-epilog makes neither links nor FIFOs
        return error
    except FileNotFoundError:
        return None


def _read(folder: SharedFolder, name: str, now: datetime) -> JobNote | Unreadable | None:
    with folder.open_file(name) as opened:
        content = opened.read(_LONGEST)
        noted = datetime.fromtimestamp(os.fstat(opened.fileno()).st_mtime, UTC)
    match = _NAME.fullmatch(name)
    if match is None:
        return Unreadable(name, content.decode(errors="replace"))
    if not content.endswith(_END) and now - noted < _BEING_WRITTEN:
        return None
    # Leave out the last variable of a truncated file, since it may be truncated itself.
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0")[:-1])
    return JobNote(name, match["job_id"], noted, {variable: value for variable, equals, value in pairs if equals})


def remove(path: Path, names: Iterable[str]) -> None:
    """Remove settled notes. A missing note is no error.

    Raises:
        AuditordError: the daemon may not remove them. The jobs are safe, and the notes are remembered.
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
