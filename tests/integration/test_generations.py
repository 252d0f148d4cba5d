"""Store and spool know each other: an older copy of one, or another one, beside today's other is refused."""

import json
import shutil
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import anyio
import psycopg
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.config.model import Configuration, StoreSection
from auditord.errors import StoreMismatch, StoreUnavailable
from auditord.hooks import load_hooks
from auditord.ingest import StoreSink, recognise
from auditord.spool import Generation, Spool
from auditord.storage import Storage, open_storage
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.amendments import Action, Amendment
from auditord.store.opening import open_store
from auditord.store.protocol import DaemonState
from auditord.store.store import RecordStore
from auditord.store.work import Work
from auditord.tasks.gauges import Heartbeat
from auditord.testing import make_record
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import AuditordError, Batch, Record, RecordUpdate
from auditord_hookspecs.entries import Encoded
from auditord_hookspecs.wire import encode_record
from tests.postgres_server import PostgresServer
from tests.tcp_proxy import proxy

PROVENANCE = Provenance(datetime(2026, 11, 22, tzinfo=UTC))


class Site:
    """A daemon's folder, and a store that can be copied and put back."""

    def __init__(self, folder: Path, server: PostgresServer | None, template: str | None) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._server = server
        self._saved: str | None = None
        self.url: str | None = None if server is None else server.create(template)

    @contextmanager
    def daemon(self) -> Generator[TestDaemon, None, None]:
        sections: dict[str, Any] = {} if self.url is None else {"store": {"url": self.url}}
        with running_daemon(self.folder, sections) as daemon:
            yield daemon

    def start(self) -> None:
        with self.daemon():
            pass

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(auditord, ["--config", str(self.folder / "auditord.json"), *words])

    def save(self) -> None:
        """Copy the store."""
        if self._server is None or self.url is None:
            shutil.copy(self.state / "records.db", self.folder / "saved.db")
        else:
            self._saved = self._server.create(self.url.rpartition("/")[2])

    def restore(self) -> None:
        """Put the copy in the store's place."""
        if self._saved is None:
            self._remove()
            shutil.copy(self.folder / "saved.db", self.state / "records.db")
        else:
            self.url = self._saved

    def lose(self, template: str) -> None:
        """Let the store be gone, and an empty one be there in PostgreSQL."""
        if self._server is None:
            self._remove()
        else:
            self.url = self._server.create(template)

    def _remove(self) -> None:
        for path in self.state.glob("records.db*"):
            path.unlink()

    def collect(self, record_id: str) -> None:
        """Queue a record as a collector does, whose checkpoint then is behind it."""
        anyio.run(self._collect, record_id)

    async def _collect(self, record_id: str) -> None:
        async with Spool.opened(self.state, lambda: datetime.now(UTC)) as spool:
            await spool.enqueue("slurm", Batch([make_record(record_id)], checkpoint=record_id), ["local"])


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param == "sqlite":
        return Site(tmp_path, None, None)
    return Site(tmp_path, request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_template"))


def post(daemon: TestDaemon, record_id: str) -> None:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{daemon.url}/record", encode_record(make_record(record_id)), headers)) as answer:  # noqa: S310 our own
        assert answer.status == 200


def test_restarts_are_no_reason_to_stop(site: Site) -> None:
    for number in range(3):
        with site.daemon() as daemon:
            post(daemon, f"r{number}")
        site.collect(f"c{number}")
    with site.daemon() as daemon:
        post(daemon, "r9")
    with site.daemon() as daemon:
        assert len(daemon.records()) == 7


@pytest.mark.parametrize("by", ["collectors", "clients"])
def test_an_older_copy_of_the_store_stops_the_start(site: Site, by: str) -> None:
    site.start()
    site.save()
    if by == "collectors":
        site.collect("later")
        site.start()
    else:
        with site.daemon() as daemon:
            post(daemon, "later")
    site.restore()
    with pytest.raises(AuditordError, match=r"older copy.*auditord database adopt"):
        site.start()


def test_a_store_copied_while_the_daemon_ran_stops_the_start(tmp_path: Path) -> None:
    site = Site(tmp_path, None, None)
    with site.daemon() as daemon:
        post(daemon, "early")
        anyio.run(backup, site.state / "records.db", tmp_path / "saved.db")
        post(daemon, "late")
    site.restore()
    with pytest.raises(AuditordError, match="older copy"):
        site.start()


async def backup(source: Path, target: Path) -> None:
    import sqlite3  # noqa: PLC0415 only here

    with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)


