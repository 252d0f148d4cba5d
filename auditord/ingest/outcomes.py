"""The outcomes of what a client sends."""

from enum import Enum
from typing import Final, TypeAlias

from auditord.store import Verdict
from auditord_hookspecs import AuditordError, InvalidRecord


class Forbidden(AuditordError):
    """Somebody who may come in asks for more than they may have; the text is for the audit log alone."""


class Queued(Enum):
    """A record that is durable in the spool while the store cannot be asked about its id."""

    QUEUED = "queued"


QUEUED: Final = Queued.QUEUED

Outcome: TypeAlias = Verdict | Queued | InvalidRecord | Forbidden
"""Of one record. The last two are values only where each record counts for itself."""


class Stopped(Enum):
    """The outcome of an update."""

    DONE = "done"
    """The stop time is in the store or, behind what waits of the record, durably in the spool."""
    MISSING = "missing"
    """There is no such record."""
    HIDDEN = "hidden"
    """There is none that this client may update; they are told the same as for MISSING."""
