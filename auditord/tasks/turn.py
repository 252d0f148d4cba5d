"""Whose turn it is: a one-slot buffer between those who ask for a run and the loop that does the runs."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio


class Turn:
    """Requests for runs of one instance; runs never overlap, and requests never pile up."""

    def __init__(self) -> None:
        self._asked = anyio.Event()
        self._running = False
        self._lock = anyio.Lock()

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._running

    def tick(self) -> bool:
        """Ask on behalf of the clock; False if a run is still going, so that this tick is left out."""
        if not self._running:
            self._asked.set()
        return not self._running

    def trigger(self) -> None:
        """Ask on somebody's behalf: during a run it waits for its turn, further requests join it."""
        self._asked.set()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None, None]:
        """Wait for a request; the run is what happens inside."""
        await self._asked.wait()
        async with self.borrowed():
            self._asked = anyio.Event()
            yield

    @asynccontextmanager
    async def borrowed(self) -> AsyncGenerator[None, None]:
        """Run outside the loop, on somebody's demand: after a run that is going on, and before the next one."""
        async with self._lock:
            self._running = True
            try:
                yield
            finally:
                self._running = False
