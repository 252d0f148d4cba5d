"""PostgreSQL looks for archived ids among insertions once there is an archive, and not before: it costs them time."""

from collections.abc import Callable

import psycopg
import pytest

from auditord.store.opening import open_store

pytestmark = pytest.mark.anyio

ENABLED = "SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'records_not_archived'"


async def test_insertions_are_looked_at_once_there_is_an_archive(new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url()
    found = list[object]()
    async with (
        open_store(url, counted_keys=()) as store,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):

        async def look() -> None:
            found.append(await (await connection.execute(ENABLED)).fetchone())

        await look()
        await store.begin_archive("an archive", "file:///archive")
        await look()
        await store.begin_archive("an archive", "file:///archive")
        await look()
    assert found == [("D",), ("O",), ("O",)]
