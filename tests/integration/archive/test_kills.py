"""An archiving process that is killed at any step goes on where it was: nothing is lost, nothing counts twice."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import msgspec
import pytest

from auditord.archive.archiver import Archiver
from auditord.store import Duplicates, Provenance
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record, RecordUpdate
from tests.integration.archive import killed
from tests.integration.archive.conftest import Stores
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = int(os.environ.get("ARCHIVE_KILLS", "12"))
START = datetime(2024, 1, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)
BEFORE = START + 1_000 * HOUR
SENT = Provenance(START + 2_000 * HOUR, "task:slurm")
SAME_RUN = Duplicates.SAME_RUN
QUERY = AggregateQuery(by=(MetaValue("site_id", "site"),), usage=(ComponentUsage("Cores"),))


def job(number: int, stop: datetime | None = None) -> Record:
    start = START + number * HOUR / 2
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 3}",), "user_id": (f"user-{number}",)}
    return Record(f"job-{number:05}", start, (Component("Cores", number, ()),), stop or start + HOUR, meta)


def without_user(record: Record) -> dict[str, tuple[str, ...]]:
    return {key: values for key, values in (record.meta or {}).items() if key != "user_id"}


def archive_until_killed(folder: Path, url: str, step: int) -> bool:
    """False if all was done before the step came."""
    done = subprocess.run(
        [sys.executable, killed.__file__, str(folder), url, BEFORE.isoformat(), str(step)],
        check=False,
        capture_output=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode in {0, -9}, done.stderr.decode()
    return done.returncode == -9


@pytest.mark.timeout(3_000)
async def test_killed_anywhere_it_goes_on(stores: Stores, tmp_path: Path) -> None:
    random, records, kills = Random(4711), {number: job(number) for number in range(1_500)}, 0  # noqa: S311 no secret
    async with stores(tmp_path) as (store, _):
        await store.add_all(list(records.values()), SENT, SAME_RUN, atomic=True)
    while kills < KILLS:
        kills += archive_until_killed(tmp_path, stores.url(tmp_path), random.randint(1, 90))
        async with stores(tmp_path) as (store, _):
            assert await store.aggregate(QUERY) == aggregate_records(records.values(), QUERY)
            late = len(records)
            records[late] = job(late, START + late * HOUR / 10)
            await store.add(records[late], SENT, SAME_RUN)
            changed = random.randrange(late)
            records[changed] = msgspec.structs.replace(records[changed], stop_time=START + 3_000 * HOUR)
            assert await store.stop(RecordUpdate(f"job-{changed:05}", (), START + 3_000 * HOUR), SENT)
            redacted = random.randrange(late)
            records[redacted] = msgspec.structs.replace(records[redacted], meta=without_user(records[redacted]))
            await store.redact([f"job-{redacted:05}"], ["user_id"])
            again = random.randrange(late)
            await store.add(records[again], SENT, SAME_RUN)
    async with stores(tmp_path) as (store, table):
        await Archiver(store, table).run(BEFORE)
        assert await store.aggregate(QUERY) == aggregate_records(records.values(), QUERY)
        state, counts = await store.archive_state(), await store.counts()
        stopped = sum(each.stop_time is not None and each.stop_time < BEFORE for each in records.values())
        assert (state.records, counts.total, counts.differences) == (stopped, len(records), 0)
        rows = [copy.record for copy in table.records(state.snapshot_id)]
        assert sorted(rows, key=lambda each: each.record_id) == sorted(
            (each for each in records.values() if each.stop_time is not None and each.stop_time < BEFORE),
            key=lambda each: each.record_id,
        )
        assert not table.leftovers().is_any
