"""Record store and spool belong together: what one has forgotten, the other must not take for done.

Collectors do not ask again for what their checkpoints in the spool lie behind. So a store that is older than the spool
(a restored copy), or another one, would lack records for good without a word. Both keep a number that grows with every
delivery, start and stop; the store's is written first.
"""

from typing import Final, Protocol

import anyio

from auditord.errors import StoreMismatch
from auditord.spool import Generation
from auditord.store import RecordStore
from auditord.store.protocol import follows

_REMEDY: Final = (
    "`auditord restore FOLDER --continue`, with a backup, lets collectors collect again what is missing; or put back "
    "the store and spool.db that belong together; or accept this pair with `auditord database adopt`, and then collect "
    "again what is missing (`auditord collect NAME --from DATE --to DATE`)."
)


class GenerationRecord(Protocol):
    """The spool, as far as it has a generation."""

    async def generation(self) -> Generation:
        """The generation that it has reached with the record store."""
        ...

    def reach(self, generation: int) -> None:
        """Note that the store has the next generation."""
        ...

    async def keep_generation(self) -> None:
        """Keep the generation now."""
        ...


class Pairing:
    """A store and a spool that must know each other."""

    def __init__(self, store: RecordStore, spool: GenerationRecord) -> None:
        self._store = store
        self._spool = spool
        self._lock = anyio.Lock()

    async def advance(self) -> None:
        """Begin the next generation in the store; the spool keeps it with what it settles next.

        Raises:
            StoreMismatch: they do not belong together, or one of them is an older copy.
            StoreUnavailable: the store cannot be asked.
        """
        async with self._lock:
            own = await self._spool.generation()
            known = await self._store.advance(own.spool_id, own.number + 1)
            if not follows(known, own.number + 1):
                raise StoreMismatch(_mismatch(own.number, known))
            self._spool.reach(own.number + 1)

    async def advance_both(self) -> None:
        """The same, kept in the spool at once."""
        await self.advance()
        await self._spool.keep_generation()

    async def adopt(self) -> None:
        """Let them belong together whatever they know of each other."""
        async with self._lock:
            own = await self._spool.generation()
            known = await self._store.advance(own.spool_id, own.number + 1, adopt=True)
            self._spool.reach(max(own.number, known) + 1)
            await self._store.advance(own.spool_id, max(own.number, known) + 1, adopt=True)
            await self._spool.keep_generation()


def missing_store(lack: str) -> StoreMismatch:
    """The error about a store that is not there although the spool knows one."""
    return StoreMismatch(f"{_mismatch(1, 0)} ({lack})")


def lost_spool(queued: int) -> StoreMismatch:
    """The error about a spool that is not there although the store knows a daemon that had one."""
    lost = f"the {queued} entries that waited in it when it was last heard of" if queued else "what waited in it"
    return StoreMismatch(
        "This state folder has no spool.db any more, beside a record store that knows it: without its checkpoints "
        f"collectors would not read again what they have missed since, and {lost} may be lost. "
        "`auditord restore FOLDER --continue`, with a backup, or `auditord restore --continue --without-backup` lets "
        "them collect again; or put spool.db back; or begin with a new one by `auditord database adopt`."
    )


def _mismatch(own: int, known: int) -> str:
    if known == 0:
        return (
            "The record store does not know this state folder's spool.db, which has delivered records to a store: it "
            f"is another store, one that was made anew, or a copy from before that. {_REMEDY}"
        )
    if known < own:
        return (
            f"The record store is an older copy than this state folder's spool.db knows (generation {known} of {own}): "
            f"what was delivered since is missing there, and would not be collected again. {_REMEDY}"
        )
    return (
        f"This state folder's spool.db is an older copy than the record store knows (generation {own} of {known}): "
        f"its checkpoints are too old, and what has waited in it since is missing. {_REMEDY}"
    )
