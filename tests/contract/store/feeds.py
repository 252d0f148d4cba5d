"""The feed of a store: what is final, and what senders get of it."""

from collections.abc import Sequence
from typing import TypeVar

import anyio

from auditord.store.dialects import Sql
from auditord.store.feed import end_of_feed
from auditord.store.store import RecordStore
from auditord.store.work import Work, execute
from auditord_hookspecs import Entry

T = TypeVar("T")


async def settled(store: RecordStore) -> None:
    """Wait until all that has been written is final: in PostgreSQL, another transaction may have begun before it."""
    inside = store
    while await read(inside, end_of_feed()) < await newest(inside):  # noqa: ASYNC110
        await anyio.sleep(0.001)


async def newest(store: RecordStore) -> int:
    """The position of the newest record."""
    records = store._dialect.records  # pyright: ignore[reportPrivateUsage] # no caller of a store writes SQL
    found = await read(store, execute(Sql(f"SELECT coalesce(max(position), 0) FROM {records}")))  # noqa: S608 literals
    return int(found[0][0])


async def read(store: RecordStore, work: Work[T]) -> T:
    """Do work that only reads."""
    return await store._read(work)  # pyright: ignore[reportPrivateUsage] # the same


async def forwarded(store: RecordStore, limit: int = 100) -> Sequence[Entry]:
    """The entries of the outbox."""
    await settled(store)
    return [waiting.entry for waiting in (await store.outbox(limit)).entries]
