"""Threads that do short work for an event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

_Call: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]  # Any: work of all types waits together


class Threads:
    """Some threads, started when they are needed; the last one that became idle is the first one used again.

    Each has a queue of its own. Those of a :class:`concurrent.futures.ThreadPoolExecutor` share one, and in Python 3.11
    a thread that it wakes always wakes the next idle one as well: that costs as much as a short query.

    Args:
        most: how many there may be.
        name: of each.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most: Final = most
        self._name: Final = name
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._waiting: deque[_Call] = deque()
        self._closed = False

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do work in a thread; of those that wait for one, the first goes first.

        Cancelling the future takes back what has not begun.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._idle:
                self._idle.pop().put((work, future))
            elif len(self._threads) < self._most:
                self._start((work, future))
            else:
                self._waiting.append((work, future))
        return future

    def close(self) -> None:
        """Finish what there is to do and end the threads; blocks."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for calls in idle:
            calls.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self, call: _Call) -> None:
        calls: SimpleQueue[_Call | None] = SimpleQueue()
        calls.put(call)  # as an argument, the thread would keep it as long as it lives
        # A daemon thread: it only works for those who wait, and keeps no process alive that dies of an error.
        thread = threading.Thread(target=self._work, args=(calls,), name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, calls: SimpleQueue[_Call | None]) -> None:
        call = calls.get()
        while call is not None:
            call = self._do(*call, calls)
            call = call or calls.get()  # while it waits, nothing of what has been done is kept

    def _do(
        self, work: Callable[[], T], future: "asyncio.Future[T | None]", calls: SimpleQueue[_Call | None]
    ) -> _Call | None:
        """Do work, unless nobody waits for it any more; returns what is to be done next."""
        outcome, fault = (None, None) if future.cancelled() else _outcome_of(work)
        following = self._next(calls)  # who waits for the outcome may have more to do for an idle thread
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(_settle, future, outcome, fault)
        return following

    def _next(self, calls: SimpleQueue[_Call | None]) -> _Call | None:
        """The call that waits; if none does, the thread is idle from now on."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._closed:
                calls.put(None)
            else:
                self._idle.append(calls)
            return None


def _outcome_of(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as fault:  # noqa: BLE001 not swallowed: it is handed to those who wait
        return None, fault


def _settle(future: "asyncio.Future[T | None]", outcome: T | None, fault: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if fault is None:
        future.set_result(outcome)
    else:
        future.set_exception(fault)
