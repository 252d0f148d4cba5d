"""The record store in PostgreSQL while the server, or the way to it, fails: no false answer, no loss."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from urllib.parse import urlsplit

import anyio
import msgspec
import psycopg
import pytest
from psycopg import sql

from auditord.config.model import StoreSection
from auditord.database.postgres import server as server_module
from auditord.database.postgres.address import address_of
from auditord.database.postgres.server import copy_out
from auditord.errors import SchemaMismatch, StoreMismatch, StoreUnavailable
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.postgres import PostgresRecordStore
from auditord.store.postgres import store as store_module
from auditord.store.store import RecordStore
from auditord.store.work import Work
from auditord_hookspecs import Component, InvalidRecord, Record, RecordQuery
from auditord_hookspecs.wire import decode_record
from tests.postgres_server import NoServer, OwnServer, PostgresServer, migrate_database, own_server
from tests.tcp_proxy import Proxy, proxy

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
PROVENANCE = Provenance(START, "task:test")
SAME_RUN = Duplicates.SAME_RUN
KEYS = ("user_id",)
PATIENCE = 60.0


def record(number: int | str, **changes: object) -> Record:
    made = Record(f"job-{number}", START, (Component("Cores", 1, ()),), START + timedelta(1), {"user_id": ("u",)})
    return msgspec.structs.replace(made, **changes)


async def stored(store: RecordStore) -> set[str]:
    async with store.stream(RecordQuery()) as pages:
        return {decode_record(document).record_id async for page in pages for document in page}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition, for as long as it takes within reason."""
    with anyio.fail_after(PATIENCE):
        while not await condition():  # noqa: ASYNC110 it asks a server
            await anyio.sleep(0.05)


async def works(store: RecordStore) -> bool:
    try:
        await store.check()
    except StoreUnavailable:
        return False
    return True


