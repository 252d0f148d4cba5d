"""Daemons note themselves in their database."""

from datetime import UTC, datetime, timedelta

import pytest

from auditord.duplicates import Duplicates
from auditord.store.protocol import SILENT_AFTER, DaemonState, KnownDaemon
from auditord.store.store import RecordStore
from auditord.testing import make_record
from auditord_hookspecs import Provenance

NOW = datetime.now(UTC)
"""A server takes its own clock for the present."""
STATE = DaemonState("a", "head1", 42, "0.1.0", "/state", NOW, 3, NOW - timedelta(hours=1), 2, ended=False)

pytestmark = pytest.mark.anyio


async def test_what_is_noted_is_listed_by_host(store: RecordStore) -> None:
    now = datetime.now(UTC)
    assert await store.daemons(now) == []
    other = DaemonState("b", "head0", 7, "0.1.0", "/state", NOW, 0, None, 0, ended=False)
    for state in (STATE, other):
        await store.note_daemon(state, now)
    found = await store.daemons(datetime.now(UTC))
    assert [each.state for each in found] == [other, STATE]
    assert all(each.is_running and each.age < SILENT_AFTER for each in found)


async def test_the_latest_note_counts(store: RecordStore) -> None:
    await store.note_daemon(STATE, NOW)
    ended = DaemonState("a", "head2", 43, "0.2.0", "/other", NOW, 0, None, 0, ended=True)
    await store.note_daemon(ended, NOW)
    [known] = await store.daemons(NOW)
    assert known.state == ended
    assert not known.is_running


async def test_a_generation_is_saved_only_after_its_predecessor_or_itself(store: RecordStore) -> None:
    for wanted, before, after in ((2, 0, 0), (1, 0, 1), (2, 1, 2), (2, 2, 2), (4, 2, 2), (1, 2, 2), (3, 2, 3)):
        assert await store.advance("a", wanted) == before
        assert await store.generation("a") == after
    assert await store.advance("a", 9, adopt=True) == 3
    assert [await store.generation(each) for each in ("a", "b")] == [9, 0]


async def test_starts_are_read_with_the_generation_of_a_spool(store: RecordStore) -> None:
    record = make_record("job-1")
    await store.add(record, Provenance(NOW), Duplicates.SAME_RUN)
    await store.advance("a", 1)
    assert await store.starts(["job-1", "job-2"], "a") == ({"job-1": record.start_time}, 1)
    assert await store.starts([], "b") == ({}, 0)


def test_a_daemon_that_is_silent_does_not_run() -> None:
    assert KnownDaemon(STATE, SILENT_AFTER - timedelta(seconds=1)).is_running
    assert not KnownDaemon(STATE, SILENT_AFTER).is_running
