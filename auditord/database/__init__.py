"""SQLite files shared by the record store and the spool: one writer, many readers, migrations."""

from auditord.database.database import Database

__all__ = ["Database"]
