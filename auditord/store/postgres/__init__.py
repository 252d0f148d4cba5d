"""The record store in PostgreSQL, for many daemons and many records."""

from auditord.store.postgres.store import MIGRATIONS, PostgresRecordStore

__all__ = ["MIGRATIONS", "PostgresRecordStore"]