def test_an_older_copy_of_the_spool_stops_the_start(site: Site) -> None:
    site.start()
    shutil.copy(site.state / "spool.db", site.folder / "spool.db")
    for _ in range(2):
        site.start()
    shutil.copy(site.folder / "spool.db", site.state / "spool.db")
    with pytest.raises(AuditordError, match=r"spool\.db.*older copy.*auditord database adopt"):
        site.start()


def test_a_missing_store_stops_the_start_and_is_not_made(site: Site, postgres_template: str) -> None:
    site.start()
    site.lose(postgres_template)
    with pytest.raises(AuditordError, match=r"does not know.*auditord database adopt"):
        site.start()
    assert not (site.state / "records.db").exists()


def test_lost_tables_stop_the_start_and_are_not_to_be_made_anew(
    tmp_path: Path, postgres_server: PostgresServer, postgres_template: str
) -> None:
    site = Site(tmp_path, postgres_server, postgres_template)
    site.start()
    with psycopg.connect(str(site.url), autocommit=True) as connection:
        connection.execute("DROP SCHEMA auditord CASCADE")
    with pytest.raises(StoreMismatch, match=r"does not know.*restore FOLDER.*no longer has any tables"):
        site.start()


def lose_spool(site: Site) -> None:
    for path in site.state.glob("spool.db*"):
        path.unlink()


@pytest.mark.parametrize(
    "remedy",
    [("database", "adopt", "--yes"), ("restore", "--without-backup")],
    ids=lambda words: words[0],
)
def test_a_daemon_whose_spool_is_lost_does_not_begin_anew_without_a_word(site: Site, remedy: tuple[str, ...]) -> None:
    site.start()
    lose_spool(site)
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=r"spool\.db of this state folder .* is missing.*--without-backup"):
            site.start()
        assert not (site.state / "spool.db").exists()
    done = site.run(*remedy)
    assert done.exit_code == 0, done.output
    site.start()


