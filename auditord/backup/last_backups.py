"""Note the last backup of each instance and of ``auditord backup`` in the state folder."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from auditord.database.durable_files import write_durably

if TYPE_CHECKING:
    from auditord.backup.creation import Made
    from auditord.config.model import Configuration

FILE: Final = "backups.json"

BY_COMMAND: Final = "command"
"""The name under which backups of ``auditord backup`` are noted."""


class LastBackup(msgspec.Struct, frozen=True):
    """The last backup of an instance: the moment whose state it has, and its folder."""

    made_at: datetime
    folder: str


def last_backups(state_dir: Path) -> Mapping[str, LastBackup]:
    """Return the last backups by instance; none if the note cannot be read, so that the alert for old backups fires."""
    try:
        return msgspec.json.decode((state_dir / FILE).read_bytes(), type=dict[str, LastBackup])
    except (OSError, msgspec.DecodeError):
        return {}


def note_backup(state_dir: Path, task: str, made: "Made") -> None:
    """Note that a backup was made."""
    noted = {**last_backups(state_dir), task: LastBackup(made.manifest.made_at, str(made.folder))}
    write_durably(state_dir / FILE, msgspec.json.encode(noted))


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
