"""Batches for the lake and changes for senders are of one moment, whatever others commit while they are read."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest

from auditord.database.instants import to_micros
from auditord.database.postgres import Connection
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.postgres import driver
from auditord.store.work import Statement
from auditord_hookspecs import Close, Component, Insert, Record, RecordUpdate
from tests.contract.store.feeds import forwarded, settled

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 31, 20, tzinfo=UTC)
STOPS = [START + timedelta(days=days) for days in (1, 40, 80)]  # in three months
RECORD = Record("job", START, (Component("Cores", 1, ()),), STOPS[0])
SLURM, CLIENT = Provenance(START, "task:slurm"), Provenance(START, "user:ce")

After: TypeAlias = Callable[[str, Callable[[], Awaitable[bool]]], Sequence[bool]]


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> After:
    """Lets something happen when a statement of a transaction has been executed the first time; gives its result."""

    def arrange(name: str, happens: Callable[[], Awaitable[bool]]) -> Sequence[bool]:
        execute: Any = vars(driver)["_do"]  # of one step of a transaction
        happened: list[bool] = []

        async def executing(connection: Connection, step: Any) -> Any:
            answer = await execute(connection, step)
            if isinstance(step, Statement) and step.name == name and not happened:
                happened.append(await happens())
            return answer

        monkeypatch.setattr(driver, "_do", executing)
        return happened

    return arrange


async def test_a_change_that_comes_meanwhile_is_of_the_next_batch(new_postgres_url: Any, after: After) -> None:
    """Else the lake would have a row that no later batch knows of, and the record twice."""
    url = new_postgres_url()
    async with open_store(url, counted_keys=()) as store, open_store(url, counted_keys=()) as other:
        await store.begin_lake()
        await store.fill_lake("a-table")
        await store.add(RECORD, SLURM, Duplicates.SAME_RUN)
        await settled(store)
        first = await store.lake_batch(0, 100)
        await store.stop(RecordUpdate("job", (), STOPS[1]), SLURM)
        await settled(store)
        moved = after("records_of_slice", lambda: other.stop(RecordUpdate("job", (), STOPS[2]), SLURM))
        second = await store.lake_batch(first.number, 100)
        await settled(store)
        third = await store.lake_batch(second.number, 100)
    assert moved == [True]
    assert [batch.records[0].record.stop_time for batch in (second, third)] == STOPS[1:]
    assert [batch.known["job"] for batch in (second, third)] == [{to_micros(STOPS[0])}, {to_micros(STOPS[1])}]


async def test_a_record_that_changes_meanwhile_is_forwarded(new_postgres_url: Any, after: After) -> None:
    """Else neither look would find it: it leaves the first slice, and the second one takes it for forwarded."""
    url = new_postgres_url()
    async with open_store(url, counted_keys=(), outbox=True) as store, open_store(url, counted_keys=()) as other:
        await store.add(RECORD, CLIENT, Duplicates.SAME_RUN)
        await settled(store)
        moved = after("removals_of_slice", lambda: other.stop(RecordUpdate("job", (), STOPS[1]), CLIENT))
        first = await store.outbox(100)
        await store.forget_outbox(first.position)
        assert moved == [True]
        assert [each.entry for each in first.entries] == [Insert(RECORD, None, CLIENT)]
        assert await forwarded(store) == [Close("job", STOPS[1], CLIENT)]
