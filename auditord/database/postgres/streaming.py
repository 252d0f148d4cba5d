"""Long answers, as the server sends them: one text per row, byte for byte."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, LiteralString

from psycopg import AsyncClientCursor
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Wait

from auditord.database.postgres.server import Connection
from auditord.database.readers import PAGE_BYTES, Page, following

_COPY: Final = "COPY ({}) TO STDOUT (FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
"""JSON has no raw control characters: with these as quote and delimiter, nothing is ever quoted or escaped."""


class _Left(Exception):
    """The reader wants no more."""


@asynccontextmanager
async def copied(
    connection: Connection, sql: LiteralString, parameters: Sequence[object]
) -> AsyncGenerator[AsyncIterator[list[bytes]], None]:
    """The answer to a query of one column of JSON, page by page, as of the moment when the context is entered.

    Rows are read from the connection on demand, so memory is bounded and a slow reader slows the server.
    Leaving early cancels the query.
    """

    def read() -> Awaitable[Page[bytes]]:
        return connection.wait(_page(connection.pgconn))

    cursor = AsyncClientCursor(connection)  # COPY takes no parameters, so they are put into its text, quoted
    try:
        async with cursor.copy(_COPY.format(sql), parameters):
            async with aclosing(following(await read(), read)) as pages:
                yield pages
            # Leaving in any other way than by an exception would leave rows in the connection, which makes it unusable.
            raise _Left  # noqa: TRY301 the copy between here and there must see it
    except _Left:
        pass


def _page(connection: PGconn) -> PQGen[Page[bytes]]:
    """Rows as libpq has them, waiting only where it has none; the driver's own reading costs twice as much per row.

    Raises:
        psycopg.Error: the server gave up before the end.
    """
    rows: list[memoryview] = []
    size = 0
    while size < PAGE_BYTES:
        length, row = connection.get_copy_data(1)
        if length > 0:
            rows.append(row)
            size += length
        elif length == 0:
            yield from _readable(connection)
        else:
            yield from _ended(connection)
            return Page(_without_line_feeds(rows), is_last=True)
    return Page(_without_line_feeds(rows), is_last=False)


def _without_line_feeds(rows: list[memoryview]) -> list[bytes]:
    return [bytes(row[:-1]) for row in rows]


def _readable(connection: PGconn) -> PQGen[None]:
    while not (yield Wait.R):
        pass
    connection.consume_input()


def _ended(connection: PGconn) -> PQGen[None]:
    """Read what the server says at the end of its answer, all of it: else the connection could not be used again."""
    failures: list[PGresult] = []
    while True:
        while connection.is_busy():
            yield from _readable(connection)
        result = connection.get_result()
        if result is None:
            break
        if result.status != ExecStatus.COMMAND_OK:
            failures.append(result)
    if failures:
        raise error_from_result(failures[0])
