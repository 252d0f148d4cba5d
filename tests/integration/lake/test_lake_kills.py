"""Two daemons write one lake and are killed at any step, while records change: the lake is what the stores are.

LAKE_KILLS says how many kills there are.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from auditord.lake.syncing import sync
from auditord.store import Action, Amendment, Duplicates, Provenance, RecordStore
from auditord.store.opening import open_store
from auditord_hookspecs import Component, Record, RecordUpdate
from tests.integration.lake import killed
from tests.integration.lake.killed import LOG, lake_in
from tests.integration.lake.lake_rows import rows, texts
from tests.s3_server import s3_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = int(os.environ.get("LAKE_KILLS", "4"))
BETWEEN_CHECKS = 20
START = datetime(2024, 1, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)
SLURM = Provenance(START, "task:slurm")
NAMES = ("a", "b")


def job(number: int, *, is_open: bool = False) -> Record:
    start = START + number * 20 * HOUR
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 3}",), "user_id": (f"user-{number % 7}",)}
    return Record(f"job-{number:05}", start, (Component("Cores", 1, ()),), None if is_open else start + HOUR, meta)


def started(lake: Path, name: str, url: str, step: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, killed.__file__, str(lake), name, url, str(step)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def ended(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """The number of those that were killed."""
    for process in processes:
        _, output = process.communicate(timeout=250)
        # Two that make the catalog at the same time, one of which is killed, or a lock that outlives its holder.
        assert process.returncode in {0, -9} or b"StoreUnavailable" in output, output.decode()
    return sum(process.returncode == -9 for process in processes)


async def change(store: RecordStore, random: Random, count: int) -> int:
    """New records, open ones, closes, corrections and deletions; returns how many ids there were."""
    new = [job(count + number, is_open=number % 3 == 0) for number in range(12)]
    await store.add_all(new, SLURM, Duplicates.SAME_RUN, atomic=True)
    for _ in range(6):
        stop = START + random.randrange(20_000) * HOUR
        await store.stop(RecordUpdate(f"job-{random.randrange(count + 12):05}", (), stop), SLURM)
    wrong = f"job-{random.randrange(count + 12):05}"
    if (stored := await store.get(wrong)) is not None:
        await store.amend([Amendment(Action.DELETE, stored, None, "wrong")], SLURM)
    await store.redact([f"job-{random.randrange(count + 12):05}"], ["user_id"])
    return count + 12


async def check(lake: Path, stores: Mapping[str, RecordStore]) -> None:
    """Sync the rest, and compare every record."""
    table = lake_in(lake)
    for name, store in stores.items():
        await sync(store, table, name, LOG)
        assert rows(table, name) == await texts(store)
    table.close()


@pytest.fixture(params=["files", "object store"])
def kills_wanted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many; half of them in an object store, whose server takes its time."""
    if request.param == "files":
        yield KILLS
        return
    with s3_server() as server:
        monkeypatch.setenv("LAKE_TEST_S3", server.endpoint)
        yield KILLS // 2


@pytest.mark.timeout(7_200)
async def test_killed_anywhere_the_lake_is_what_the_stores_are(
    tmp_path: Path, new_postgres_url: Callable[[], str], kills_wanted: int
) -> None:
    random, kills, checked, count, lake = Random(4711), 0, 0, 0, tmp_path / "lake"  # noqa: S311 no secret
    urls = {"a": f"sqlite://{tmp_path / 'a.db'}", "b": new_postgres_url()}
    async with AsyncExitStack() as stack:
        opened = {name: await stack.enter_async_context(open_store(url, counted_keys=())) for name, url in urls.items()}
        for store in opened.values():
            count = await change(store, random, 0)
        while kills < kills_wanted:
            changed = count
            processes = [started(lake, name, url, random.randint(1, 160)) for name, url in urls.items()]
            for store in opened.values():  # while they sync
                changed = await change(store, random, count)
            kills, count = kills + ended(processes), changed
            if kills >= kills_wanted or kills - checked >= BETWEEN_CHECKS:
                checked = kills
                await check(lake, opened)
                print(f"{kills} kills: {count} ids in each store, the lake has what they have", flush=True)  # noqa: T201
