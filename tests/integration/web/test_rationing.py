"""Callers that ask for more than a share wait; nobody is refused, and nobody waits for somebody else's share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.web import bodies
from auditord.web.places import Shares
from auditord.web.streams import RateLimit
from tests.api_server import Api, api_server, record

pytestmark = pytest.mark.anyio


async def turns(count: int = 20) -> None:
    """Let everybody else have a turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_no_principal_gets_more_than_half_and_the_others_go_on() -> None:
    memory, order = Shares(100), list[str]()
    free = asyncio.Event()

    async def body(name: str, who: str, size: int) -> None:
        async with memory.hold(who, size):
            order.append(name)
            await free.wait()

    tasks = [asyncio.create_task(body(*each)) for each in (("a1", "a", 40), ("a2", "a", 40), ("b1", "b", 30))]
    await turns()
    assert order == ["a1", "b1"]
    assert memory.free == 30
    free.set()
    await asyncio.gather(*tasks)
    assert order == ["a1", "b1", "a2"]
    assert memory.free == 100


async def test_who_leaves_while_waiting_takes_nothing() -> None:
    memory = Shares(100)
    async with memory.hold("a", 50):
        waiting = asyncio.create_task(memory.hold("a", 10).__aenter__())
        await turns()
        waiting.cancel()
        await turns()
    assert waiting.cancelled()
    assert memory.free == 100


async def test_who_leaves_as_the_turn_comes_gives_it_back() -> None:
    memory = Shares(100)
    first = memory.hold("a", 50)
    await first.__aenter__()
    waiting = asyncio.create_task(memory.hold("a", 10).__aenter__())
    await turns()
    await first.__aexit__(None, None, None)  # gives the turn to the one who waits
    waiting.cancel()
    await turns()
    assert memory.free == 100


async def test_however_many_wait_for_one_another_is_next() -> None:
    shares, order = Shares(4), list[str]()

    async def upload(name: str, who: str) -> None:
        async with shares.hold(who, 2):
            order.append(name)
            await turns(5)

    tasks = [asyncio.create_task(upload(f"{who}{number}", who)) for number in range(10) for who in "ab"]
    await turns(2)
    tasks.append(asyncio.create_task(upload("c", "c")))
    await asyncio.gather(*tasks)
    assert order.index("c") <= 4
    assert shares.free == 4


async def test_it_is_known_whether_somebody_waits_for_what_one_holds() -> None:
    shares = Shares(100)
    async with shares.hold("a", 50), shares.hold("b", 30):
        assert not shares.is_wanted("a")
        own = asyncio.create_task(shares.hold("a", 10).__aenter__())
        await turns()
        assert (shares.is_wanted("a"), shares.is_wanted("b")) == (True, False)
        other = asyncio.create_task(shares.hold("c", 40).__aenter__())
        await turns()
        assert shares.is_wanted("b")
        for task in (own, other):
            task.cancel()
        await turns()
        assert not shares.is_wanted("a")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400)), max_size=40))
def test_everybody_has_a_turn_and_all_comes_back(asked: list[tuple[str, int]]) -> None:
    async def all_of_them() -> int:
        memory, least = Shares(200), 200

        async def body(who: str, size: int) -> None:
            nonlocal least
            async with memory.hold(who, size):
                least = min(least, memory.free)
                await asyncio.sleep(0)

        async with asyncio.timeout(30):
            await asyncio.gather(*(body(*each) for each in asked))
        assert memory.free == 200
        return least

    assert asyncio.run(all_of_them()) >= 0


def test_a_pace_is_kept_by_each_for_itself() -> None:
    now = 100.0
    pace = RateLimit(4.0, lambda: now)
    assert [pace.delay("a") for _ in range(7)] == [0, 0, 0, 0, 0, 0.25, 0.5]
    assert pace.delay("b") == 0
    now = 200.0
    assert [pace.delay("a") for _ in range(6)] == [0, 0, 0, 0, 0, 0.25]


# -- over HTTP ------------------------------------------------------------------------------------------


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_server(tmp_path, max_body=1 << 20, options={"max_uploads": "1MiB"}) as served:
        yield served


async def test_large_bodies_take_turns_and_all_arrive(api: Api) -> None:
    many = [[record(f"{number}-{each}") for each in range(1_500)] for number in range(6)]
    assert len(msgspec.json.encode(many[0])) > 1 << 18
    answers = await asyncio.gather(*(api.ask("POST", "/records", body) for body in many))
    assert [answer.status for answer in answers] == [200] * 6
    assert (await api.store.counts()).total == 9_000


async def test_small_ones_do_not_wait_for_a_body_that_does_not_come(api: Api) -> None:
    port = int(api.url.rpartition(":")[2])
    named = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": 1 << 20}
    head = "POST /records HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items()) + "\r\n["
    stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for _, writer in stalled:
        writer.write(head.encode())
    await turns(200)
    assert (await api.ask("POST", "/record", record("a"))).status == 200
    for _, writer in stalled:
        writer.close()
    assert (await api.ask("POST", "/records", [record(f"b-{each}") for each in range(1_500)])).status == 200


def announced(api: Api) -> tuple[int, bytes]:
    """The port, and the head of a body of which nothing but the first byte comes."""
    named = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": 1 << 20}
    head = "POST /records HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items()) + "\r\n["
    return int(api.url.rpartition(":")[2]), head.encode()


async def test_a_body_that_drips_is_cut_off_as_soon_as_others_wait(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PAUSE_SECONDS", 600)
    monkeypatch.setattr(bodies, "WANTED_PAUSE_SECONDS", 0.2)
    port, head = announced(api)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    await asyncio.sleep(1)
    assert not reader.at_eof(), "nobody waits"
    async with asyncio.timeout(60):
        stored = [record(f"b-{each}") for each in range(2_500)]
        assert len(msgspec.json.encode(stored)) > 1 << 18
        assert (await api.ask("POST", "/records", stored)).status == 200
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


async def test_a_body_that_drips_is_cut_off_in_any_case(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PAUSE_SECONDS", 0.2)
    port, head = announced(api)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_a_body_that_comes_slowly_enough_arrives(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SLOWEST", 1)
    port, head = announced(api)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace(b"1048576", b"20"))
    for _ in range(18):
        await asyncio.sleep(0.05)
        writer.write(b" ")
    writer.write(b"]")
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_requests_beyond_the_pace_wait_and_succeed(tmp_path: Path) -> None:
    async with api_server(tmp_path, options={"requests_per_second": 40}) as api:
        begun = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(api.ask("POST", "/record", record(f"r-{each}")) for each in range(60)))
        assert [answer.status for answer in answers] == [200] * 60
        assert asyncio.get_running_loop().time() - begun >= 0.4, "19 of them are beyond what may come at once"
