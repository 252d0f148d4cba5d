"""Users' names go out of old records for good, on both stores: what they were is nowhere, and all other sums stay."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from auditord.contexts.plugins import StorePluginContext
from auditord.database.memory import PluginMemory
from auditord.store import Action, Amendment, Duplicates, Provenance, Verdict
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord.testing import FakePluginContext
from auditord_builtin.privacy import retention
from auditord_builtin.privacy.retention import RetentionConfig
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record
from auditord_hookspecs.wire import decode_record, encode_record
from tests.contract.store.conftest import StoreFactory
from tests.contract.store.feeds import forwarded

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 20, tzinfo=UTC)
OLD = datetime(2026, 7, 31, 23, 59, 59, tzinfo=UTC)
SAME_RUN = Duplicates.SAME_RUN
BY_COLLECTOR = Provenance(NOW, "task:slurm")
KEYS = ("user_id", "user")


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores(outbox=True) as opened:
        yield opened


def record(record_id: str, who: str | None = "alice", stop: datetime = OLD, **meta: tuple[str, ...]) -> Record:
    meta = {"site_id": ("A",), "group_id": ("g",), **({} if who is None else {"user_id": (who,)}), **meta}
    return Record(record_id, stop - timedelta(hours=1), (Component("Cores", 8, ()),), stop, meta)


async def add(store: RecordStore, *records: Record) -> list[Verdict]:
    return list(await store.add_all(records, BY_COLLECTOR, SAME_RUN, atomic=True))


async def stored(store: RecordStore, record_id: str) -> Record:
    document = await store.get(record_id)
    assert document is not None
    return decode_record(document)


async def sums(store: RecordStore, *keys: str) -> Any:  # Any: compared only
    by = tuple(MetaValue(key) for key in keys)
    return (await store.aggregate(AggregateQuery(by=by, usage=(ComponentUsage("Cores"),)))).groups


async def test_the_keys_are_gone_and_all_else_stays(store: RecordStore) -> None:
    await add(store, record("a", user=("al",)), record("b", who="bob"), record("c", who=None))
    before = await sums(store, "site_id", "group_id")
    assert await store.redact(["a", "b", "c", "none"], KEYS) == 2
    assert await store.redact(["a", "b", "c"], KEYS) == 0
    assert await stored(store, "a") == record("a", who=None)
    assert await sums(store, "site_id", "group_id") == before
    (group,) = await sums(store, "user_id")
    assert (group.key, group.records) == ((None,), 3)
    counts = await store.counts()
    assert counts.total == 3
    assert not counts.per_value.get("user_id")


async def test_what_is_collected_again_is_the_same_and_brings_no_name_back(store: RecordStore) -> None:
    await add(store, record("a"))
    await store.redact(["a"], KEYS)
    assert await add(store, record("a")) == [Verdict.SAME]
    assert await add(store, record("a", who="bob")) == [Verdict.SAME]
    other = msgspec.structs.replace(record("a"), components=(Component("Cores", 9, ()),))
    assert await add(store, other) == [Verdict.DIFFERENT]
    assert await stored(store, "a") == record("a", who=None)
    assert await store.redact_leftovers(NOW, KEYS) == 1
    assert (await store.counts()).differences == 0


async def test_neither_history_nor_differences_nor_outbox_tell(store: RecordStore) -> None:
    await add(store, record("a"), record("gone"), record("recent", stop=NOW))
    await add(store, msgspec.structs.replace(record("a"), components=()))
    corrected = msgspec.structs.replace(record("a"), components=(Component("Cores", 4, ()),))
    by = Provenance(NOW, "user:root")
    await store.amend([Amendment(Action.CORRECT, encode_record(record("a")), corrected, "x")], by)
    await store.amend([Amendment(Action.DELETE, encode_record(record("gone")), None, "x")], by)
    fixed = msgspec.structs.replace(record("recent", stop=NOW), components=())
    await store.amend([Amendment(Action.CORRECT, encode_record(record("recent", stop=NOW)), fixed, "x")], by)
    before = await forwarded(store)
    assert await store.redact(["a"], KEYS) == 1
    assert await store.redact_leftovers(OLD + timedelta(days=1), KEYS) == 1
    for record_id in ("a", "gone"):
        (version,) = await store.history(record_id)
        assert b"alice" not in version.document
        assert b"Cores" in version.document
    (kept,) = await store.history("recent")
    assert b"alice" in kept.document
    assert len(await forwarded(store)) == len(before)


class EmptyMemory:
    """A plugin's memory of nothing."""

    async def save(self, state: Any, moment: datetime) -> None:  # Any: JSON
        raise AssertionError((state, moment))


@dataclass
class Shown:
    """Receives what a plugin shows."""

    texts: list[str]

    def show_line(self, line: str) -> None:
        """Leave the log out."""

    def show_progress(self, fraction: float) -> None:
        raise AssertionError(fraction)

    def show_output(self, text: str) -> None:
        self.texts.append(text)


def context(store: RecordStore, shown: list[str] | None = None) -> StorePluginContext:
    records, memory = StoredRecords(store), EmptyMemory()
    unused: PluginMemory = memory  # type: ignore[assignment] # retention keeps no state
    return StorePluginContext(
        "privacy", "retention", lambda: NOW, memory=unused, records=records, state=None, own_records=records,
        backups=FakePluginContext(),
        dry_run=shown is not None, observer=None if shown is None else Shown(shown),
    )  # fmt: skip


async def test_retention_goes_through_all_old_records_in_portions(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 3)
    old = [record(f"old-{number}", stop=OLD - timedelta(hours=number // 4)) for number in range(11)]
    other = record("other", who=None, stop=OLD, user=("x", "y"))
    await add(store, *old, other, record("nameless", who=None), record("recent", stop=OLD + timedelta(seconds=1)))
    before = await sums(store, "site_id", "group_id")
    config, shown = RetentionConfig(months=3), list[str]()
    await retention.forget(config, context(store, shown))
    assert shown == ["2026: 12 records would lose user_id, user"]
    assert (await stored(store, "old-3")).meta == record("old-3").meta
    await retention.forget(config, context(store))
    assert [(await stored(store, each.record_id)).meta for each in (*old, other)] == [record("x", who=None).meta] * 12
    assert (await stored(store, "recent")).meta == record("recent").meta
    assert await sums(store, "site_id", "group_id") == before
    await retention.forget(config, context(store, shown))
    assert shown[1:] == ["no record that ended before 2026-08-01 has any of user_id, user"]


@pytest.mark.parametrize(
    ("now", "months", "expected"),
    [
        (NOW, 3, datetime(2026, 8, 1, tzinfo=UTC)),
        (datetime(2026, 1, 1, tzinfo=UTC), 1, datetime(2025, 12, 1, tzinfo=UTC)),
        (datetime(2026, 12, 31, tzinfo=UTC), 12, datetime(2025, 12, 1, tzinfo=UTC)),
        (datetime(2026, 6, 30, tzinfo=UTC), 24, datetime(2024, 6, 1, tzinfo=UTC)),
    ],
)
def test_names_stay_for_whole_months(now: datetime, months: int, expected: datetime) -> None:
    assert retention.cutoff(now, months) == expected
