"""A plugin's turn is lost with its connection: then the run ends, since somebody else may have begun one."""

from collections.abc import Callable

import anyio
import psycopg
import pytest

from auditord.errors import StoreUnavailable
from auditord.store import RecordStore
from auditord.store.opening import open_store
from auditord.store.postgres import memory as memories
from auditord.testing import EPOCH

pytestmark = pytest.mark.anyio

_CUT = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"


async def test_a_run_ends_when_its_turn_is_lost(
    new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories, "LOOK_SECONDS", 0.05)
    url = new_postgres_url()
    with anyio.fail_after(20):
        async with open_store(url, counted_keys=()) as store:
            with pytest.raises(StoreUnavailable):
                await lose_turn(store, url)
            async with store.memory("apel", lambda: None) as memory:
                assert await memory.load() is None


async def test_who_has_lost_the_turn_saves_nothing(new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url()
    async with open_store(url, counted_keys=()) as store:
        async with store.memory("apel", lambda: None) as memory:
            await cut(url)
            with pytest.raises(StoreUnavailable):
                await memory.save("stale", EPOCH)
        async with store.memory("apel", None) as memory:
            assert await memory.load() is None


async def lose_turn(store: RecordStore, url: str) -> None:
    async with store.memory("apel", lambda: None):
        await cut(url)
        await anyio.sleep_forever()


async def cut(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as administrator:
        await administrator.execute(_CUT)
