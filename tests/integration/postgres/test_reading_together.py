"""Reads by id that arrive while another one is under way share a statement."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from auditord.database.postgres.server import PreparedSelect
from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord_hookspecs import Record
from auditord_hookspecs.wire import encode_record

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 31, 20, tzinfo=UTC)
RECORDS = [Record(f"job-{number}", START, ()) for number in range(64)]


async def test_64_reads_are_a_few_statements(new_postgres_url: Callable[[], str], monkeypatch: Any) -> None:
    select, asked = PreparedSelect.rows, 0

    async def counting(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await select(*arguments)

    async with open_store(new_postgres_url(), counted_keys=()) as store:
        await store.add_all(RECORDS, Provenance(START), Duplicates.SAME_RUN, atomic=True)
        monkeypatch.setattr(PreparedSelect, "rows", counting)
        for _ in range(3):
            found = await asyncio.gather(*(store.get(each.record_id) for each in RECORDS))
            assert found == list(map(encode_record, RECORDS))
    assert 0 < asked <= 6


async def test_an_id_that_the_server_would_refuse_harms_no_others(new_postgres_url: Callable[[], str]) -> None:
    async with open_store(new_postgres_url(), counted_keys=()) as store:
        await store.add_all(RECORDS, Provenance(START), Duplicates.SAME_RUN, atomic=True)
        found = await asyncio.gather(*map(store.get, ("job-1", "a\0b", "\udc80", "job-2")))
    assert found == [encode_record(RECORDS[1]), None, None, encode_record(RECORDS[2])]


async def test_after_a_lost_connection_reading_works_again(new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url()
    async with (
        open_store(url, counted_keys=()) as store,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as other,
    ):
        await store.add_all(RECORDS, Provenance(START), Duplicates.SAME_RUN, atomic=True)
        assert await store.get("job-1") is not None
        ours = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        await other.execute(f"SELECT pg_terminate_backend(pid) {ours} AND backend_type = 'client backend'")
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await store.get("job-1") == encode_record(RECORDS[1])
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0)


async def test_a_statement_whose_first_execution_failed_can_be_executed(postgres_url: str) -> None:
    select = PreparedSelect("sleep", "SELECT pg_sleep($1::text::float)::text")
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("SET statement_timeout = 50")
        with pytest.raises(psycopg.errors.QueryCanceled):
            await select.rows(connection, "60")
        assert await select.rows(connection, "0") == [[b""]]
