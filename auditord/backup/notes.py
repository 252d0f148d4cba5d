"""Notes in the state folder: the last backups, an unfinished restore, and a restore after which collectors catch up.

While a restore is unfinished, record store and spool may not belong together. So the daemon refuses to start, and so do
commands that act in its place (such as ``auditord collect``) and ``auditord database adopt``. Other commands, such as
``auditord status``, ``quarantine list`` and ``records``, are not refused.

After a restore, sums are too low until the collectors have caught up. A plugin would report less than before the loss,
and sites could be paid or judged by its report. So scheduled runs of plugins that read the local store are skipped
until every collector has run successfully; continuous collectors are not waited for.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from auditord.database.durable_files import sync, write_durably
from auditord.errors import StoreMismatch

if TYPE_CHECKING:
    from auditord.backup.creation import Made
    from auditord.config.model import Configuration
    from auditord.spool import Spool

BACKUPS: Final = "backups.json"
RESTORED: Final = "restored.json"
UNFINISHED: Final = "restore.json"

BY_COMMAND: Final = "command"
"""The name under which the last backup by the command ``auditord backup`` is noted."""


class LastBackup(msgspec.Struct, frozen=True):
    """The last backup by an instance or by the command, with the time of the backed-up state."""

    made_at: datetime
    folder: str


def last_backups(state_dir: Path) -> Mapping[str, LastBackup]:
    """Return the last backups by instance, the newest last, or nothing if the note is missing or unreadable.

    An unreadable note counts as no backup: the metric has no samples, and the alert for old backups stays silent.
    """
    try:
        return msgspec.json.decode((state_dir / BACKUPS).read_bytes(), type=dict[str, LastBackup])
    except (OSError, msgspec.DecodeError):
        return {}


def note_backup(state_dir: Path, task: str, backup: "Made") -> None:
    """Note a backup as the last one by an instance, or by the command (:data:`BY_COMMAND`)."""
    backups = dict(last_backups(state_dir))
    backups.pop(task, None)  # to add it last
    backups[task] = LastBackup(backup.manifest.made_at, str(backup.folder))
    write_durably(state_dir / BACKUPS, msgspec.json.encode(backups))


class InstanceBackups(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.Backups` for an instance of a plugin."""

    task: str
    configuration: "Configuration"
    now: Callable[[], datetime]

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Make a backup and note it as this instance's last one; return its folder."""
        from auditord.backup.creation import BackupOptions, make_backup  # noqa: PLC0415 psycopg, once a day

        backup = await make_backup(self.configuration, BackupOptions(folder, keep, rate, dump), self.now, self)
        note_backup(self.configuration.state_dir, self.task, backup)
        return backup.folder

    def note_progress(self, phase: str, done: int, total: int) -> None:
        """Ignore the progress of a backup."""


class Unfinished(msgspec.Struct, frozen=True):
    """A restore that has begun to move files.

    Args:
        backup: the folder of the backup.
        aside: the name under which the previous files are moved aside.
        present: whether a record store and a spool existed before the restore.
    """

    backup: str
    aside: str
    present: tuple[bool, bool]


def read_unfinished(state_dir: Path) -> Unfinished | None:
    """Return the unfinished restore into a state folder, or None."""
    try:
        return msgspec.json.decode((state_dir / UNFINISHED).read_bytes(), type=Unfinished)
    except FileNotFoundError:
        return None


def begin(state_dir: Path, note: Unfinished) -> None:
    """Note that a restore is about to move files. Until :func:`end`, :func:`refuse_unfinished` raises."""
    write_durably(state_dir / UNFINISHED, msgspec.json.encode(note))


def end(state_dir: Path) -> None:
    """Delete the note of the unfinished restore, so that daemons can start again."""
    (state_dir / UNFINISHED).unlink()
    sync(state_dir)


def refuse_unfinished(state_dir: Path) -> None:
    """Raise StoreMismatch if a restore into the state folder was interrupted. The message says how to complete it."""
    if (note := read_unfinished(state_dir)) is not None:
        raise StoreMismatch(
            f"A restore into {state_dir} was interrupted: complete it with `auditord restore {note.backup}`. "
            f"(The previous files are in a folder {note.aside}, or have not been moved.)"
        )


class Restore(msgspec.Struct, frozen=True):
    """A restore at some time, after which collectors have to catch up."""

    at: datetime


def note_restore(state_dir: Path, at: datetime) -> None:
    """Note a restore. Scheduled runs of plugins then wait until :func:`collectors_behind` returns no collector."""
    write_durably(state_dir / RESTORED, msgspec.json.encode(Restore(at)))


def read_restored_at(state_dir: Path) -> datetime | None:
    """Return the time of the last restore, if one is noted. What ran successfully before it is due again."""
    try:
        return msgspec.json.decode((state_dir / RESTORED).read_bytes(), type=Restore).at
    except FileNotFoundError:
        return None


async def collectors_behind(spool: "Spool", collectors: Collection[str]) -> Sequence[str]:
    """Return the collectors that have not run successfully since the last restore, if one is noted."""
    if (restored := read_restored_at(spool.state_dir)) is None:
        return ()
    runs = await spool.last_runs()
    last = {name: runs[name][0].last_success for name in collectors if runs.get(name)}
    return [name for name in collectors if (success := last.get(name)) is None or success < restored]


def forget_restore(state_dir: Path) -> None:
    """Delete the note of a restore, if any, once all collectors have caught up."""
    (state_dir / RESTORED).unlink(missing_ok=True)