async def add_until_acknowledged(store: RecordStore, each: Record) -> Verdict:
    """A sender's attempts: again and again, until the store has answered."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await store.add(each, PROVENANCE, SAME_RUN)
            except StoreUnavailable:
                await anyio.sleep(0.01)


def through(way: Proxy, url: str) -> str:
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{netloc[0]}{netloc[1]}127.0.0.1:{way.port}").geturl()


@asynccontextmanager
async def way_to(url: str) -> AsyncGenerator[tuple[Proxy, str], None]:
    async with proxy(urlsplit(url).port or 5432) as way:
        yield way, through(way, url)


async def test_a_store_whose_server_is_away_is_there_and_works_once_the_server_does(postgres_url: str) -> None:
    async with way_to(postgres_url) as (way, url):
        await way.stop()
        async with open_store(url, counted_keys=KEYS) as store:
            with pytest.raises(StoreUnavailable, match=r"not available: .*(refused|lost)"):
                await store.add(record(1), PROVENANCE, SAME_RUN)
            assert not await works(store)
            await way.start()
            await until(lambda: works(store))
            assert await store.add(record(1), PROVENANCE, SAME_RUN) is Verdict.ADDED
            assert (await store.counts()).per_value == {"user_id": {"u": 1}}


async def test_while_the_server_is_known_to_be_away_nobody_is_patient(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with way_to(postgres_url) as (way, url):
        await way.stop()
        monkeypatch.setattr(server_module, "PATIENCE", 0.5)
        async with open_store(url, counted_keys=KEYS) as store:
            monkeypatch.setattr(server_module, "PATIENCE", 10 * PATIENCE)
            with anyio.fail_after(PATIENCE):
                for number in range(10):
                    with pytest.raises(StoreUnavailable):
                        await store.add(record(number), PROVENANCE, SAME_RUN)


async def test_a_database_that_turns_out_not_to_be_migrated_ends_the_daemon(empty_postgres_url: str) -> None:
    async with way_to(empty_postgres_url) as (way, url):
        await way.stop()

        async def live() -> None:
            async with open_store(url, counted_keys=KEYS) as store:
                await way.start()
                await until(lambda: works(store))

        with pytest.raises(SchemaMismatch, match="has no tables yet"):
            await live()


async def test_a_database_that_is_another_one_once_the_server_is_back_ends_the_daemon(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 0.5)
    looks = chain(["ours"], repeat("another"))

    def look() -> Work[None]:
        yield from ()
        if next(looks) == "another":
            raise StoreMismatch("an older copy")

    async def recognise() -> Work[None]:
        return look()

    async def live() -> None:
        async with way_to(postgres_url) as (way, url), open_store(url, counted_keys=KEYS, recognise=recognise) as store:
            assert await store.add(record(1), PROVENANCE, SAME_RUN) is Verdict.ADDED
            await way.stop()
            with pytest.raises(StoreUnavailable):
                await store.add(record(2), PROVENANCE, SAME_RUN)
            assert not await works(store)
            await way.start()
            await until(lambda: works(store))

    with pytest.raises(StoreMismatch, match="an older copy"):
        await live()


async def test_a_database_that_was_exchanged_while_nobody_asked_gets_no_record(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    is_ours = [True]

    def look() -> Work[None]:
        yield from ()
        if not is_ours[0]:
            raise StoreMismatch("an older copy")

    async def recognise() -> Work[None]:
        return look()

    async def live() -> None:
        async with open_store(postgres_url, counted_keys=KEYS, recognise=recognise) as store:
            assert await store.add(record(1), PROVENANCE, SAME_RUN) is Verdict.ADDED
            is_ours[0] = False
            exchange(postgres_server, postgres_url)
            with pytest.raises(StoreUnavailable):
                await store.add(record(2), PROVENANCE, SAME_RUN)
            await until(lambda: works(store))

    with pytest.raises(StoreMismatch, match="an older copy"):
        await live()
    async with open_store_for_reading(postgres_url) as store:
        assert await stored(store) == {"job-1"}


def exchange(server: PostgresServer, url: str) -> None:
    """Put a copy in the place of a database, whoever is connected to it."""
    name, kept = urlsplit(url).path[1:], f"{urlsplit(url).path[1:]}_kept"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))
        connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(*map(sql.Identifier, (name, kept))))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*map(sql.Identifier, (name, kept))))
        connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(kept)))


async def test_a_command_says_that_the_server_is_away() -> None:
    with pytest.raises(StoreUnavailable, match=r"auditord at 127\.0\.0\.1:1 is not available"):
        async with open_store_for_reading("postgresql://me:geheim@127.0.0.1:1/auditord"):
            pytest.fail("opened")


async def test_cuts_under_load_lose_and_double_nothing(postgres_url: str) -> None:
    async with way_to(postgres_url) as (way, url), open_store(url, counted_keys=KEYS) as store:

        async def cut() -> None:
            for _ in range(8):
                await anyio.sleep(0.1)
                way.cut()

        async def write(first: int) -> list[Verdict]:
            return [await add_slowly(record(number)) for number in range(first, first + 40)]

        async def add_slowly(each: Record) -> Verdict:
            await anyio.sleep(0.02)
            return await add_until_acknowledged(store, each)

        cutting = asyncio.create_task(cut())
        verdicts = await asyncio.gather(*(write(first) for first in range(0, 400, 40)))
        await cutting
        # SAME: the answer to the commit was cut off, and the second attempt found the record.
        assert {verdict for some in verdicts for verdict in some} <= {Verdict.ADDED, Verdict.SAME}
        await until(lambda: works(store))
        assert await stored(store) == {f"job-{number}" for number in range(400)}
        counts = await store.counts()
        assert (counts.total, counts.per_value) == (400, {"user_id": {"u": 400}})


async def test_a_way_that_stalls_is_given_up_and_found_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WRITE_WITHIN", 0.5)
    monkeypatch.setattr(store_module, "_CHECK_WITHIN", 0.5)
    async with way_to(postgres_url) as (way, url), open_store(url, counted_keys=KEYS) as store:
        assert await store.add(record(0), PROVENANCE, SAME_RUN) is Verdict.ADDED
        way.stall()
        with anyio.fail_after(PATIENCE), pytest.raises(StoreUnavailable):
            await store.add(record(1), PROVENANCE, SAME_RUN)
        way.resume()
        assert await add_until_acknowledged(store, record(1)) in {Verdict.ADDED, Verdict.SAME}
        assert await stored(store) == {"job-0", "job-1"}


async def test_a_fault_in_the_middle_of_an_answer_is_no_end(postgres_url: str) -> None:
    async with way_to(postgres_url) as (way, url), open_store(url, counted_keys=()) as store:
        many = [record(number, meta={"k": ("x" * 250,) * 20}) for number in range(5_000)]
        await store.add_all(many, PROVENANCE, SAME_RUN, atomic=True)

        async def read_all() -> None:
            async with store.stream(RecordQuery()) as pages:
                await anext(pages)
                way.cut()
                async for _ in pages:
                    pass

        with pytest.raises(StoreUnavailable):
            await read_all()
        assert len(await stored(store)) == 5_000


async def test_a_statement_that_fails_behind_its_first_rows_fails_the_answer(postgres_url: str) -> None:
    failing = "SELECT 1 / (20000 - n) || repeat('x', 100) FROM generate_series(1, 30000) AS n"
    seen: list[bytes] = []

    async def read_all() -> None:
        async with copy_out(connection, failing, ()) as pages:
            async for page in pages:
                seen.extend(page)

    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        for _ in range(2):  # the connection serves further answers
            with pytest.raises(psycopg.errors.DivisionByZero):
                await read_all()
            assert seen
            async with copy_out(connection, "SELECT 'x' FROM generate_series(1, 3)", ()) as pages:
                assert [page async for page in pages] == [[b"x"] * 3]


async def test_an_answer_that_is_left_is_no_more_work_for_the_server(postgres_url: str) -> None:
    async with open_store(postgres_url, counted_keys=()) as store:
        many = [record(number, meta={"k": ("x" * 250,) * 20}) for number in range(3_000)]
        await store.add_all(many, PROVENANCE, SAME_RUN, atomic=True)
        for _ in range(25):  # more often than there are connections
            async with store.stream(RecordQuery()) as pages:
                await anext(pages)

        async def idle() -> bool:
            async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
                asked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%'"
                row = await (await connection.execute(asked)).fetchone()
                return row == (0,)

        await until(idle)


async def test_a_reader_who_is_cancelled_gives_its_connection_back(postgres_url: str) -> None:
    section = StoreSection(url=postgres_url, pool_size=2)
    async with open_store(section, counted_keys=()) as store:
        many = [record(number, meta={"k": ("x" * 250,) * 20}) for number in range(3_000)]
        await store.add_all(many, PROVENANCE, SAME_RUN, atomic=True)
        for _ in range(6):
            with anyio.move_on_after(0.02):
                async with store.stream(RecordQuery()) as pages:
                    await anext(pages)
                    await anyio.sleep_forever()
        with anyio.fail_after(PATIENCE):
            assert len(await stored(store)) == 3_000


async def test_slow_readers_keep_nobody_from_writing(postgres_url: str) -> None:
    store = PostgresRecordStore(address_of(StoreSection(url=postgres_url, pool_size=2)), (), patience=0.2)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        await store.open()
        many = [record(number, meta={"k": ("x" * 250,) * 20}) for number in range(3_000)]
        await store.add_all(many, PROVENANCE, SAME_RUN, atomic=True)
        async with store.stream(RecordQuery()) as one, store.stream(RecordQuery()) as two:
            await anext(one)
            await anext(two)
            with pytest.raises(StoreUnavailable, match=r"All connections .* busy: raise store.pool_size"):
                await stored(store)
            assert await store.add(record("new"), PROVENANCE, SAME_RUN) is Verdict.ADDED
            assert await store.get("job-new") is not None
            await store.check()
        assert len(await stored(store)) == 3_001


def spoiled(name: str) -> Record:
    """A record that got around the checks, and that the database refuses."""
    poison = record(name)
    msgspec.structs.force_setattr(poison, "meta", {"k": ("a\0b",)})
    return poison


def too_long(name: str) -> Record:
    poison = record(name)
    # It does not compress, and is too long for an index.
    text = "".join(chr(0x4E00 + number * 7_919 % 20_000) for number in range(9_000))
    msgspec.structs.force_setattr(poison, "record_id", name + text)
    return poison


@pytest.mark.parametrize("poison", [spoiled, too_long])
async def test_a_poisoned_record_harms_no_other(postgres_url: str, poison: Callable[[str], Record]) -> None:
    async with open_store(postgres_url, counted_keys=KEYS) as store:
        offered = [record(number) for number in range(99)]
        offered.insert(50, poison("bad"))
        adding = (store.add(each, PROVENANCE, SAME_RUN) for each in offered)
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        assert isinstance(outcomes.pop(50), InvalidRecord)
        assert set(outcomes) == {Verdict.ADDED}
        more = [record(f"b{number}") for number in range(300)]
        for batch in ([*more, poison("bad")], [poison("bad"), *more[:5]]):
            with pytest.raises(InvalidRecord, match="bad"):
                await store.add_all(batch, PROVENANCE, SAME_RUN, atomic=False)
        assert await stored(store) == {f"job-{number}" for number in range(99)}
        assert (await store.counts()).total == 99


@pytest.fixture(scope="module")
def durable_server() -> Generator[OwnServer, None, None]:
    """A server that keeps what it has committed, and that may be killed."""
    try:
        with own_server(()) as server:
            migrate_database(server.url)
            yield server
    except NoServer as error:
        pytest.skip(str(error))


async def test_a_crash_of_the_server_loses_nothing_that_was_acknowledged(durable_server: OwnServer) -> None:
    async with open_store(durable_server.url, counted_keys=KEYS) as store:
        acknowledged: set[str] = set()

        async def write(first: int) -> None:
            for number in range(first, first + 50):
                await add_until_acknowledged(store, record(number))
                acknowledged.add(f"job-{number}")

        async def crash() -> None:
            await until_acknowledged(100)
            await asyncio.to_thread(durable_server.stop)
            before = set(acknowledged)
            await asyncio.to_thread(durable_server.start)
            await until(lambda: works(store))
            assert before <= await stored(store)

        async def until_acknowledged(count: int) -> None:
            while len(acknowledged) < count:  # noqa: ASYNC110 plain and short
                await anyio.sleep(0.001)

        await asyncio.gather(crash(), *(write(first) for first in range(0, 500, 50)))
        assert await stored(store) == {f"job-{number}" for number in range(500)}
        assert (await store.counts()).total == 500


async def test_an_idle_store_does_not_notice_a_restart(durable_server: OwnServer) -> None:
    async with open_store(durable_server.url, counted_keys=KEYS) as store:
        assert await store.add(record("before"), PROVENANCE, SAME_RUN) is Verdict.ADDED
        await asyncio.to_thread(durable_server.stop, "fast")
        await asyncio.to_thread(durable_server.start)
        assert await store.add(record("after"), PROVENANCE, SAME_RUN) is Verdict.ADDED
        assert await store.get("job-before") is not None
