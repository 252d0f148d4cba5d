"""Notes in the state folder: the last backups, a restore that is under way, and a restore that was made.

Until a restore is done, nothing may take the files for a pair. After it, plugins wait until the collectors have caught
up, since sums are still too low: a plugin that ran then would report less than before the loss, and sites would be paid
or judged by its report.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from auditord.database.durable_files import synced, write_durably
from auditord.errors import StoreMismatch

if TYPE_CHECKING:
    from auditord.backup.creation import Made
    from auditord.config.model import Configuration
    from auditord.spool import Spool

BACKUPS: Final = "backups.json"
RESTORED: Final = "restored.json"
UNFINISHED: Final = "restore.json"

BY_COMMAND: Final = "command"
"""The name under which backups of ``auditord backup`` are noted."""


class LastBackup(msgspec.Struct, frozen=True):
    """The last backup of an instance: the moment whose state it has, and its folder."""

    made_at: datetime
    folder: str


def last_backups(state_dir: Path) -> Mapping[str, LastBackup]:
    """Return the last backups by instance; none if the note cannot be read, so that the alert for old backups fires."""
    try:
        return msgspec.json.decode((state_dir / BACKUPS).read_bytes(), type=dict[str, LastBackup])
    except (OSError, msgspec.DecodeError):
        return {}


def note_backup(state_dir: Path, task: str, made: "Made") -> None:
    """Note that a backup was made."""
    noted = {**last_backups(state_dir), task: LastBackup(made.manifest.made_at, str(made.folder))}
    write_durably(state_dir / BACKUPS, msgspec.json.encode(noted))


class InstanceBackups(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.Backups` for an instance."""

    task: str
    configuration: "Configuration"
    now: Callable[[], datetime]

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Make a backup, and note it."""
        from auditord.backup.creation import BackupOptions, make_backup  # noqa: PLC0415 psycopg, once a day

        made = await make_backup(self.configuration, BackupOptions(folder, keep, rate, dump), self.now, self)
        note_backup(self.configuration.state_dir, self.task, made)
        return made.folder

    def progressed(self, phase: str, done: int, total: int) -> None:
        """Show nothing."""


class Unfinished(msgspec.Struct, frozen=True):
    """A restore that has begun to move files.

    Args:
        backup: the folder that it is made from.
        aside: the name under which it puts the previous files aside.
        present: whether a record store was there, and a spool.
    """

    backup: str
    aside: str
    present: tuple[bool, bool]


def unfinished(state_dir: Path) -> Unfinished | None:
    """Return the interrupted restore into a state folder, or None."""
    try:
        return msgspec.json.decode((state_dir / UNFINISHED).read_bytes(), type=Unfinished)
    except FileNotFoundError:
        return None


def begin(state_dir: Path, note: Unfinished) -> None:
    """Block every use of the state folder until :func:`end`."""
    write_durably(state_dir / UNFINISHED, msgspec.json.encode(note))


def end(state_dir: Path) -> None:
    """Let the state folder be used again."""
    (state_dir / UNFINISHED).unlink()
    synced(state_dir)


def refuse_unfinished(state_dir: Path) -> None:
    """Return unless a restore was interrupted.

    Raises:
        StoreMismatch: one was.
    """
    if (note := unfinished(state_dir)) is not None:
        raise StoreMismatch(
            f"A restore into {state_dir} was interrupted: complete it with `auditord restore {note.backup}`. "
            f"(The previous files are in a folder {note.aside}, or still in their place.)"
        )


class Restore(msgspec.Struct, frozen=True):
    """The instant of a restore."""

    at: datetime


def note_restore(state_dir: Path, at: datetime) -> None:
    """Let plugins wait until all collectors have caught up."""
    write_durably(state_dir / RESTORED, msgspec.json.encode(Restore(at)))


async def collectors_behind(spool: "Spool", collectors: Collection[str]) -> Sequence[str]:
    """Return the collectors without a successful run since the restore; empty without a restore."""
    file = spool.state_dir / RESTORED
    try:
        restored = msgspec.json.decode(file.read_bytes(), type=Restore)
    except FileNotFoundError:
        return ()
    runs = await spool.last_runs()
    last = {name: runs[name][0].last_success for name in collectors if runs.get(name)}
    behind = [name for name in collectors if (success := last.get(name)) is None or success < restored.at]
    if not behind:
        file.unlink(missing_ok=True)
    return behind
