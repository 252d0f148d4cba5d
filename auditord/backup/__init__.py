"""Backup and restore: record store and spool as of one moment, and their way back.

Entries flow from the spool to the store, and what clients wrote flows from the store's outbox to the spool, for senders
that forward it. A backup is the spool as of a moment and the store as of a later one, and no entry leaves the outbox in
between: so each entry is in one of them at least. What is in both is known by its id when it is delivered again.
"""

from auditord.backup.continuing import Behind, Continued, continue_from
from auditord.backup.folders import NoBackup, found_backup
from auditord.backup.making import BackupFailed, BackupOptions, Made, make_backup
from auditord.backup.manifest import BackupDamaged, Manifest
from auditord.backup.restoring import Restoration, Restored, RestoreRefused

__all__ = [
    "BackupDamaged",
    "BackupFailed",
    "BackupOptions",
    "Behind",
    "Continued",
    "Made",
    "Manifest",
    "NoBackup",
    "Restoration",
    "RestoreRefused",
    "Restored",
    "continue_from",
    "found_backup",
    "make_backup",
]
