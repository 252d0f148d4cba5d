"""AUDITOR's PostgreSQL database (0.5 and later). AUDITOR may be running, and its database is never changed."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, AsyncServerCursor, Error, IsolationLevel
from psycopg.conninfo import conninfo_to_dict

from auditord_builtin.auditor.conversion import Rows, SourceFailed, in_pages

_OVERLAP: Final = 100_000
"""The number of ids before a position to read again, since AUDITOR assigns a row's id before it commits the row."""

_FETCHED: Final = 500
"""Rows per round trip. A row can have 2 MiB, but nearly all have some hundred bytes."""

_DEFAULTS: Final = {
    # Detect a server that vanished in seconds, not in hours.
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

# Missing meta or components are NULL in rows that AUDITOR has migrated, and JSON's null in others.
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
        password: the password; None: that of the URL, PGPASSWORD or ~/.pgpass.

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
        """Read the rows in the order of their ids, in one snapshot of the table."""
        after_id = -1 if position is None else max(int(position) - _OVERLAP, -1)
        try:
            async with await AsyncConnection.connect(**self._parameters, client_encoding="UTF8") as connection:
                await connection.set_read_only(True)
                await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
                await connection.execute(_SETTINGS)
                exists = await (await connection.execute(_EXISTS)).fetchone()
                if not (exists and exists[0]):
                    raise SourceFailed(
                        f"{self.name} has no table auditor_accounting: name the database that AUDITOR's configuration "
                        "names (for an AUDITOR before 0.5, first run the migrations of a later version)"
                    )
                counts = await (await connection.execute(_COUNT, (after_id,))).fetchone()
                total, rows_done = counts or (0, 0)
                async with AsyncServerCursor(connection, "records") as cursor:
                    await cursor.execute(_ROWS, (after_id,), binary=True)
                    async with aclosing(in_pages(_fetch(cursor))) as pages:
                        async for texts in pages:
                            rows_done += len(texts)
                            yield make_rows(texts, rows_done / max(total, 1))
        except Error as error:
            reason = " ".join(str(error).split())
            raise SourceFailed(f"{self.name} is not available: {reason or type(error).__name__}") from error


async def _fetch(cursor: AsyncServerCursor[Any]) -> AsyncGenerator[list[bytes], None]:
    while rows := await cursor.fetchmany(_FETCHED):
        yield [row[0] for row in rows]


def make_rows(texts: Sequence[bytes], fraction: float) -> Rows:
    """Return a page of rows. The text of each row begins with its id."""
    return Rows(texts, lambda place: f"row with id {_row_id(texts[place])}", _row_id(texts[-1]), fraction)


def _row_id(text: bytes) -> str:
    return text[len(b'{"id":') : text.index(b",")].decode()
