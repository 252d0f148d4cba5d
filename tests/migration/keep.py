"""Fill a record store and a spool as this version makes them, and keep them as files for the versions to come.

``python -m tests.migration.keep 1.0.0`` writes ``released/1.0.0``: the SQLite files, a plain dump of the PostgreSQL
schema, and the answers that every later version has to give about both. It needs PostgreSQL's programs. Run it once for
each release that adds a migration, with the code of that release, and never again for a version that is out.
"""

import asyncio
import gzip
import sqlite3
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from auditord.duplicates import Duplicates
from auditord.spool import Spool
from auditord.store import Action, Amendment, Provenance
from auditord.store.opening import open_store
from auditord.store.protocol import DaemonState
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    Batch,
    CalendarPeriod,
    CalendarUnit,
    Close,
    Component,
    ComponentUsage,
    Entry,
    MetaValue,
    Quarantined,
    Record,
    RecordQuery,
    RecordUpdate,
    RunReport,
    Score,
)
from auditord_hookspecs.aggregates import Group
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.wire import encode_record
from tests.contract.store.feeds import settled
from tests.postgres_server import PostgresServer, migrate_database, own_server, programs

FOLDER: Final = Path(__file__).parent / "released"
KEYS: Final = ("site_id", "group_id", "user_id")
START: Final = datetime(2026, 1, 5, 6, 7, 8, 901_234, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
SLURM: Final = Provenance(START + 2 * HOUR, "task:slurm")
CLIENT: Final = Provenance(START + 3 * HOUR, "cern-client", "pyauditor/0.11.2")
ALICE: Final = Provenance(START + 4 * HOUR, "user:alice", "auditord")
CHANGED: Final = ("slurm-4", "slurm-5", "slurm-6", "slurm-7")
"""Records that have a history."""
MONTHS: Final = CalendarPeriod(CalendarUnit.MONTH)
SUMS: Final = (
    AggregateQuery(usage=(ComponentUsage("Cores", ("HEPscore23",)), ComponentUsage("Energy"))),
    AggregateQuery(by=(MetaValue("site_id"), MetaValue("group_id"), MONTHS), usage=(ComponentUsage("Cores"),)),
    AggregateQuery(by=(MetaValue("user_id"), MetaValue("project"))),
)


def job(number: int, **changes: object) -> Record:
    """A finished job; each fifth has further components, each third a score."""
    scores = (Score("HEPscore23", 11.5 + number % 4),) if number % 3 == 0 else ()
    others = (Component("Energy", number * 1_000, ()), Component("GPU", 1, ())) if number % 5 == 0 else ()
    components = (Component("Cores", number % 8 + 1, scores), Component("Memory", number * 10, ()), *others)
    labels: dict[str, tuple[str, ...]] = {
        "site_id": (f"site-{number % 3}",),
        "group_id": (f"group-{number % 4}",),
        "user_id": (f"user-{number}",),
    }
    stop = START + number * 24 * HOUR + HOUR / 7
    return msgspec.structs.replace(Record(f"slurm-{number}", START, components, stop, labels), **changes)


async def fill(store: RecordStore) -> None:
    """Put something into every table, and into every column that is not always filled."""
    await store.add_all([job(number) for number in range(40)], SLURM, Duplicates.SAME_RUN, atomic=True)
    await store.add(job(80, meta={"site_id": ("site-0", "site-1"), "project": ("é 😀",)}), CLIENT, Duplicates.SAME_RUN)
    await store.add(job(81, components=(Component("Cores", MAX_AMOUNT, ()),) * 2), CLIENT, Duplicates.SAME_RUN)
    await store.add_all([job(number, stop_time=None) for number in (82, 83)], CLIENT, Duplicates.SAME_RUN, atomic=True)
    await store.begin_lake()
    await store.fill_lake("a lake")
    await settled(store)
    await store.rollups.fold()
    await store.forget_outbox((await store.outbox(2)).position)
    # What follows is in the feed, and neither in counts nor in cells.
    await store.stop(RecordUpdate("slurm-82", (), START + HOUR), CLIENT)
    await store.add(job(3, meta=None), CLIENT, Duplicates.SAME_RUN)
    await store.replace(job(4, components=(Component("Cores", 64, ()),)), ALICE)
    await store.replace(job(8, start_time=START - HOUR), ALICE, "slurm-8@1")
    corrected = Amendment(Action.CORRECT, encode_record(job(5)), job(5, meta={"site_id": ("site-9",)}), "a wrong site")
    closed = Amendment(Action.CLOSE, encode_record(job(83, stop_time=None)), job(83), "lost")
    deleted = Amendment(Action.DELETE, encode_record(job(6)), None, "ticket 12")
    await store.amend([corrected, closed, deleted], ALICE)
    await store.redact(["slurm-7"], ["user_id"])
    async with store.memory("apel", None) as memory:
        await memory.save({"site-0": {"2026-01": "hash"}}, START)
    state = DaemonState("spool-1", "head1", 42, "1.0.0", "/state", START, 3, START - HOUR, 2, ended=True)
    await store.note_daemon(state, START)
    await store.advance("spool-1", 7, adopt=True)
    await settled(store)


async def answers(store: RecordStore) -> dict[str, Any]:  # Any: JSON
    """Ask the store for everything that a caller can see; JSON keeps it, and a later version answers the same."""
    async with store.stream(RecordQuery(order=Order(SortField.ID))) as pages:
        records = [text.decode() async for page in pages for text in page]
    counts = await store.counts()
    async with store.differences() as differences, store.memory("apel", None) as memory:
        said = {
            "records": records,
            "counts": [counts.total, counts.differences, counts.per_value],
            "sums": [[_group(group) for group in (await store.aggregate(query)).groups] for query in SUMS],
            "differences": [[each.record_id, each.principal, each.offered.decode()] async for each in differences],
            "history": [
                [version.action.value, version.reason, version.changed_by, version.document.decode()]
                for name in CHANGED
                for version in await store.history(name)
            ],
            "deleted": sorted(await store.find_deleted(CHANGED)),
            "outbox": sorted(_forwarded(waiting.entry) for waiting in (await store.outbox(1_000)).entries),
            "memory": await memory.load(),
            "generation": await store.generation("spool-1"),
            "lake": (await store.lake_state()).lake_id,
        }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(said))  # Any: the same
    return plain