@pytest.mark.parametrize(
    "remedy",
    ["database adopt --yes", "restore --without-backup", "restore backups"],
)
def test_a_new_spool_beside_a_store_that_knows_another_is_refused_and_mended(
    site: Site, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a command or a daemon leaves it that could not ask the store."""
    monkeypatch.chdir(site.folder)
    site.start()
    assert site.run("backup", "backups", "--dump").exit_code == 0
    site.collect("lost")
    lose_spool(site)
    site.collect("waits")
    for _ in range(2):
        with pytest.raises(StoreMismatch, match="or was replaced by a new one"):
            site.start()
    done = site.run(*remedy.split())
    assert done.exit_code == 0, done.output
    with site.daemon() as daemon:
        daemon.finish_sending()
        assert [record.record_id for record in daemon.records()] == ["waits"]


def test_a_new_spool_beside_a_store_older_than_the_backup_is_not_continued(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup's checkpoints lie behind what its store had got since."""
    monkeypatch.chdir(site.folder)
    site.start()
    site.save()
    site.collect("delivered")
    site.start()
    assert site.run("backup", "backups", "--dump").exit_code == 0
    site.restore()
    lose_spool(site)
    site.collect("waits")
    with pytest.raises(StoreMismatch):
        site.start()
    done = site.run("restore", "backups")
    assert (done.exit_code, "the record store is older than" in f"{done.output}{done.exception}") == (1, True)


@pytest.mark.parametrize(
    ("ended", "said"), [(False, "two different host names"), (True, "or was replaced by a new one")]
)
@pytest.mark.anyio
async def test_a_daemon_of_the_same_name_is_another_one_while_it_runs(tmp_path: Path, ended: bool, said: str) -> None:  # noqa: FBT001 a parameter of the test
    now = datetime.now(UTC)
    known = DaemonState("known", "head", 1, "1.0", str(tmp_path), now, 0, None, 0, ended=ended)

    async def new() -> Work[None]:
        return recognise(Generation("new", 0), "head", tmp_path, now)

    url = f"sqlite://{tmp_path / 'records.db'}"
    async with open_store(url, counted_keys=()) as store:
        await store.note_daemon(known, now)
    with pytest.raises(StoreMismatch, match=said):
        async with open_store(url, counted_keys=(), recognise=new):
            pytest.fail("opened")


@pytest.mark.anyio
async def test_a_store_that_was_away_at_the_start_is_looked_at_before_anything_reaches_it(
    tmp_path: Path, postgres_server: PostgresServer, postgres_template: str
) -> None:
    site = Site(tmp_path, postgres_server, postgres_template)
    async with storage(site.state, str(site.url)):
        pass
    other = postgres_server.create(postgres_template)
    async with proxy(urlsplit(other).port or 5432) as way:
        await way.stop()

        async def add_until_refused() -> None:
            async with storage(site.state, other.replace(f":{urlsplit(other).port}/", f":{way.port}/")) as opened:
                await way.start()
                while True:
                    with suppress(StoreUnavailable):
                        await opened.store.add(make_record("posted"), PROVENANCE, Duplicates.SAME_RUN)
                        pytest.fail("added")
                    await anyio.sleep(0.01)

        with pytest.raises(StoreMismatch, match="does not know"):
            await add_until_refused()
    async with open_store(other, counted_keys=()) as store:
        assert (await store.counts()).total == 0


def put_back(state: Path, copies: Path) -> None:
    for path in (*state.glob("records.db*"), *state.glob("spool.db*")):
        path.unlink()
    shutil.copy(copies / "saved.db", state / "records.db")
    shutil.copy(copies / "spool.db", state / "spool.db")


async def require_refused(state: Path, copies: Path) -> None:
    """Put a copy of the store beside one of the spool, which is newer; the pair is refused."""
    put_back(state, copies)
    with pytest.raises(StoreMismatch, match="older copy"):
        async with storage(state, f"sqlite://{state / 'records.db'}"):
            pytest.fail("opened")


@pytest.mark.anyio
async def test_a_store_copied_in_the_middle_of_a_delivery_is_an_older_copy(tmp_path: Path) -> None:
    """The copy lacks what the spool holds for delivered."""
    state = tmp_path / "state"
    url = f"sqlite://{state / 'records.db'}"

    async def copy_and_add(
        record: Record, provenance: Provenance, duplicates: Duplicates, encoded: Encoded | None = None
    ) -> Verdict:
        await backup(state / "records.db", tmp_path / "saved.db")
        return await add(record, provenance, duplicates, encoded)

    async with storage(state, url) as opened:
        add = opened.store.add
        with patch.object(opened.store, "add", copy_and_add):
            sink = StoreSink(opened.store, lambda: datetime.now(UTC), pairing=opened.pairing)
            await opened.spool.enqueue("slurm", Batch([make_record("job")]), ["local"])
            [queued] = await opened.spool.claim("local", 10)
            assert not await sink.deliver([queued.entry])
        await opened.spool.settle("local", [queued.entry_id], {})
        await backup(state / "spool.db", tmp_path / "spool.db")  # as after a kill
    await require_refused(state, tmp_path)


@pytest.mark.anyio
async def test_deliveries_that_could_not_be_settled_are_no_reason_to_refuse_a_start(tmp_path: Path) -> None:
    """As on a full disk, with a kill at its end."""
    state = tmp_path / "state"
    url = f"sqlite://{state / 'records.db'}"
    async with storage(state, url) as opened:
        sink = StoreSink(opened.store, lambda: datetime.now(UTC), pairing=opened.pairing)
        await opened.spool.enqueue("slurm", Batch([make_record("job")]), ["local"])
        [queued] = await opened.spool.claim("local", 10)
        with patch.object(opened.spool, "keep_generation", side_effect=StoreUnavailable("full")):
            for _ in range(3):
                with suppress(StoreUnavailable):
                    await sink.deliver([queued.entry])
        await backup(state / "spool.db", tmp_path / "spool.db")
        await backup(state / "records.db", tmp_path / "saved.db")
    put_back(state, tmp_path)
    async with storage(state, url) as opened:
        assert len(await opened.spool.claim("local", 10)) == 1


async def add_one(store: RecordStore) -> None:
    await store.add(make_record("later"), PROVENANCE, Duplicates.SAME_RUN)


async def add_many(store: RecordStore) -> None:
    await store.add_all([make_record("later")], PROVENANCE, Duplicates.SAME_RUN, atomic=True)


async def close(store: RecordStore) -> None:
    assert await store.stop(
        RecordUpdate(record_id="open", components=(), stop_time=datetime(2026, 11, 22, tzinfo=UTC)), PROVENANCE
    )


async def replace(store: RecordStore) -> None:
    await store.replace(make_record("early", runtime=timedelta(hours=9)), PROVENANCE)


async def correct(store: RecordStore) -> None:
    stored = await store.get("early")
    assert stored is not None
    await store.amend([Amendment(Action.DELETE, stored, None, "made up")], PROVENANCE)


async def redact(store: RecordStore) -> None:
    assert await store.redact(["early"], ["user_id"])


@pytest.mark.anyio
@pytest.mark.parametrize("write", [add_one, add_many, close, replace, correct, redact])
async def test_a_store_copied_before_a_client_wrote_past_the_spool_is_an_older_copy(
    tmp_path: Path, write: Callable[[RecordStore], Awaitable[None]]
) -> None:
    """Also if the daemon was killed, and never delivered anything."""
    state = tmp_path / "state"
    url = f"sqlite://{state / 'records.db'}"
    async with storage(state, url) as opened:
        await opened.store.add(make_record("early", user_id="alice"), PROVENANCE, Duplicates.SAME_RUN)
        await opened.store.add(make_record("open", runtime=None), PROVENANCE, Duplicates.SAME_RUN)
        await beat_once(opened)
        await backup(state / "records.db", tmp_path / "saved.db")
        await write(opened.store)
        await beat_once(opened)
        await backup(state / "spool.db", tmp_path / "spool.db")  # as after a kill
    await require_refused(state, tmp_path)


@pytest.mark.anyio
async def test_nothing_written_is_no_next_generation(tmp_path: Path) -> None:
    async with storage(tmp_path, f"sqlite://{tmp_path / 'records.db'}") as opened:
        await add_one(opened.store)
        await beat_once(opened)
        before = opened.spool.generation
        for _ in range(3):
            await beat_once(opened)
        assert opened.spool.generation == before


@pytest.mark.anyio
async def test_an_older_copy_put_in_the_place_of_a_store_in_use_ends_the_daemon(tmp_path: Path) -> None:
    async with storage(tmp_path, f"sqlite://{tmp_path / 'records.db'}") as opened:
        own = opened.spool.generation
        await opened.store.advance(own.spool_id, own.number - 1, adopt=True)  # as an older copy has it
        await add_one(opened.store)
        with pytest.raises(StoreMismatch, match="another store"):
            await beat_once(opened)


async def beat_once(opened: Storage) -> None:
    """Let a daemon's heartbeat note its state once."""
    heartbeat = Heartbeat(opened.store, opened.spool, opened.pairing, lambda: datetime.now(UTC), datetime.now(UTC))
    with patch.object(anyio, "sleep", side_effect=EndOfBeat), suppress(EndOfBeat):
        await heartbeat.beat()


class EndOfBeat(Exception):
    """The heart would beat again later."""


def storage(state_dir: Path, url: str) -> AbstractAsyncContextManager[Storage]:
    state_dir.mkdir(exist_ok=True)
    configuration = Configuration(state_dir=state_dir, store=StoreSection(url=url))
    return open_storage(configuration, load_hooks(()).kinds, lambda: datetime.now(UTC))


def test_another_daemon_of_the_same_database_begins_with_a_spool_of_its_own(tmp_path: Path, postgres_url: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with running_daemon(tmp_path / name, {"store": {"url": postgres_url}}) as daemon:
            post(daemon, name)


def test_adopting_takes_the_present_pair_on_purpose(site: Site, postgres_template: str) -> None:
    site.start()
    site.save()
    site.collect("later")
    site.start()
    for change in (site.restore, lambda: site.lose(postgres_template)):
        change()
        with pytest.raises(AuditordError, match="adopt"):
            site.start()
        adopted = site.run("database", "adopt", "--yes")
        assert adopted.exit_code == 0, adopted.output
        assert "collect" in adopted.output
        site.start()
        site.start()


def test_a_copy_of_the_store_elsewhere_keeps_knowing_the_spool(tmp_path: Path) -> None:
    site = Site(tmp_path, None, None)
    site.start()
    there = f"sqlite://{tmp_path / 'there.db'}"
    assert site.run("database", "copy", "--to", there).exit_code == 0
    site.url = there
    site.start()
    site.url = None
    with pytest.raises(AuditordError, match="older copy"):
        site.start()


def test_a_database_that_was_put_back_while_the_daemon_waited_for_it_gets_nothing(
    tmp_path: Path, new_postgres_url: Callable[[], str], postgres_template: str, postgres_server: PostgresServer
) -> None:
    """The start found no database; the first delivery finds the wrong one, and leaves the queue alone."""
    site = Site(tmp_path, postgres_server, postgres_template)
    site.start()
    site.collect("waits")

    async def deliver() -> None:
        from auditord.ingest import Pairing  # noqa: PLC0415 only here

        async with (
            open_store(new_postgres_url(), counted_keys=()) as other,
            Spool.opened(site.state, lambda: datetime.now(UTC)) as spool,
        ):
            sink = StoreSink(other, lambda: datetime.now(UTC), pairing=Pairing(other, spool))
            [queued] = await spool.claim("local", 10)
            with pytest.raises(AuditordError, match="does not know"):
                await sink.deliver([queued.entry])
            assert await other.get("waits") is None
            assert json.dumps((await spool.statistics()).queues["local"].entries) == "1"

    anyio.run(deliver)
