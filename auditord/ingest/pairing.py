"""Record store and spool belong together: neither may treat an entry as done that the other has lost.

Collectors do not read again what lies before their checkpoints in the spool. So a store that is older than the spool
(a restored copy), or another one, would silently lack records for good. Both keep a number that grows with every
delivery, start and stop, and twice a minute while clients write records past the spool: in the store once all that it
stands for is there, and then in the spool. If the spool cannot write a number, the store gets no further one until it
can: a start takes the store for the spool's if the store is ahead by one at most.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio

from auditord.errors import StoreMismatch
from auditord.spool import Generation, Spool
from auditord.store import RecordStore
from auditord.store.daemons import follows, list_daemons, read_generation
from auditord.store.protocol import KnownDaemon
from auditord.store.work import Work
from auditord_hookspecs.wording import counted

_REMEDY: Final = (
    "`auditord restore FOLDER --continue`, with a backup, lets collectors collect the missing records again; or put "
    "back the store and spool.db that belong together; or accept this pair with `auditord database adopt`, and then "
    "collect the missing records again (`auditord collect NAME --from DATE --to DATE`)."
)

_LOST_SPOOL_REMEDY: Final = (
    "`auditord restore FOLDER --continue`, with a backup, or `auditord restore --continue --without-backup` lets "
    "collectors collect again; or put spool.db back; or begin with a new one by `auditord database adopt`."
)


class Pairing:
    """A store and a spool that must know each other."""

    def __init__(self, store: RecordStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool
        self._lock = anyio.Lock()
        self._writes = 0  # of the store, which all copies of it have that have the generation

    async def check(self) -> None:
        """Return if the store is the spool's.

        Raises:
            StoreMismatch: they do not belong together, or one of them is an older copy.
            StoreUnavailable: the store cannot be asked.
        """
        async with self._lock:
            own = await self._spool.generation()
            _require_pair(own.number, await self._store.generation(own.spool_id))

    async def advance(self) -> None:
        """Reach the next generation in the store; the spool writes it with what it settles next.

        Every copy of the store that has the generation has all earlier deliveries.

        Raises:
            StoreMismatch: they do not belong together, or one of them is an older copy.
            StoreUnavailable: one of them cannot be used; the next call repeats the generation.
        """
        async with self._lock:
            await self._advance()

    async def advance_both(self) -> None:
        """Advance the store's generation, and write it to the spool at once."""
        writes = self._store.writes
        await self.advance()
        await self._spool.keep_generation()
        self._writes = writes

    async def follow_writes(self) -> None:
        """Advance both if records were written since; a copy of the store without them is older from then on."""
        if self._store.writes != self._writes:
            await self.advance_both()

    async def adopt(self) -> None:
        """Pair store and spool, regardless of their generations."""
        async with self._lock:
            own = await self._spool.generation()
            known = await self._store.generation(own.spool_id)
            if follows(known, own.number + 1):
                await self._advance()
            else:
                number = max(own.number, known) + 1  # which no copy of either has
                await self._store.advance(own.spool_id, number, adopt=True)
                self._spool.reach(number)
            await self._spool.keep_generation()

    async def _advance(self) -> None:
        """Advance the store to the generation after the one in the spool's file.

        If the store has that number already, the spool has failed to write it, and a copy of the store may have it
        without the deliveries since. So the spool writes it first, and the store gets the next one.
        """
        own = await self._spool.generation()
        known = await self._store.advance(own.spool_id, own.number + 1)
        _require_pair(own.number, known)
        self._spool.reach(own.number + 1)
        if known > own.number:
            await self._spool.keep_generation()
            await self._store.advance(own.spool_id, own.number + 2)
            self._spool.reach(own.number + 2)


def missing_store(lack: str) -> StoreMismatch:
    """The error about a store that is not there although the spool knows one."""
    return StoreMismatch(f"{_mismatch(1, 0)} ({lack})")


def recognise(own: Generation, host: str, state_dir: Path, now: datetime) -> Work[None]:
    """Return if a store may be the one of a spool; changes nothing.

    Raises:
        StoreMismatch: they do not belong together, one is an older copy, or the spool is new and the store knows
            another one of this host and folder.
    """
    _require_pair(own.number, (yield from read_generation(own.spool_id)))
    if own.number == 0:
        daemons = yield from list_daemons(now)
        refuse_lost_spool([each for each in daemons if each.state.spool_id != own.spool_id], host, state_dir)


def refuse_lost_spool(daemons: Sequence[KnownDaemon], host: str, state_dir: Path) -> None:
    """Return unless one of a store's daemons was on this host with this folder.

    Raises:
        StoreMismatch: it was; its spool is lost, or it is on another machine with the same host name.
    """
    for each in daemons:
        if (each.state.host, each.state.state_dir) == (host, str(state_dir)):
            raise StoreMismatch(_namesake(each) if each.is_running else _lost_spool(each))


def _lost_spool(daemon: KnownDaemon) -> str:
    queued = daemon.state.queued
    lost = (
        f"the {counted(queued, 'entry')} that waited in it when it was last heard of" if queued else "what waited in it"
    )
    return (
        "This state folder has no spool.db any more, or a new one, beside a record store that knows another: without "
        f"its checkpoints collectors would not read again what they have missed since, and {lost} may be lost. "
        f"{_LOST_SPOOL_REMEDY}"
    )


def _namesake(daemon: KnownDaemon) -> str:
    state, ago = daemon.state, timedelta(seconds=daemon.age // timedelta(seconds=1))
    return (
        f"A daemon that calls its host {state.host} and its state folder {state.state_dir}, as this one does, was "
        f"heard of {ago} ago by the record store, and this folder has another spool.db, or none. If it runs on another "
        "machine or in another container, give the two different host names; or let this one begin with a spool.db of "
        f"its own by `auditord database adopt`. If it was this one, whose spool.db is lost: {_LOST_SPOOL_REMEDY}"
    )


def _require_pair(own: int, known: int) -> None:
    if not follows(known, own + 1):
        raise StoreMismatch(_mismatch(own, known))


def _mismatch(own: int, known: int) -> str:
    if known == 0:
        return (
            "The record store does not know this state folder's spool.db, which has delivered records to a store: it "
            f"is another store, one that was made anew, or a copy from before that. {_REMEDY}"
        )
    if known < own:
        return (
            f"The record store is an older copy than this state folder's spool.db knows (generation {known} of {own}): "
            f"records written since are missing there, and collectors would not collect their part again. {_REMEDY}"
        )
    return (
        f"This state folder's spool.db is an older copy than the record store knows (generation {own} of {known}): "
        f"its checkpoints are too old, and entries queued in it since are missing. {_REMEDY}"
    )
