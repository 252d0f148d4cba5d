"""Something that requests hold for a while: memory, places, room on the disk. Nobody gets more than half of it."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

_REMEMBERED = 10_000


class Shares:
    """Units that requests may hold together; no principal gets more than half of them at a time.

    Who finds too little waits. Principals are served in turn, whoever was served longest ago first, and the requests of
    each in their order: however many requests one of them has waiting, another one's is next.

    Args:
        most: so many units.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[asyncio.Future[None], tuple[str, int]] = OrderedDict()
        self._served: OrderedDict[str, int] = OrderedDict()
        self._numbers = count(1)

    @property
    def free(self) -> int:
        """Units that nobody holds."""
        return self._free

    def is_wanted(self, who: str) -> bool:
        """Whether somebody waits who could go on if this principal held less."""
        return any(who == waiting or self._may_hold(waiting, size) for waiting, size in self._waiting.values())

    @asynccontextmanager
    async def held(self, who: str, size: int) -> AsyncGenerator[None, None]:
        """Hold so many units (at most half of all), in turn."""
        size = min(size, self._half)
        if self._waiting or not self.take(who, size):
            await self._wait(who, size)
        try:
            yield
        finally:
            self.give_back(who, size)

    def take(self, who: str, size: int) -> bool:
        """Hold so many units from now on, if that can be; else False. To be given back."""
        if size > self._free or not self._may_hold(who, size):
            return False
        self._take(who, size)
        return True

    def give_back(self, who: str, size: int) -> None:
        """Hold so many less."""
        self._free += size
        left = self._held.pop(who, 0) - size  # nothing is held where all asked for no units at all
        if left > 0:
            self._held[who] = left
        self._serve()

    @property
    def _half(self) -> int:
        return max(1, self._most // 2)

    def _may_hold(self, who: str, size: int) -> bool:
        return self._held.get(who, 0) + size <= self._half

    def _take(self, who: str, size: int) -> None:
        self._free -= size
        self._held[who] = self._held.get(who, 0) + size
        self._served.pop(who, None)
        self._served[who] = next(self._numbers)
        if len(self._served) > _REMEMBERED:
            self._served.popitem(last=False)

    async def _wait(self, who: str, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = (who, size)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given in the same instant
                self.give_back(who, size)
            raise
        finally:
            if self._waiting.pop(turn, None) is not None:
                self._serve()  # others may have waited behind this one

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            self._take(*self._waiting.pop(turn))
            turn.set_result(None)

    def _next(self) -> "asyncio.Future[None] | None":
        """Whoever is served now; a principal whose own share is used up holds up nobody else."""
        first: dict[str, asyncio.Future[None]] = {}
        for turn, (who, _) in self._waiting.items():
            if not turn.done():
                first.setdefault(who, turn)
        for who in sorted(first, key=lambda who: self._served.get(who, 0)):
            turn = first[who]
            _, size = self._waiting[turn]
            if self._may_hold(who, size):
                return turn if size <= self._free else None
        return None
