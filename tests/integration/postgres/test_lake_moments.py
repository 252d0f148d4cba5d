"""A batch for the lake has records as they were at one moment, whatever others commit while it is made."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord.database.instants import to_micros
from auditord.database.postgres import Connection
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.postgres import driver
from auditord.store.work import Statement
from auditord_hookspecs import Component, Record, RecordUpdate
from tests.contract.store.feeds import settled

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 31, 20, tzinfo=UTC)
STOPS = [START + timedelta(days=days) for days in (1, 40, 80)]  # in three months
SENT = Provenance(START, "task:slurm")


async def test_a_change_that_comes_meanwhile_is_of_the_next_batch(
    new_postgres_url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lake would have a row that no later batch knows of, and the record twice."""
    url = new_postgres_url()
    async with open_store(url, counted_keys=()) as store, open_store(url, counted_keys=()) as other:
        await store.begin_lake()
        await store.fill_lake("a-table")
        record = Record("job", START, (Component("Cores", 1, ()),), STOPS[0])
        await store.add(record, SENT, Duplicates.SAME_RUN)
        await settled(store)
        first = await store.lake_batch(0, 100)
        await store.stop(RecordUpdate("job", (), STOPS[1]), SENT)
        await settled(store)

        execute: Any = vars(driver)["_execute"]  # of one step of a transaction
        moved: list[bool] = []

        async def executing(connection: Connection, step: Any) -> Any:
            answer = await execute(connection, step)
            if isinstance(step, Statement) and step.name == "records_of_slice" and not moved:
                moved.append(await other.stop(RecordUpdate("job", (), STOPS[2]), SENT))
            return answer

        monkeypatch.setattr(driver, "_execute", executing)
        second = await store.lake_batch(first.number, 100)
        await settled(store)
        third = await store.lake_batch(second.number, 100)
    assert moved == [True]
    assert [batch.records[0].record.stop_time for batch in (second, third)] == STOPS[1:]
    assert [batch.known["job"] for batch in (second, third)] == [{to_micros(STOPS[0])}, {to_micros(STOPS[1])}]
