"""Entries of the send-queue: changes to a destination, in order per record."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import msgspec

from auditord_hookspecs.records import Record
from auditord_hookspecs.roles import Role


class Provenance(msgspec.Struct, frozen=True):
    """The origin of a record: sender and time; stored beside it, never in its wire text."""

    received_at: datetime
    """The instant at which the daemon took it (aware)."""
    principal: str | None = None
    """``task:<instance>`` for a collector, the authenticated name for a client, None without authentication."""
    agent: str | None = None
    """The client's User-Agent."""


class Encoded(msgspec.Struct, frozen=True):
    """A record and its wire text, as :func:`auditord_hookspecs.wire.encode_record` writes it."""

    record: Record
    text: bytes


@dataclass(frozen=True, slots=True)
class Insert:
    """Insert a record into a destination. After a crash or a lost answer the insert is repeated, and is then a no-op.

    Args:
        record: the record.
        alternate_id: the id to use if the plain one already belongs to another run (with another start time).
        provenance: the record's origin, if the queue knows it.
        limits: roles of the client; one of these roles must allow the change of the record that is stored at delivery.
            Set where the stored record could not be checked when the client sent this one. None: nothing to check.
        encoded: the record with its wire text, if known; the host uses it to avoid encoding twice.

    Example::

        Insert(record, alternate_id="pbs-17.server1-1767254400")
    """

    record: Record
    alternate_id: str | None = None
    provenance: Provenance | None = None
    limits: tuple[Role, ...] | None = None
    encoded: Encoded | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> bytes | None:
        """The wire text of the record, if it is known; of another record that was put in its place it is not."""
        return self.encoded.text if self.encoded is not None and self.encoded.record is self.record else None


@dataclass(frozen=True, slots=True)
class Close:
    """Give an open record of a destination its stop time. For a closed record this is a no-op.

    Args:
        record_id: the id of the open record.
        stop_time: the stop time (aware).
        provenance: the origin of the update, if the queue knows it.
        limits: as in :class:`Insert`.

    Example::

        Close("pbs-17.server1", datetime(2026, 1, 1, 9, tzinfo=UTC))
    """

    record_id: str
    stop_time: datetime
    provenance: Provenance | None = None
    limits: tuple[Role, ...] | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """Overwrite a destination's record of this run, under either id (a deliberate correction); insert if there is none.

    Args:
        record: the record.
        alternate_id: the id to use if the plain one belongs to another run (with another start time), or if this run is
            already stored under it.
        provenance: the record's origin, if the queue knows it.

    Example::

        Replace(record)
    """

    record: Record
    alternate_id: str | None = None
    provenance: Provenance | None = None


Entry: TypeAlias = Insert | Close | Replace
"""A change that waits in the send-queue. Entries about one record id come in their order; one id may come in several of
them, and each of them more than once, so a sender has to make the same of it the second time."""
