"""What the HTTP server needs from the spool."""

from typing import Protocol

from auditord.store import Provenance


class RequestSpool(Protocol):
    """Durable keeping of what the record store did not take. Every method raises ``StoreUnavailable`` if it cannot."""

    async def keep_refused_body(self, body: bytes, reason: str, provenance: Provenance, route: str) -> object:
        """Keep a POST body that was answered 400, since the released clients take that for success."""
        ...

    async def check(self) -> object:
        """Return if something could be kept now."""
        ...
