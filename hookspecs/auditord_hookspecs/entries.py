"""Entries of the send-queue: changes to a destination, in order per record."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import msgspec

from auditord_hookspecs.records import Record
from auditord_hookspecs.roles import Role


class Provenance(msgspec.Struct, frozen=True):
    """The origin of a record, and when it arrived. Stored beside the record, never in its wire text."""

    received_at: datetime
    """The instant at which the daemon received the record (aware)."""
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
    """Inserts a record into a destination. A crash or a lost answer causes a repetition, which is a no-op.

    Args:
        record: the record.
        alternate_id: the id to use if the plain id already belongs to another run (with another start time).
        provenance: the record's origin, if the queue knows it.
        limits: the client's roles. One of them must allow changing the record that is stored at delivery. Set if the
            stored record could not be checked when the client sent this one. None: nothing to check.
        encoded: a record with its wire text; if it is this record, the host does not encode it again.

    Example::

        Insert(record, alternate_id="pbs-17.server1-1767254400")
    """

    record: Record
    alternate_id: str | None = None
    provenance: Provenance | None = None
    limits: tuple[Role, ...] | None = None
    encoded: Encoded | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Close:
    """Sets the stop time of an open record in a destination. For a closed record, this is a no-op.

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
    """Overwrites a destination's record of this run, under either id (a deliberate correction); inserts it if missing.

    Args:
        record: the record.
        alternate_id: the id to use if the plain id belongs to another run (with another start time), or if this run is
            already stored under it.
        provenance: the record's origin, if the queue knows it.

    Example::

        Replace(record)
    """

    record: Record
    alternate_id: str | None = None
    provenance: Provenance | None = None


Entry: TypeAlias = Insert | Close | Replace
"""A change in the send-queue. Entries for one record id are delivered in order. Several entries can have the same id,
and an entry can be delivered more than once, so delivery must be idempotent."""
