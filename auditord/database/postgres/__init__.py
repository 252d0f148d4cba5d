"""PostgreSQL: connections, errors and migrations, independent of records."""

from auditord.database.postgres.server import Connection, Server

__all__ = ["Connection", "Server"]
