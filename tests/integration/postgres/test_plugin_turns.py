"""A plugin's turn is a lease: it ends with its holder, however that one ends, and a former holder changes nothing."""

import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import psycopg
import pytest

from auditord.config.model import StoreSection
from auditord.database.memory import Occasion
from auditord.database.postgres import Connection, Server
from auditord.database.postgres.address import address_of
from auditord.database.sql_files import load_scripts
from auditord.errors import RanElsewhere, StoreUnavailable, TurnLost
from auditord.store.opening import open_store
from auditord.store.postgres import MIGRATIONS, turns
from auditord.store.store import RecordStore
from auditord.testing import EPOCH
from tests.integration.postgres.test_faults import way_to

pytestmark = pytest.mark.anyio

NewUrl = Callable[[], str]

CUT = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
EXPIRE = "UPDATE auditord.turns SET expires_at = clock_timestamp()"

HOLDER = """
import anyio, sys
from auditord.store.opening import open_store
from auditord.store.postgres import turns

turns.LEASE = 3600.0  # so that only the end of the process lets others have the turn

async def main():
    async with open_store(sys.argv[1], counted_keys=()) as store, store.memory("apel", lambda: None):
        print("holds", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def never() -> None:
    raise AssertionError("the turn was free")


async def administer(url: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as administrator:
        await administrator.execute(statement.encode())


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases in the proportions of the real ones."""
    for name in ("LEASE", "GIVE_UP", "RENEWAL", "SHORTEST"):
        monkeypatch.setattr(turns, name, getattr(turns, name) / 10)


# -- a holder that is gone --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_leases")
async def test_a_run_ends_when_its_turn_is_lost(new_postgres_url: NewUrl) -> None:
    url = new_postgres_url()

    async def lose_turn(store: RecordStore) -> None:
        async with store.memory("apel", never):
            await administer(url, CUT)
            await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with open_store(url, counted_keys=()) as store:
            with pytest.raises(StoreUnavailable):
                await lose_turn(store)
            async with store.memory("apel", lambda: None) as memory:
                assert await memory.load() is None


async def test_who_has_lost_the_turn_saves_nothing(new_postgres_url: NewUrl) -> None:
    url = new_postgres_url()
    async with open_store(url, counted_keys=()) as store:
        async with store.memory("apel", never) as memory:
            await administer(url, CUT)
            with pytest.raises(StoreUnavailable):
                await memory.save("stale", EPOCH)
        async with store.memory("apel", None) as memory:
            assert await memory.load() is None


async def takeover_from_a_silent_holder(url: str) -> None:
    """Let the network of a holder vanish, and its turn be taken over; the holder has ended its run by then."""
    holding, ended = anyio.Event(), anyio.Event()

    async def work(store: RecordStore) -> None:
        async with store.memory("apel", never):
            holding.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

    async def fail(store: RecordStore) -> None:
        with pytest.raises(StoreUnavailable, match="gives up its turn, since another daemon may take over"):
            await work(store)

    async with (
        way_to(url) as (way, through),
        open_store(through, counted_keys=()) as silent,
        open_store(url, counted_keys=()) as other,
        anyio.create_task_group() as group,
    ):
        group.start_soon(fail, silent)
        await holding.wait()
        way.stall()
        async with other.memory("apel", lambda: None):
            assert ended.is_set()


@pytest.mark.usefixtures("short_leases")
async def test_the_turn_of_a_silent_holder_is_taken_over(new_postgres_url: NewUrl) -> None:
    with anyio.fail_after(60):
        await takeover_from_a_silent_holder(new_postgres_url())


@pytest.mark.slow
async def test_the_turn_of_a_silent_holder_is_taken_over_within_a_minute(new_postgres_url: NewUrl) -> None:
    with anyio.fail_after(60):
        await takeover_from_a_silent_holder(new_postgres_url())


async def test_the_turn_of_a_killed_process_is_free_at_once(new_postgres_url: NewUrl) -> None:
    url = new_postgres_url()
    with anyio.fail_after(60):
        async with (
            await anyio.open_process([sys.executable, "-c", HOLDER, url], stderr=None) as process,
            open_store(url, counted_keys=()) as store,
        ):
            assert process.stdout is not None
            assert b"holds" in await process.stdout.receive()
            waited = list[str]()

            def kill() -> None:
                waited.append("killed")
                process.send_signal(signal.SIGKILL)

            async with store.memory("apel", kill):
                assert waited == ["killed"]


# -- a holder that is back --------------------------------------------------------------------------------------------


