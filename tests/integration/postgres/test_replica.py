"""A real streaming replica: lists and sums are its while it is near, and never its when it is not."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import anyio
import psycopg
import pytest

from auditord.config.model import StoreSection
from auditord.database.postgres.faults import translate_errors
from auditord.errors import SchemaMismatch, StoreUnavailable
from auditord.store import Duplicates, Provenance
from auditord.store.checks import check_replica
from auditord.store.opening import open_replica, open_store
from auditord.store.replica import Replica, ReplicatedReads
from auditord.store.store import RecordStore
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import AggregateQuery, MetaValue, Record, RecordQuery
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.query import IdEquals
from tests.postgres_server import OwnServer, PostgresServer, migrate_database, own_server

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
SENT = Provenance(BEGIN, "task:slurm")
BY_SITE = AggregateQuery(by=(MetaValue("site_id"),))


@pytest.fixture(scope="module")
def primary(postgres_server: PostgresServer) -> Generator[OwnServer, None, None]:
    """A server of its own, since all databases of a server are replicated; skipped where there can be none."""
    del postgres_server
    with own_server() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: OwnServer) -> Generator[OwnServer, None, None]:
    with own_server(primary=primary) as server:
        yield server


@pytest.fixture
def url(primary: OwnServer) -> str:
    made = PostgresServer(primary.url).create()
    migrate_database(made)
    return made


def at(server: OwnServer, url: str) -> str:
    """The same database at another server."""
    return urlsplit(server.url)._replace(path=urlsplit(url).path).geturl()


def job(number: int) -> Record:
    start = BEGIN + timedelta(hours=number)
    return Record(f"job-{number}", start, (), start + timedelta(hours=1), {"site_id": ("a" if number % 2 else "b",)})


@dataclass
class ReplicatedStore:
    """A store, its replica, and the clock by which the replica's lag is told."""

    store: RecordStore
    replica: Replica
    seconds: list[float]
    standby: OwnServer

    @property
    def reads(self) -> ReplicatedReads:
        return ReplicatedReads(self.store, self.replica)

    async def add(self, *numbers: int) -> None:
        await self.store.add_all([job(each) for each in numbers], SENT, Duplicates.SAME_RUN, atomic=True)

    async def follow(self) -> None:
        """Look until the replica includes what is committed by now."""
        self.seconds[0] += 1
        now = self.seconds[0]
        while self.replica.lag is None or self.seconds[0] - self.replica.lag < now:
            with suppress(StoreUnavailable):  # it may be starting
                await self.replica.look()
            await anyio.sleep(0.01)

    async def listed(self, query: RecordQuery) -> int:
        async with self.reads.stream(query) as pages:
            return sum([len(page) async for page in pages])

    def ask_standby(self, sql: str) -> None:
        with psycopg.connect(self.standby.url, autocommit=True) as connection:
            connection.execute(sql.encode())


Begin = Callable[[str], Awaitable[ReplicatedStore]]


@asynccontextmanager
async def replicated(url: str, replica_url: str, standby: OwnServer) -> AsyncGenerator[ReplicatedStore, None]:
    section, seconds = StoreSection(url=url, replica=replica_url), [0.0]
    async with open_store(url, counted_keys=()) as store, open_replica(section, store) as found:
        replica = Replica(found.store, found.primary, "there", section.replica_max_lag, lambda: seconds[0])
        yield ReplicatedStore(store, replica, seconds, standby)


@pytest.fixture
async def trial(url: str, standby: OwnServer) -> AsyncGenerator[ReplicatedStore, None]:
    with psycopg.connect(url) as connection:
        reached = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    with psycopg.connect(standby.url, autocommit=True) as connection:  # it knows the database by then
        while connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", reached).fetchone() != (True,):
            pass
    async with replicated(url, at(standby, url), standby) as made:
        yield made
        made.ask_standby("SELECT pg_wal_replay_resume()")  # whatever the test has left


async def test_lists_and_sums_are_of_the_replica_while_it_is_near(trial: ReplicatedStore) -> None:
    await trial.add(*range(30))
    assert await trial.listed(RecordQuery()) == 30  # nobody has looked at it yet: of the store
    await trial.follow()
    assert await trial.reads.aggregate(BY_SITE) == await trial.store.aggregate(BY_SITE)
    trial.ask_standby("SELECT pg_wal_replay_pause()")
    await trial.add(30)
    await trial.replica.look()
    assert await trial.listed(RecordQuery()) == 30  # the replica has answered
    assert sum(group.records for group in (await trial.reads.aggregate(BY_SITE)).groups) == 30
    trial.seconds[0] += 31  # by default thirty seconds behind
    assert await trial.listed(RecordQuery()) == 31
    assert sum(group.records for group in (await trial.reads.aggregate(BY_SITE)).groups) == 31
    trial.ask_standby("SELECT pg_wal_replay_resume()")
    await trial.follow()
    assert trial.replica.is_near()
    assert await trial.listed(RecordQuery()) == 31


