"""One cycle of the plugin ``priority`` over two million records, beside the barest SQL with the same sums.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_priority.py``.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord.testing import FakePluginContext
from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.running import set_priorities
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Record, Records, Score
from tests.benchmark.in_turns import Turns, in_turns

BEGIN: Final = datetime(2024, 1, 1, tzinfo=UTC)
SPACING: Final = timedelta(seconds=3.9)
END: Final = BEGIN + 2_000_000 * SPACING
"""The time of the cycle: some jobs have not stopped yet."""

BATCH: Final = 5_000
ROUNDS: Final = 5
GROUPS: Final = 60
SERVER: Final = Path(__file__).parents[1] / "integration" / "web" / "server_process.py"
CHILD: Final = Path(__file__).with_name("pulling_child.py")
CYCLES: Final = {
    "14 days": {"duration": "14d"},
    "14 days, overlap": {"duration": "14d", "window": "overlap"},
    "everything": {},
}


def job(number: int) -> Record:
    """A finished job as the Slurm collector makes it; groups unevenly busy, nodes of three types."""
    start = BEGIN + number * SPACING
    cores = Component("Cores", 1 << number % 7, (Score("hepscore23", (9.2, 15.5, 18.1)[number * 7 % 3]),))
    memory = Component("Memory", 2_000_000_000 + number * 7_919 % 1_000_003, ())
    stop = start + timedelta(seconds=number * 15_485_863 % 200_000)
    group = number * number % 1_999 % GROUPS
    meta: dict[str, tuple[str, ...]] = {"site_id": ("site",), "group_id": (f"group{group}",)}
    return Record(f"slurm-cluster1-{4_000_000 + number}", start, (cores, memory), stop, meta)


class OnStore(FakePluginContext):
    """The records of a real store; commands succeed at once, since they are not what is measured."""

    kept: Records

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        return await self.kept.aggregate(query)


async def fill(store: RecordStore, numbers: Sequence[int]) -> None:
    for first in range(0, len(numbers), BATCH):
        records = [job(number) for number in numbers[first : first + BATCH]]
        await store.add_all(records, Provenance(BEGIN, "task:benchmark"), Duplicates.SAME_RUN, atomic=True)


def config(**options: object) -> PriorityConfig:
    mapping = {f"group{number}": [f"partition{number}"] for number in range(GROUPS)}
    return PriorityConfig.model_validate(
        {"group_mapping": mapping, "components": {"Cores": "hepscore23"}, "max_priority": 65335, **options}
    )


async def cycle(store: RecordStore, chosen: PriorityConfig) -> None:
    """One run."""
    context = OnStore(moment=END, commands=lambda _: b"")
    context.kept = StoredRecords(store)
    await set_priorities(chosen, context)
    assert len(context.ran) == GROUPS


@contextmanager
def bare_connection(url: str) -> Generator[Callable[[str], object], None, None]:
    """A function that runs a statement and fetches its rows."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(f"file:{url.removeprefix('sqlite://')}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA cache_size = -1024")  # as the store's reading connections
            yield lambda sql: connection.execute(sql).fetchall()
    else:
        with psycopg.connect(url) as server:
            server.execute("SET jit = off")  # as the store's connections
            yield lambda sql: server.execute(sql.encode()).fetchall()


def bare_sql(url: str, chosen: PriorityConfig) -> str:
    """The same sums over the same columns, and nothing else."""
    begin, end = END - (chosen.duration or timedelta()), END
    if url.startswith("sqlite:"):
        table, runtime = "records", "(stop_time - start_time) / 1000000"
        first, last = (str(round(moment.timestamp()) * 1_000_000) for moment in (begin, end))
        overlap = f"min(stop_time, {last}) - max(start_time, {first})"
    else:
        table, runtime = "auditord.records", "runtime"
        first, last = (f"timestamptz '{moment.isoformat()}'" for moment in (begin, end))
        overlap = f"(extract(epoch FROM least(stop_time, {last}) - greatest(start_time, {first})) * 1000000)::bigint"
    where = "" if chosen.duration is None else f"WHERE stop_time >= {first}"
    if chosen.window == "overlap":
        where, runtime = f"WHERE stop_time > {first} AND start_time < {last}", overlap
    return f"SELECT user_group, score_set, count(*), sum(cores * ({runtime})) FROM {table} {where} GROUP BY 1, 2"  # noqa: S608 ours


async def side_by_side(store: RecordStore, url: str, chosen: PriorityConfig, rounds: int) -> Turns:
    """Cycles and the bare SQL."""
    with bare_connection(url) as run:
        return await in_turns(url, rounds, partial(cycle, store, chosen), partial(run, bare_sql(url, chosen)))


def pull(url: str, folder: Path) -> Any:  # Any: JSON
    """The same fourteen days as AUDITOR's plugins get them: its released client pulls the records from a server."""
    command = [sys.executable, str(SERVER), str(folder), url, "same-run", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = json.loads(server.stdout.readline())[0].rpartition(":")[2]
            since = (END - timedelta(days=14)).isoformat()
            done = subprocess.run([sys.executable, str(CHILD), port, since], capture_output=True, check=True)
            return json.loads(done.stdout)
        finally:
            server.terminate()


@pytest.mark.anyio
async def test_a_cycle_over_twenty_thousand_records(store: RecordStore, url: str, tmp_path: Path) -> None:
    await fill(store, range(0, 2_000_000, 100))
    for options in CYCLES.values():
        (turn,) = (await side_by_side(store, url, config(**options), 1)).turns
        assert min(turn.ours, turn.bare) > 0
    assert pull(url, tmp_path)["records"] > 1_000


@pytest.mark.benchmark
@pytest.mark.anyio
async def test_a_cycle_over_two_million_records_beside_bare_sql(store: RecordStore, url: str, tmp_path: Path) -> None:
    await fill(store, range(2_000_000))
    print(f"\n{url.partition(':')[0]}")  # noqa: T201 the figures are what it is for
    for name, options in CYCLES.items():
        print(f"{name}: a cycle {await side_by_side(store, url, config(**options), ROUNDS)}")  # noqa: T201 the same
    pulled = pull(url, tmp_path)
    print(  # noqa: T201 for information
        f"14 days, AUDITOR's blocking client pulls {pulled['records']:,} records in {pulled['seconds']:.1f} s, "
        f"{pulled['memory']:.0f} MiB"
    )
