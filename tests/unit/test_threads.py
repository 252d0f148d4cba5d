"""Threads that do work for an event loop."""

import asyncio
import threading
import weakref
from collections.abc import Generator
from functools import partial

import pytest

from auditord.database.readers import Threads

pytestmark = pytest.mark.anyio

MOST = 3
PATIENCE = 60.0


@pytest.fixture
def threads() -> Generator[Threads, None, None]:
    made = Threads(MOST, "test")
    yield made
    made.close()


async def test_the_last_thread_that_became_idle_is_used_again(threads: Threads) -> None:
    all_there = threading.Barrier(MOST)
    at_once = await asyncio.gather(
        *(threads.run(lambda: (all_there.wait(PATIENCE), threading.get_ident())) for _ in range(MOST))
    )
    assert len({thread for _, thread in at_once}) == MOST
    first = await threads.run(threading.get_ident)
    assert {await threads.run(threading.get_ident) for _ in range(20)} == {first}


async def test_work_that_finds_no_thread_is_done_in_order(threads: Threads) -> None:
    may_go_on = threading.Event()
    busy = [threads.run(lambda: may_go_on.wait(PATIENCE)) for _ in range(MOST - 1)]
    done: list[int] = []

    def begin(number: int) -> int:
        done.append(number)
        return number

    waiting = [threads.run(partial(begin, number)) for number in range(50)]
    assert await asyncio.gather(*waiting) == done == list(range(50))
    may_go_on.set()
    assert all(await asyncio.gather(*busy))


async def test_an_exception_is_raised_where_the_outcome_is_awaited(threads: Threads) -> None:
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 1) == 1


async def test_work_that_is_cancelled_before_it_begins_is_not_done(threads: Threads) -> None:
    may_go_on = threading.Event()
    busy = [threads.run(lambda: may_go_on.wait(PATIENCE)) for _ in range(MOST)]
    done: list[str] = []
    cancelled, kept = threads.run(lambda: done.append("cancelled")), threads.run(lambda: done.append("kept"))
    assert cancelled.cancel()
    assert busy[0].cancel()  # has begun: it goes on, and nobody gets its outcome
    may_go_on.set()
    await kept
    assert done == ["kept"]
    assert all(await asyncio.gather(*busy[1:]))


class Outcome:
    """Something that can be referred to weakly."""


async def test_an_idle_thread_keeps_nothing_of_what_it_has_done(threads: Threads) -> None:
    first, second = weakref.ref(await threads.run(Outcome)), weakref.ref(await threads.run(Outcome))
    while first() is not None or second() is not None:  # noqa: ASYNC110 the thread is about to wait
        await asyncio.sleep(0)


async def test_closing_finishes_what_was_given(threads: Threads) -> None:
    may_go_on = threading.Event()
    given = [threads.run(lambda: may_go_on.wait(PATIENCE)) for _ in range(2 * MOST)]
    closing = asyncio.get_running_loop().run_in_executor(None, threads.close)
    may_go_on.set()
    await closing
    assert all(await asyncio.gather(*given))
    assert not any(thread.name == "test" for thread in threading.enumerate())
