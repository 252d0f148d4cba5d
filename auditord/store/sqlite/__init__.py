"""The record store in SQLite: the embedded default."""

from auditord.store.sqlite.store import SqliteRecordStore

__all__ = ["SqliteRecordStore"]