def _group(group: Group) -> list[object]:
    usage = [
        [used.sums.amount, used.sums.amount_runtime, {name: str(score.amount) for name, score in used.scores.items()}]
        for used in group.usage
    ]
    return [group.key, group.records, group.runtime, group.first_stop, group.last_stop, usage]


def _forwarded(entry: Entry) -> list[str]:
    record_id = entry.record_id if isinstance(entry, Close) else entry.record.record_id
    return [type(entry).__name__, record_id]


def compressed(content: bytes) -> bytes:
    """Compress without the time, so that the same content makes the same file."""
    return gzip.compress(content, mtime=0)


def dump(url: str) -> bytes:
    """Return the plain SQL of a PostgreSQL database."""
    command = [str(programs() / "pg_dump"), "--format=plain", "--no-owner", "--no-privileges", url]
    return subprocess.run(command, check=True, capture_output=True).stdout


def rest(path: Path) -> bytes:
    """Return an SQLite file with everything in it, and nothing beside it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def opened(url: str) -> AbstractAsyncContextManager[RecordStore]:
    """Open a store as a daemon with senders and a label of its own does."""
    return open_store(url, counted_keys=KEYS, outbox=True, rolled_keys=("project",))


async def make(url: str) -> dict[str, Any]:  # Any: JSON
    """Fill a store; return its answers."""
    async with opened(url) as store:
        await fill(store)
        return await answers(store)


async def make_spool(folder: Path) -> bytes:
    """Fill a spool; return its file."""
    async with Spool.opened(folder, lambda: START) as spool:
        odd = Quarantined("77", '{"JobID": "77"}', "odd")
        batch = Batch([job(500), job(501)], checkpoint={"until": "2026-01-09T00:00:00Z"}, quarantined=[odd])
        remembered = msgspec.structs.replace(
            batch, seen={"77": datetime.max.replace(tzinfo=UTC)}, pending={"9": {"first": 1}}
        )
        await spool.enqueue("slurm", remembered, ["local", "elsewhere"])
        await spool.record_run(RunReport("slurm", "slurm", START, HOUR, skipped={"never started": 4}))
        async with spool.memory("remote_apel", None) as memory:
            await memory.save({"a": 1}, START)
    return rest(folder / "spool.db")


def main(version: str) -> None:
    """Write the folder of a version."""
    kept = FOLDER / version
    kept.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, own_server() as server:
        path, url = Path(folder, "records.db"), PostgresServer(server.url).create()
        migrate_database(url)
        said = [asyncio.run(make(each)) for each in (f"sqlite://{path}", url)]
        assert said[0] == said[1], "the two stores give different answers"
        (kept / "answers.json").write_bytes(msgspec.json.format(msgspec.json.encode(said[0])) + b"\n")
        (kept / "records.db.gz").write_bytes(compressed(rest(path)))
        (kept / "records.postgresql.sql.gz").write_bytes(compressed(dump(url)))
        (kept / "spool.db.gz").write_bytes(compressed(asyncio.run(make_spool(Path(folder)))))


if __name__ == "__main__":
    main(sys.argv[1])
