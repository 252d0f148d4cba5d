"""The plans for few records: never off the index of the order, which would be passed over in vain."""

import psycopg
import pytest

from auditord.store.conditions import compile_query
from auditord.store.opening import open_store
from auditord.store.postgres.dialect import PostgresDialect
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import Comparison, MetaContains, Order, RuntimeCompares, SortField

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("few", [False, True])
async def test_few_records_are_sorted_even_where_sorting_is_dear(
    postgres_url: str,
    few: bool,  # noqa: FBT001 parametrised
) -> None:
    async with open_store(postgres_url, counted_keys=()):
        pass
    query = RecordQuery(MetaContains("user_id", "nobody"), Order(SortField.START, descending=True), 100)
    compiled = compile_query(query, PostgresDialect(), few=few)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("SELECT set_config('enable_sort', 'off', false)")
        cursor = await connection.execute(f"EXPLAIN {compiled.sql}", compiled.parameters)
        plan = [line for (line,) in await cursor.fetchall()]
    assert any("records_by_start" in line for line in plan) is not few


async def test_long_runtimes_have_an_index(postgres_url: str) -> None:
    compiled = compile_query(RecordQuery(RuntimeCompares(Comparison.GT, 85_000)), PostgresDialect())
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("SELECT set_config('enable_seqscan', 'off', false)")
        cursor = await connection.execute(f"EXPLAIN {compiled.sql}", compiled.parameters)
        assert any("records_with_long_runtime" in line for (line,) in await cursor.fetchall())
