"""The state of this daemon, stored regularly for those who look at all daemons of a database."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final, NoReturn

import anyio
import msgspec

from auditord import __version__
from auditord.errors import StoreUnavailable
from auditord.ingest import Pairing
from auditord.spool import Spool
from auditord.store import RecordStore
from auditord.store.protocol import DaemonState

_BEAT_SECONDS: Final = 30.0
"""The seconds between two beats."""
_LAST_WITHIN: Final = 2.0
"""The seconds that a stopping daemon waits for its database."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Stores the state of this daemon in the record store, for `auditord status --all`."""

    store: RecordStore
    spool: Spool
    pairing: Pairing
    now: Callable[[], datetime]
    started: datetime

    async def beat(self) -> NoReturn:
        """Store the state regularly. An unavailable store is reported elsewhere.

        Raises:
            StoreMismatch: the store has come back as an older copy, or is another one.
        """
        while True:
            with suppress(StoreUnavailable):
                await self.pairing.follow_writes()
                await self._note(ended=False)
            await anyio.sleep(_BEAT_SECONDS)

    async def end(self) -> None:
        """Store that the daemon has stopped in order."""
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
