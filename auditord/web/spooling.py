"""What the HTTP server needs from the spool."""

from collections.abc import Sequence
from typing import Protocol

from auditord.store import Provenance
from auditord_hookspecs import Entry


class RequestSpool(Protocol):
    """Durable keeping of what the record store did not take. Every method raises ``StoreUnavailable`` if it cannot."""

    async def accept(self, entries: Sequence[Entry], provenance: Provenance, destinations: Sequence[str]) -> object:
        """Keep what was posted while the record store was away; senders carry it on."""
        ...

    async def holds(self, record_id: str, senders: Sequence[str]) -> bool:
        """Whether anything of a record still waits for one of the senders."""
        ...

    async def keep_refused_body(self, body: bytes, reason: str, provenance: Provenance, route: str) -> object:
        """Keep a POST body that was answered 400, since the released clients take that for success."""
        ...

    async def check(self) -> object:
        """Return if something could be kept now."""
        ...