async def test_a_former_holder_changes_nothing(new_postgres_url: NewUrl) -> None:
    url, occasion = new_postgres_url(), Occasion("one")
    async with open_store(url, counted_keys=()) as one, open_store(url, counted_keys=()) as two:
        async with one.memory("apel", never) as former:
            await former.save("before", EPOCH)
            await administer(url, EXPIRE)
            async with two.memory("apel", never) as present:
                assert await present.load() == "before"
                with pytest.raises(TurnLost, match=r"process \d+ on \S+ took over the turn at 20"):
                    await former.save("stale", EPOCH)
                with pytest.raises(TurnLost):
                    await former.note_run(occasion)
                await present.save("after", EPOCH)
        async with two.memory("apel", never, Occasion("two", within=timedelta(days=1))) as memory:
            assert await memory.load() == "after"


@pytest.mark.usefixtures("short_leases")
async def test_a_former_holder_is_cancelled(new_postgres_url: NewUrl) -> None:
    url = new_postgres_url()

    async def work(store: RecordStore, other: RecordStore) -> None:
        async with store.memory("apel", never):
            await administer(url, EXPIRE)
            async with other.memory("apel", lambda: None):
                await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with open_store(url, counted_keys=()) as one, open_store(url, counted_keys=()) as two:
            with pytest.raises(TurnLost, match="took over the turn"):
                await work(one, two)


@pytest.mark.usefixtures("short_leases")
async def test_a_holder_that_renews_its_lease_keeps_the_turn(new_postgres_url: NewUrl) -> None:
    url = new_postgres_url()
    async with (
        open_store(url, counted_keys=()) as one,
        open_store(url, counted_keys=()) as two,
        one.memory("apel", never) as memory,
    ):
        with anyio.move_on_after(turns.LEASE * 2) as scope:
            async with two.memory("apel", lambda: None):
                pytest.fail("two have the turn")
        assert scope.cancelled_caught
        await memory.save("mine", EPOCH)


# -- the last run -----------------------------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def run(store: RecordStore, occasion: Occasion) -> None:
    async with store.memory("apel", never, occasion) as memory:
        await memory.note_run(occasion)


@pytest.mark.parametrize(
    ("occasion", "left_out"),
    [
        (Occasion("two", within=HOUR), True),
        (Occasion("two", within=timedelta(0)), False),
        (Occasion("two", tick=NOON), True),
        (Occasion("two", tick=NOON - HOUR), True),
        (Occasion("two", tick=NOON + HOUR), False),
        (Occasion("two"), False),
        (Occasion("one", within=HOUR), False),
        (Occasion("one", tick=NOON), False),
    ],
    ids=str,
)
async def test_a_tick_is_left_out_if_another_daemon_has_run_for_it(
    new_postgres_url: NewUrl, occasion: Occasion, *, left_out: bool
) -> None:
    async with open_store(new_postgres_url(), counted_keys=()) as store:
        await run(store, Occasion("one", tick=NOON))
        if left_out:
            with pytest.raises(RanElsewhere, match="apel: another daemon has run it at 20"):
                await run(store, occasion)
        else:
            await run(store, occasion)
        assert list(await store.turns()) == []


@pytest.mark.parametrize("well", [True, False])
async def test_who_waits_for_a_run_that_goes_well_has_nothing_left_to_do(
    new_postgres_url: NewUrl, *, well: bool
) -> None:
    async with open_store(new_postgres_url(), counted_keys=()) as store, anyio.create_task_group() as group:
        waits, outcome = anyio.Event(), list[str]()

        async def wait() -> None:
            try:
                async with store.memory("apel", waits.set, Occasion("two", within=HOUR)):
                    outcome.append("runs")
            except RanElsewhere:
                outcome.append("is left out")

        async with store.memory("apel", never, Occasion("one")) as memory:
            group.start_soon(wait)
            await waits.wait()
            if well:
                await memory.note_run(Occasion("one"))
        with anyio.fail_after(20):
            while not outcome:  # noqa: ASYNC110 the other polls, too
                await anyio.sleep(0.01)
        assert outcome == ["is left out" if well else "runs"]


# -- sessions ---------------------------------------------------------------------------------------------------------


SETTINGS = "SELECT name, setting FROM pg_settings WHERE name ~ '^tcp_' ORDER BY name"


async def test_the_server_notices_soon_that_a_client_is_gone(new_postgres_url: NewUrl) -> None:
    address = address_of(StoreSection(url=new_postgres_url()))
    server = Server(address, load_scripts(MIGRATIONS), nothing, nothing, read_only=False)
    await server.open()
    async with server.own_connection() as holder:
        assert await (await holder.execute(SETTINGS)).fetchall() == settings("20000")
    async with server.reader() as reader:  # may take its time, as long as its host is there
        assert await (await reader.execute(SETTINGS)).fetchall() == settings("0")
    await server.close()


async def nothing(_: Connection) -> None:
    """Prepare nothing."""


def settings(unacknowledged: str) -> list[tuple[str, str]]:
    keepalives = {"count": "3", "idle": "10", "interval": "5"}
    return [(f"tcp_keepalives_{name}", value) for name, value in keepalives.items()] + [
        ("tcp_user_timeout", unacknowledged)
    ]
