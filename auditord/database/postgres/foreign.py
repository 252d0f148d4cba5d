"""A database that is not ours: it is read, and never changed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translated

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO', false),
    set_config('client_encoding', 'UTF8', false),
    set_config('statement_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false),
    set_config('jit', 'off', false),
    set_config('default_transaction_read_only', 'on', false)
"""


@asynccontextmanager
async def connected(address: Address) -> AsyncGenerator[AsyncConnection[TupleRow], None]:
    """A connection for reading, for as long as its reader likes.

    Raises:
        StoreUnavailable: the server does not answer, refuses the user, or is lost on the way.
    """
    with translated(address.where):
        connection = await AsyncConnection.connect(autocommit=True, **address.parameters())
        async with connection:
            await connection.execute(_SETTINGS)
            yield connection
