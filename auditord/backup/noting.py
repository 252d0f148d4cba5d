"""Backups of instances and of ``auditord backup``, noted in the state folder when they are made."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from auditord.backup.last import FILE, LastBackup, last_backups
from auditord.backup.manifest import write_durably
from auditord.config.model import StoreSection

if TYPE_CHECKING:
    from auditord.backup.making import Made

BY_COMMAND: Final = "command"
"""The name under which backups of ``auditord backup`` are noted."""


def note_backup(state_dir: Path, task: str, made: "Made") -> None:
    """Note that a backup was made."""
    noted = {**last_backups(state_dir), task: LastBackup(made.manifest.made_at, str(made.folder))}
    write_durably(state_dir / FILE, msgspec.json.encode(noted))


@dataclass(frozen=True, slots=True)
class InstanceBackups:
    """Implements :class:`auditord_hookspecs.Backups` for an instance."""

    task: str
    state_dir: Path
    store: StoreSection
    now: Callable[[], datetime]

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Make a backup, and note it."""
        from auditord.backup.making import BackupOptions, make_backup  # noqa: PLC0415 psycopg, once a day

        made = await make_backup(self.state_dir, self.store, BackupOptions(folder, keep, rate, dump), self.now, self)
        note_backup(self.state_dir, self.task, made)
        return made.folder

    def progressed(self, phase: str, done: int, total: int) -> None:
        """Nobody watches."""
