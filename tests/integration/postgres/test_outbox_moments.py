"""Senders get the changes of one moment, whatever others commit while they are read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord.database.postgres import Connection
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.postgres import driver
from auditord.store.work import Statement
from auditord_hookspecs import Close, Component, Insert, Record, RecordUpdate
from tests.contract.store.feeds import forwarded, settled

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 31, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
CLIENT = Provenance(START, "user:ce")


async def test_a_record_that_changes_meanwhile_is_forwarded(
    new_postgres_url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else neither look would find it: it leaves the first slice, and the second one takes it for forwarded."""
    url = new_postgres_url()
    async with open_store(url, counted_keys=(), outbox=True) as store, open_store(url, counted_keys=()) as other:
        record = Record("job", START, (Component("Cores", 1, ()),), START + HOUR)
        await store.add(record, CLIENT, Duplicates.SAME_RUN)
        await settled(store)

        execute: Any = vars(driver)["_execute"]  # of one step of a transaction
        moved: list[bool] = []

        async def executing(connection: Connection, step: Any) -> Any:
            answer = await execute(connection, step)
            if isinstance(step, Statement) and step.name == "removals_of_slice" and not moved:
                moved.append(await other.stop(RecordUpdate("job", (), START + 2 * HOUR), CLIENT))
            return answer

        monkeypatch.setattr(driver, "_execute", executing)
        first = await store.outbox(100)
        await store.forget_outbox(first.position)
        assert moved == [True]
        assert [each.entry for each in first.entries] == [Insert(record, None, CLIENT)]
        assert await forwarded(store) == [Close("job", START + 2 * HOUR, CLIENT)]
