"""A server that takes writes and does not answer: a full disk, a lock, a network that swallows packets."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from auditord.errors import StoreUnavailable

WRITE_WITHIN: Final = 5.0
"""Seconds for the writes of a client that waits; AUDITOR's clients give up after 30."""

_BETWEEN_PROBES: Final = 1.0

_log: Final = logging.getLogger(__name__)


class Silence:
    """The time from a write that took too long until a probe succeeds; meanwhile no caller waits for the server.

    Args:
        where: the database, for messages.
        probe: writes something; raises StoreUnavailable if that takes too long.
    """

    def __init__(self, where: str, probe: Callable[[], Awaitable[object]]) -> None:
        self._where = where
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None

    def notice(self, seconds: float) -> None:
        """Begin the silence; ``seconds`` is the time that the slow write took."""
        if self._probing is None:
            _log.warning("the database %s does not answer a write within %.0f s: probing it", self._where, seconds)
            self._probing = asyncio.get_running_loop().create_task(self._until_it_answers())

    def refuse(self) -> None:
        """Return unless the server is silent.

        Raises:
            StoreUnavailable: it is.
        """
        if self._probing is not None:
            raise StoreUnavailable(
                f"The database {self._where} does not answer writes: look at the server's disk, its locks "
                "(pg_stat_activity), and the network; it is probed every second."
            )

    async def close(self) -> None:
        """Probe no more."""
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing

    async def _until_it_answers(self) -> None:
        answers = False
        while not answers:
            await asyncio.sleep(_BETWEEN_PROBES)
            with suppress(StoreUnavailable):
                await self._probe()
                answers = True
        self._probing = None
        _log.warning("the database %s answers again", self._where)
