"""Long answers, as the server sends them: one text per row, byte for byte."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, LiteralString

from psycopg import AsyncClientCursor, AsyncCopy

from auditord.database.postgres.server import Connection

_PAGE_BYTES: Final = 128 * 1024
"""A page of an answer ends after this many bytes; together with the largest row it bounds an answer's memory."""

_COPY: Final = "COPY ({}) TO STDOUT (FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
"""JSON has no raw control characters: with these as quote and delimiter, nothing is ever quoted or escaped."""


class _Left(Exception):
    """The reader wants no more."""


@asynccontextmanager
async def copied(
    connection: Connection, sql: LiteralString, parameters: Sequence[object]
) -> AsyncGenerator[AsyncIterator[list[bytes]], None]:
    """The answer to a query of one column of JSON, page by page, as of the moment when the context is entered.

    Rows are taken from the connection as they are asked for, so memory is bounded and a slow reader slows the server.
    Leaving early cancels the query.
    """
    cursor = AsyncClientCursor(connection)  # COPY takes no parameters, so they are put into its text, quoted
    try:
        async with cursor.copy(_COPY.format(sql), parameters) as copy:
            async with aclosing(_pages(copy, await _page(copy))) as pages:
                yield pages
            # Leaving in any other way than by an exception would leave rows in the connection, which makes it unusable.
            raise _Left  # noqa: TRY301 the copy between here and there must see it
    except _Left:
        pass


async def _pages(copy: AsyncCopy, page: list[bytes]) -> AsyncGenerator[list[bytes], None]:
    while page:
        yield page
        page = await _page(copy)


async def _page(copy: AsyncCopy) -> list[bytes]:
    page: list[bytes] = []
    size = 0
    while size < _PAGE_BYTES and (row := await copy.read()):
        page.append(bytes(row[:-1]))  # without the line feed
        size += len(row)
    return page
