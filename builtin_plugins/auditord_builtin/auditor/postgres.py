"""AUDITOR's own PostgreSQL database (0.5 and later), read while AUDITOR may be running, and never changed."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, AsyncServerCursor, Error, IsolationLevel
from psycopg.conninfo import conninfo_to_dict

from auditord_builtin.auditor.conversion import Rows, SourceFailed, in_pages

_OVERLAP: Final = 100_000
"""Numbers before a position that are read again: AUDITOR gives a row its number before it commits it."""

_FETCHED: Final = 500
"""Rows of one round trip. Each may have 2 MiB."""

_DEFAULTS: Final = {
    # A server that is gone without a word is noticed in seconds, not in hours.
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "auditord",
}

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO', false),
    set_config('statement_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false),
    set_config('jit', 'off', false)
"""

_EXISTS: Final = "SELECT to_regclass('auditor_accounting') IS NOT NULL"

_COUNT: Final = "SELECT count(*), count(*) FILTER (WHERE id <= %s) FROM auditor_accounting"

# Missing meta is SQL's NULL in rows that AUDITOR has migrated, JSON's null in others; so it may be with components.
_ROWS: Final[LiteralString] = """
SELECT convert_to(
    '{"id":' || id || ',"record_id":' || to_json(record_id)
    || ',"meta":' || coalesce(meta::text, 'null')
    || ',"components":' || CASE WHEN jsonb_typeof(components) <> 'null' THEN components::text ELSE '[]' END
    || ',"start_time":' || to_json(start_time)
    || ',"stop_time":' || coalesce(to_json(stop_time)::text, 'null')
    || ',"runtime":' || coalesce(runtime::text, 'null') || '}',
    'UTF8')
FROM auditor_accounting
WHERE id > %s
ORDER BY id
"""


class PostgresSource:
    """Implements :class:`auditord_builtin.auditor.conversion.Source`.

    Args:
        url: ``postgresql://user@host/database``.
        password: where the URL, PGPASSWORD and ~/.pgpass have none.

    Raises:
        SourceFailed: libpq does not understand the URL.
    """

    def __init__(self, url: str, password: str | None) -> None:
        try:
            given = conninfo_to_dict(url)
        except Error as error:
            raise SourceFailed(f"the database's URL cannot be used: {str(error).strip()}") from error
        self._parameters: dict[str, Any] = _DEFAULTS | given | ({} if password is None else {"password": password})
        host, port = given.get("host", "the local socket"), given.get("port")
        self.name = f"AUDITOR's database {given.get('dbname', '')} at {f'{host}:{port}' if port else host}"

    async def rows(self, position: str | None) -> AsyncGenerator[Rows, None]:
        """Read in the order of the rows' numbers, as of the moment when reading begins."""
        behind = -1 if position is None else max(int(position) - _OVERLAP, -1)
        try:
            async with await AsyncConnection.connect(**self._parameters, client_encoding="UTF8") as connection:
                await connection.set_read_only(True)
                await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
                await connection.execute(_SETTINGS)
                total, done = await self._count(connection, behind)
                async with AsyncServerCursor(connection, "records") as cursor:
                    await cursor.execute(_ROWS, (behind,), binary=True)
                    async with aclosing(in_pages(_fetched(cursor))) as pages:
                        async for texts in pages:
                            done += len(texts)
                            yield make_rows(texts, done / max(total, 1))
        except Error as error:
            reason = " ".join(str(error).split())
            raise SourceFailed(f"{self.name} is not available: {reason or type(error).__name__}") from error

    async def _count(self, connection: AsyncConnection, behind: int) -> tuple[int, int]:
        exists = await (await connection.execute(_EXISTS)).fetchone()
        if not (exists and exists[0]):
            raise SourceFailed(
                f"{self.name} has no table auditor_accounting: name AUDITOR's database, as its configuration has it "
                "(of an AUDITOR before 0.5, run the migrations of a later one first)"
            )
        found = await (await connection.execute(_COUNT, (behind,))).fetchone()
        return (found[0], found[1]) if found else (0, 0)


async def _fetched(cursor: AsyncServerCursor[Any]) -> AsyncGenerator[list[bytes], None]:
    while rows := await cursor.fetchmany(_FETCHED):
        yield [row[0] for row in rows]


def make_rows(texts: Sequence[bytes], fraction: float) -> Rows:
    """Make a page of rows. Each row begins with its number."""
    return Rows(texts, lambda place: f"row with id {_number(texts[place])}", _number(texts[-1]), fraction)


def _number(text: bytes) -> str:
    return text[len(b'{"id":') : text.index(b",")].decode()
