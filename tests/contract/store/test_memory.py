"""The memory of plugins in a store, and whose turn it is among all who have it open."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from auditord.database.memory import Occasion
from auditord.store.store import RecordStore
from auditord.testing import EPOCH
from tests.contract.store.conftest import StoreFactory

pytestmark = pytest.mark.anyio


@pytest.fixture
async def two(stores: StoreFactory) -> AsyncGenerator[tuple[RecordStore, RecordStore], None]:
    """The same store, opened twice, as two daemons or a daemon and a command do."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(stores()), await stack.enter_async_context(stores())


def never() -> None:
    raise AssertionError("the turn was free")


@asynccontextmanager
async def in_time() -> AsyncGenerator[None, None]:
    with anyio.fail_after(20):
        yield


async def test_a_state_is_there_for_whoever_runs_the_plugin_next(two: tuple[RecordStore, RecordStore]) -> None:
    here, there = two
    async with here.memory("apel", never) as memory:
        assert await memory.load() is None
        await memory.save({"month": "2026-02", "ключ": [1, None]}, EPOCH)
        await memory.save({"month": "2026-03", "ключ": [1, None]}, EPOCH)
    async with there.memory("apel", never) as memory:
        assert await memory.load() == {"month": "2026-03", "ключ": [1, None]}
    async with there.memory("other", None) as memory:
        assert await memory.load() is None


async def test_what_is_no_json_is_refused(two: tuple[RecordStore, RecordStore]) -> None:
    async with two[0].memory("apel", None) as memory:
        with pytest.raises(TypeError):
            await memory.save(EPOCH, EPOCH)


async def test_one_at_a_time_has_the_turn(two: tuple[RecordStore, RecordStore]) -> None:
    turns_held, most, waited, all_wait = 0, 0, list[str](), anyio.Event()

    def wait_for(task: str) -> None:
        waited.append(task)
        if len(waited) == 3:
            all_wait.set()

    async def work(store: RecordStore, task: str) -> None:
        nonlocal turns_held, most
        async with store.memory(task, lambda: wait_for(task)) as memory:
            turns_held += 1
            most = max(most, turns_held)
            count = (await memory.load() or 0) + 1
            await all_wait.wait()  # the others may be slow to come
            await anyio.sleep(0.01)
            await memory.save(count, EPOCH)
            turns_held -= 1

    async with in_time(), anyio.create_task_group() as group:
        for store in (*two, *two):
            group.start_soon(work, store, "apel")
    assert most == 1
    assert waited == ["apel"] * 3
    async with two[0].memory("apel", None) as memory:
        assert await memory.load() == 4


async def test_other_plugins_and_those_who_only_look_do_not_wait(two: tuple[RecordStore, RecordStore]) -> None:
    async with in_time(), two[0].memory("apel", never) as memory:
        await memory.save(1, EPOCH)
        async with two[1].memory("priority", never), two[1].memory("apel", None) as looking:
            assert await looking.load() == 1


async def test_a_turn_ends_with_an_error_or_a_cancellation(two: tuple[RecordStore, RecordStore]) -> None:
    with pytest.raises(RuntimeError):
        async with two[0].memory("apel", never):
            raise RuntimeError
    with anyio.move_on_after(0.01):
        async with two[0].memory("apel", never):
            await anyio.sleep_forever()
    async with in_time(), two[1].memory("apel", never):
        pass


async def test_who_waits_may_be_cancelled(two: tuple[RecordStore, RecordStore]) -> None:
    async with two[0].memory("apel", never):
        with anyio.move_on_after(0.3) as scope:
            async with two[1].memory("apel", lambda: None):
                raise AssertionError("two have the turn")
        assert scope.cancelled_caught


async def test_runs_on_demand_and_those_of_the_same_daemon_are_never_left_out(
    two: tuple[RecordStore, RecordStore],
) -> None:
    for store, occasion in (
        (two[0], Occasion("one", within=timedelta(days=1))),
        (two[0], Occasion("one", within=timedelta(days=1))),
        (two[1], Occasion("two")),
    ):
        async with store.memory("apel", never, occasion) as memory:
            await memory.note_run(occasion)
    assert not await two[0].turns()
