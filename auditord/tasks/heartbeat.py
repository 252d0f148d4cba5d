"""The state of this daemon, noted in its database again and again, for those who look at all daemons."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NoReturn

import anyio

from auditord import __version__
from auditord.errors import StoreUnavailable
from auditord.ingest import Pairing
from auditord.spool import Spool
from auditord.store import RecordStore
from auditord.store.protocol import DaemonState

_INTERVAL: Final = 30.0
_LAST_WITHIN: Final = 2.0
"""Seconds that the end of a daemon waits for its database."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Notes how this daemon fares."""

    store: RecordStore
    spool: Spool
    pairing: Pairing
    now: Callable[[], datetime]
    started: datetime

    async def beat(self) -> NoReturn:
        """Note it for ever; a store that is away is reported by others.

        Raises:
            StoreMismatch: the store that has come back is an older copy, or another one.
        """
        while True:
            with suppress(StoreUnavailable):
                await self.pairing.follow_writes()
                await self._note(ended=False)
            await anyio.sleep(_INTERVAL)

    async def end(self) -> None:
        """Note that the daemon ends in order."""
        with suppress(StoreUnavailable), anyio.move_on_after(_LAST_WITHIN):
            await self._note(ended=True)

    async def _note(self, *, ended: bool) -> None:
        statistics, generation = await self.spool.statistics(), await self.spool.generation()
        oldest = [queue.oldest for queue in statistics.queues.values() if queue.oldest is not None]
        state = DaemonState(
            spool_id=generation.spool_id,
            host=socket.gethostname(),
            process=os.getpid(),
            version=__version__,
            state_dir=str(self.spool.state_dir),
            started_at=self.started,
            queued=sum(queue.entries for queue in statistics.queues.values()),
            oldest=min(oldest, default=None),
            quarantined=sum(statistics.quarantined.values()),
            ended=ended,
        )
        await self.store.note_daemon(state, self.now())
