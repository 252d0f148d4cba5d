"""From the record store's outbox into the send-queue: what clients wrote, for the senders that forward it.

The outbox is written in the transaction of the client's change, the queue is in the spool: two databases. The spool
marks what it has taken over in the transaction that queues it, so a crash in between loses and doubles nothing.
"""

import logging
from collections.abc import Sequence
from typing import Final, NoReturn

import anyio

from auditord.errors import StoreUnavailable
from auditord.spool import Spool
from auditord.store import RecordStore

AT_ONCE: Final = 1_000
_INTERVAL_SECONDS: Final = 1.0  # of looking; another daemon may write to the same database, so nobody can be woken

_log: Final = logging.getLogger(__name__)


async def forward(store: RecordStore, spool: Spool, destinations: Sequence[str]) -> NoReturn:
    """Carry on, for ever."""
    while True:
        await forward_all(store, spool, destinations)
        await anyio.sleep(_INTERVAL_SECONDS)


async def forward_all(store: RecordStore, spool: Spool, destinations: Sequence[str]) -> None:
    """Carry all that is there now; if a database is away, what is left stays in the outbox."""
    try:
        while await _carry_some(store, spool, destinations):
            pass
    except StoreUnavailable as error:
        _log.warning("what clients wrote waits in the outbox: %s", error)


async def _carry_some(store: RecordStore, spool: Spool, destinations: Sequence[str]) -> bool:
    waiting = await store.outbox(AT_ONCE)
    if not waiting:
        return False
    numbers = [each.number for each in waiting]
    await spool.take_over({each.number: each.entry for each in waiting}, destinations)
    await store.forget_outbox(numbers)
    await spool.forget_taken(numbers)
    return True
