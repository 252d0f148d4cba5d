"""From the store's outbox into the send-queue: each change once, wherever the power goes out."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.errors import StoreUnavailable
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord.tasks import senders
from auditord.tasks.senders import forward_all
from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_hookspecs import Close, Entry, Insert, RecordUpdate

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
CLIENT = Provenance(EPOCH, "token:tardis", "auditor-client/0.11.2")
AWAY = StoreUnavailable("no space left on device")


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    async with Spool.opened(tmp_path, now) as spool:
        yield spool


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RecordStore]:
    async with open_store(f"sqlite://{tmp_path}/records.db", counted_keys=(), outbox=True) as store:
        yield store


async def queued(spool: Spool, sender: str = "far") -> Sequence[Entry]:
    return [each.entry for each in await spool.claim(sender, 10_000)]


async def test_changes_reach_every_sender_in_order_with_their_provenance(spool: Spool, store: RecordStore) -> None:
    await store.add(make_record("a", runtime=None), CLIENT, Duplicates.SAME_RUN)
    await store.add(make_record("b"), CLIENT, Duplicates.SAME_RUN)
    await store.stop(RecordUpdate("a", (), EPOCH + HOUR), CLIENT)
    await store.stop(RecordUpdate("b", (), EPOCH), CLIENT)
    woken = list[str]()
    spool.on_queued("far", lambda: woken.append("far"))
    await forward_all(store, spool, ["far", "near"])
    expected = [Insert(make_record("a"), None, CLIENT), Insert(make_record("b", runtime=timedelta(0)), None, CLIENT)]
    assert await queued(spool) == await queued(spool, "near") == expected
    assert not (await store.outbox(10)).has_more
    await store.stop(RecordUpdate("b", (), EPOCH + HOUR), CLIENT)
    await forward_all(store, spool, ["far", "near"])
    assert (await queued(spool))[2:] == [Close("b", EPOCH + HOUR, CLIENT)]
    assert woken


async def test_more_than_one_handful(spool: Spool, store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "AT_ONCE", 7)
    records = [make_record(f"r{number}") for number in range(40)]
    await store.add_all(records, CLIENT, Duplicates.SAME_RUN, atomic=True)
    await forward_all(store, spool, ["far"])
    assert await queued(spool) == [Insert(record, None, CLIENT) for record in records]


class Failing:
    """A store or a spool that fails before or after some of its calls, as a crash would end the process there."""

    def __init__(self, real: Any, faults: Mapping[str, list[str]]) -> None:  # Any: a store or a spool
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(self._real, name)
        if not callable(found):
            return found

        async def call(*args: Any) -> Any:
            faults = self._faults.get(name, [])
            fault = faults.pop(0) if faults else "none"
            if fault == "before":
                raise AWAY
            result: Any = await getattr(self._real, name)(*args)
            if fault == "after":
                raise AWAY
            return result

        return call


FAULTS = st.lists(st.sampled_from(["none", "before", "after"]), max_size=6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.fixed_dictionaries(dict.fromkeys(("outbox", "forget_outbox", "take_over", "forget_taken"), FAULTS)),
    additions=st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
async def test_each_change_is_queued_once_wherever_it_is_interrupted(
    tmp_path_factory: pytest.TempPathFactory, faults: Mapping[str, list[str]], additions: Sequence[int]
) -> None:
    folder = tmp_path_factory.mktemp("forwarding")
    added = list[str]()
    async with (
        Spool.opened(folder, now) as spool,
        open_store(f"sqlite://{folder}/records.db", counted_keys=(), outbox=True) as store,
    ):
        failing: Any = Failing(store, faults)
        failing_spool: Any = Failing(spool, faults)
        sent = list[str]()
        for number in additions:
            names = [f"r{len(added) + index}" for index in range(number)]
            await store.add_all([make_record(name) for name in names], CLIENT, Duplicates.SAME_RUN, atomic=True)
            added += names
            await forward_all(failing, failing_spool, ["far"])
            sent += await send_all(spool)
        await forward_all(store, spool, ["far"])
        sent += await send_all(spool)
        assert sent == added
        assert not (await store.outbox(1)).has_more


async def send_all(spool: Spool) -> list[str]:
    """A sender's work meanwhile: an entry that was sent is not in the queue any more, and must not come back."""
    claimed = await spool.claim("far", 10_000)
    await spool.settle("far", [each.entry_id for each in claimed], {})
    return [each.entry.record.record_id for each in claimed if isinstance(each.entry, Insert)]


async def test_another_stores_numbers_do_no_harm(spool: Spool) -> None:
    await spool.take_over([(1, Insert(make_record("a")))], ["far"])  # and the power goes out before it is forgotten
    await spool.take_over([(1, Insert(make_record("b")))], ["far"])
    await spool.take_over([(1, Insert(make_record("b")))], ["far"])
    assert [entry.record.record_id for entry in await queued(spool) if isinstance(entry, Insert)] == ["a", "b"]
    numbers: Collection[int] = (1, 2)
    await spool.forget_taken(numbers)
