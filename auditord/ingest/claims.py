"""Mutual exclusion per record id, within this process."""

from collections.abc import Collection

import anyio


class Claims:
    """The record ids that are being worked on.

    All ids of a piece of work are taken at once, so that two pieces never wait for each other.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._released: anyio.Event | None = None

    async def take(self, ids: Collection[str]) -> None:
        """Take the ids as soon as nobody else has any of them."""
        while not self._taken.isdisjoint(ids):
            self._released = self._released or anyio.Event()
            await self._released.wait()
        self._taken.update(ids)

    def release(self, ids: Collection[str]) -> None:
        """Give the ids back."""
        self._taken.difference_update(ids)
        if self._released is not None:
            self._released.set()
            self._released = None