async def test_a_record_that_was_just_sent_is_found(trial: ReplicatedStore) -> None:
    await trial.follow()
    trial.ask_standby("SELECT pg_wal_replay_pause()")
    await trial.add(1)
    assert await trial.reads.get("job-1") is not None
    assert await trial.listed(RecordQuery(IdEquals("job-1"), limit=1)) == 1
    assert await trial.listed(RecordQuery(IdEquals("job-1"))) == 0


async def test_sums_of_roll_ups_are_those_of_the_replicas_own_moment(trial: ReplicatedStore) -> None:
    await trial.add(*range(200))
    await trial.follow()
    trial.ask_standby("SELECT pg_wal_replay_pause()")
    before = await trial.store.aggregate(BY_SITE)
    await trial.add(*range(200, 1_000))
    assert (await trial.store.aggregate(BY_SITE)).groups != before.groups  # folded at the store, not at the replica
    assert await trial.reads.aggregate(BY_SITE) == before


async def test_the_store_itself_is_no_replica(url: str, standby: OwnServer) -> None:
    async with replicated(url, url, standby) as trial:
        await trial.add(1)
        with pytest.raises(SchemaMismatch, match="it follows no other server"):
            await trial.replica.look()
        assert not trial.replica.is_near()
        assert await trial.listed(RecordQuery()) == 1


async def test_an_end_of_the_replica_is_noticed_by_the_next_question(trial: ReplicatedStore) -> None:
    await trial.add(1)
    await trial.follow()
    trial.standby.stop()
    try:
        assert trial.replica.is_near()
        assert await trial.listed(RecordQuery()) == 1
        assert not trial.replica.is_near()
        assert (await trial.reads.aggregate(BY_SITE)).groups
        with pytest.raises(StoreUnavailable):
            await trial.replica.look()
    finally:
        trial.standby.start()
    await trial.follow()
    assert trial.replica.is_near()


async def test_doctor_looks_at_the_replica(trial: ReplicatedStore, url: str) -> None:
    nowhere = urlsplit(url)._replace(netloc="127.0.0.1:1").geturl()
    near, away, itself = [await found(url, replica) for replica in (at(trial.standby, url), nowhere, url)]
    assert (near.severity, "at most" in near.text) == (Severity.OK, True)
    assert (away.severity, away.subject, bool(away.remedy)) == (Severity.WARNING, "replica", True)
    assert (itself.severity, "follows no other server" in itself.text) == (Severity.FAILURE, True)
    trial.ask_standby("SELECT pg_wal_replay_pause()")
    await trial.add(1)
    behind = await found(url, at(trial.standby, url), replica_max_lag=timedelta(seconds=2.1))
    assert (behind.severity, behind.text) == (Severity.WARNING, "it is more than 2.1 s behind")


async def found(url: str, replica: str, **options: Any) -> Finding:  # Any: of the section
    [finding] = [each async for each in check_replica(StoreSection(url=url, replica=replica, **options))]
    return finding


def test_a_daemon_goes_on_when_its_replica_ends(url: str, standby: OwnServer, tmp_path: Path) -> None:
    with running_daemon(tmp_path, {"store": {"url": url, "replica": at(standby, url)}}) as daemon:
        while "auditord_replica_lag_seconds 0." not in ask(f"{daemon.url}/metrics"):
            pass
        standby.stop()
        assert ask(f"{daemon.url}/records") == ""
    standby.start()


def test_a_read_that_the_replica_ends_is_one_that_the_primary_answers() -> None:
    """By this error a standby ends a query for the sake of what it has to take over."""
    with pytest.raises(StoreUnavailable), translate_errors("there", reading=True):
        raise psycopg.errors.SerializationFailure("canceling statement due to conflict with recovery")
    with pytest.raises(psycopg.errors.SerializationFailure), translate_errors("there"):
        raise psycopg.errors.SerializationFailure("could not serialize access")


def ask(url: str) -> str:
    with urlopen(url) as answer:  # noqa: S310 the daemon's
        text: bytes = answer.read()
    return text.decode()
