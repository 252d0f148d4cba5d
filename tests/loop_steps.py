"""Notes what runs on event loops without a pause: the CPU time of each step, and its name.

CPU time is that of the loop's own thread, so other threads and a busy machine do not count.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from heapq import heappushpop
from typing import Any, Final, cast

import pytest

_MOST: Final = 10


class LoopSteps:
    """The longest steps of loops that run in threads other than the test's.

    Args:
        longest: seconds and names, unordered.
    """

    def __init__(self) -> None:
        self.longest: list[tuple[float, str]] = [(0.0, "")] * _MOST
        self._caller = threading.get_ident()

    def add(self, seconds: float, handle: Any) -> None:  # Any: a private class of asyncio
        """Note a step."""
        if threading.get_ident() != self._caller and seconds > self.longest[0][0]:
            heappushpop(self.longest, (seconds, _name(handle)))

    def __str__(self) -> str:
        return "; ".join(f"{1_000 * seconds:.1f} ms {name}" for seconds, name in sorted(self.longest, reverse=True))


def _name(handle: Any) -> str:  # Any: a private class of asyncio
    """Return what a step of a loop runs: a task with its innermost coroutine, or a function."""
    call = handle._callback
    task = getattr(call, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(call)
    coroutine = cast("Any", task.get_coro())  # Any: what it awaits may be of any class
    inner = list[str]()
    while coroutine is not None:
        inner.append(getattr(coroutine, "__qualname__", repr(coroutine)))
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(inner)


@contextmanager
def noting_steps(monkeypatch: pytest.MonkeyPatch) -> Generator[LoopSteps, None, None]:
    """Note the steps of all asyncio loops of this process within the context, without garbage collections."""
    steps, work = LoopSteps(), asyncio.Handle._run

    def noted(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        work(handle)
        if (seconds := time.thread_time() - begin) > 0.001:
            steps.add(seconds, handle)

    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", noted)
            yield steps
    finally:
        gc.enable()
