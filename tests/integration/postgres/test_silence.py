"""A server that takes writes and does not answer them; a server that refuses us, which is no outage."""

import anyio
import pytest

from auditord.config.model import StoreSection
from auditord.errors import StoreMisconfigured, StoreUnavailable
from auditord.store import Verdict
from auditord.store.opening import open_store
from tests.integration.postgres.test_faults import KEYS, PROVENANCE, SAME_RUN, record, until, way_to, works
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

SHORTER_THAN_CLIENTS_WAIT = 25.0


async def test_a_write_that_is_not_answered_ends_before_clients_give_up(postgres_url: str) -> None:
    async with way_to(postgres_url) as (way, url), open_store(url, counted_keys=KEYS) as store:
        assert await store.add(record(1), PROVENANCE, SAME_RUN) is Verdict.ADDED
        way.stall()
        with anyio.fail_after(SHORTER_THAN_CLIENTS_WAIT), pytest.raises(StoreUnavailable):
            await store.add(record(2), PROVENANCE, SAME_RUN)
        with anyio.fail_after(SHORTER_THAN_CLIENTS_WAIT):  # all of them, since nobody waits any more
            for number in range(1_000):
                with pytest.raises(StoreUnavailable, match="does not answer writes: look at the"):
                    await store.add(record(number), PROVENANCE, SAME_RUN)
        way.resume()
        way.cut()  # what was sent while it stalled is stale
        await until(lambda: works(store))
        assert await store.add(record(3), PROVENANCE, SAME_RUN) is Verdict.ADDED


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ("/auditord_test", "/no_such_", "create it with createdb"),
        ("auditord@", "nobody@", "check store.url, store.password"),
    ],
)
async def test_a_start_is_refused_where_waiting_helps_nobody(
    postgres_url: str, old: str, new: str, advice: str
) -> None:
    assert old in postgres_url
    with pytest.raises(StoreMisconfigured, match=advice):
        async with open_store(StoreSection(url=postgres_url.replace(old, new)), counted_keys=KEYS):
            pytest.fail("opened")


async def test_a_server_that_is_away_refuses_no_start(postgres_server: PostgresServer) -> None:
    url = postgres_server.url.replace("@127.0.0.1:", "@127.0.0.1:1").replace(":1", ":", 1)
    async with way_to(url) as (way, through):
        await way.stop()
        async with open_store(through, counted_keys=KEYS) as store:
            assert not await works(store)
