"""PostgreSQL: connections, faults, migrations; nothing here knows what a record is."""

from auditord.database.postgres.server import Connection, Server

__all__ = ["Connection", "Server"]
