"""The feed of all stored versions of records, and how far each consumer has read it.

The table of records is the log: every stored version has a position, and adding a record writes nothing else. A change
of a stored record removes the former version and adds a new one: the row gets a new position, and a row in ``removals``
keeps the former version until every consumer has passed it.

The state at a position H has the versions with a position up to H whose removal, if any, lies behind H. So between two
positions P < H a consumer adds the versions in (P, H] that are still there or were removed behind H, and takes out
those up to P that were removed in (P, H] (:func:`versions_between`). That is exact in any order of commits.

Positions: in SQLite the row number, which a single writer makes the order of commits. In PostgreSQL the id of the
transaction plus an offset: what lies below the oldest running transaction is final, and consumers read no further.

Consumers inside the database (``count:<key>`` of :mod:`auditord.store.counting`, ``rollup:<number>`` of
:mod:`auditord.store.rollups`) fold a slice of the feed and move on in one transaction. Those outside (``lake``,
``senders``) are idempotent: they commit there first.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Final, LiteralString, NamedTuple

import msgspec

from auditord.database.instants import from_micros
from auditord.store.planning import Operation, Removed
from auditord.store.protocol import Outbox, OutboxEntry, is_forwarded
from auditord.store.sql import Sql, join
from auditord.store.work import Work, as_json, ask, for_each
from auditord_hookspecs import Close, Entry, Insert, Provenance, Replace
from auditord_hookspecs.entries import Encoded
from auditord_hookspecs.wire import decode_record

SENDERS: Final = "senders"
"""The consumer that forwards what clients changed."""

LAKE: Final = "lake"
"""The consumer that syncs records to the lake."""

BEHIND_ALL: Final = (1 << 63) - 1
"""A position that nothing has."""

_INSIDE: Final = ("count:", "rollup:")


class Slice(msgspec.Struct, frozen=True):
    """The part of the feed behind one position, up to another one."""

    after: int
    upto: int


class Consumer(NamedTuple):
    """A consumer, and the position up to which it has read."""

    name: str
    position: int

    @property
    def is_inside(self) -> bool:
        """Return True if it folds the feed inside the database."""
        return self.name.startswith(_INSIDE)


def note_removals(removals: Sequence[Removed]) -> Work[None]:
    """Keep stored versions for consumers, before the rows are changed or deleted in the same transaction."""
    if removals:
        yield from for_each("note_removals", removals)
        yield from ask("continue_positions")


def list_consumers() -> Work[Sequence[Consumer]]:
    """All consumers."""
    return [Consumer(*row) for row in (yield from ask("list_consumers"))]


def lock_consumers(names: Sequence[str]) -> Work[Sequence[Consumer]]:
    """Those of the consumers that no other process moves at present; none does until the transaction ends."""
    return [Consumer(*row) for row in (yield from ask("lock_consumers", names=as_json(names)))]


def end_of_feed() -> Work[int]:
    """The position up to which the feed is final."""
    ((end,),) = yield from ask("end_of_feed")
    return int(end)


def end_of_slice(after: int, end: int, limit: int) -> Work[int]:
    """Return the end of a slice of about ``limit`` records."""
    if end <= after:
        return after
    ((upto,),) = yield from ask("end_of_slice", after=after, end=end, limit=limit)
    return int(upto)


def add_consumer(name: str, position: int) -> Work[None]:
    """Let a consumer begin behind a position, unless there is one of this name."""
    yield from ask("add_consumer", name=name, position=position)


def move_consumer(name: str, position: int) -> Work[None]:
    """Note how far a consumer has read, unless it has read further already."""
    yield from ask("move_consumer", name=name, position=position)


def forget_consumer(name: str) -> Work[None]:
    """Remove a consumer."""
    yield from ask("forget_consumer", name=name)


def passed_by_all() -> Work[int]:
    """The position that every consumer has passed."""
    ((position,),) = yield from ask("passed_by_all")
    return int(position)


def clear_removals() -> Work[None]:
    """Delete removals that all consumers have passed; take names out of those that all counts and sums have passed."""
    if not (yield from ask("has_removals")):
        return
    consumers = yield from list_consumers()
    yield from ask("delete_removals", position=min(each.position for each in consumers))
    yield from ask("scrub_removals", position=min(each.position for each in consumers if each.is_inside))


def oldest_unread() -> Work[Mapping[str, datetime | None]]:
    """By consumer, when the oldest record arrived that it has not read; None for one that has read all."""
    rows = yield from ask("oldest_unread")
    return {name: None if received_at is None else from_micros(received_at) for name, received_at in rows}


class Edge(Enum):
    """Stands for a position among the parameters of a statement, so that its text is the same for all slices."""

    AFTER = "after"
    UPTO = "upto"


def of_slice(statement: Sql, bounds: Slice) -> Sql:
    """Return a statement about versions (:func:`versions_between`) with the positions of a slice."""
    positions = {Edge.AFTER: bounds.after, Edge.UPTO: bounds.upto}
    values = [positions[each] if isinstance(each, Edge) else each for each in statement.parameters]
    return Sql(statement.sql, tuple(values))


def versions_between(
    columns: LiteralString, where: LiteralString, records: LiteralString, removals: LiteralString
) -> Sql:
    """Return the statement for the versions by which the states at both ends of a slice differ.

    Its parameters are :class:`Edge`; :func:`of_slice` puts positions in their places.

    Args:
        columns: that are read of each version, beside ``sign``: 1 for one that is added, -1 for one that is taken out.
        where: a condition on versions.
        records: the table of stored versions.
        removals: the table of former versions.
    """
    after, upto = Edge.AFTER, Edge.UPTO
    parts: Sequence[tuple[LiteralString, LiteralString, LiteralString, tuple[Edge, ...]]] = (
        ("1", records, "position > %s AND position <= %s", (after, upto)),
        ("1", removals, "former > %s AND former <= %s AND position > %s", (after, upto, upto)),
        ("-1", removals, "former <= %s AND position > %s AND position <= %s", (after, after, upto)),
    )
    return join(
        " UNION ALL ",
        [
            Sql(f"SELECT {sign} AS sign, {columns} FROM {table} WHERE {here} AND {where}", edges)  # noqa: S608 literals
            for sign, table, here, edges in parts
        ],
    )


class _Version(msgspec.Struct, frozen=True):
    """A removal as senders see it."""

    position: int
    former: int
    former_principal: str | None
    forward: tuple[Operation, Provenance] | None


def begin_outbox() -> Work[None]:
    """Keep what clients change from now on for senders, unless it is kept already."""
    yield from add_consumer(SENDERS, (yield from end_of_feed()))


def read_outbox(limit: int) -> Work[Outbox]:
    """Return the oldest changes of clients, from a slice of about ``limit`` records of the feed.

    A record that was changed several times has one entry, with its current version.
    """
    found = [each for each in (yield from list_consumers()) if each.name == SENDERS]
    if not found:
        return Outbox(0, 0, ())
    after = found[0].position
    upto = yield from end_of_slice(after, (yield from end_of_feed()), limit)
    if not (yield from ask("has_versions_behind", position=after)):
        return Outbox(after, after, ())
    versions: dict[str, list[_Version]] = {}
    operation: Operation | None
    for record_id, position, former, principal, operation, at, by, agent in (
        yield from ask("removals_of_slice", after=after, upto=upto)
    ):
        # A version that was removed behind the slice is present in it; a later slice forwards the removal.
        forward: tuple[Operation, Provenance] | None = None
        if operation is not None and position <= upto:
            forward = (operation, Provenance(from_micros(at), by, agent))
        versions.setdefault(record_id, []).append(_Version(position, former, principal, forward))
    entries: list[OutboxEntry] = []
    for record_id, position, document, received_at, principal, agent in (
        yield from ask("forwardable_of_slice", after=after, upto=upto, changed=as_json(list(versions)))
    ):
        stored = Provenance(from_micros(received_at), principal, agent)
        forward = _forward(stored, versions.get(record_id, ()), after)
        if forward is not None:
            entries.append(OutboxEntry(min(position, upto), entry_of(*forward, document)))
    return Outbox(after, upto, entries)


def _forward(stored: Provenance, versions: Sequence[_Version], after: int) -> tuple[Operation, Provenance] | None:
    """The operation to be forwarded of a record, if any.

    Args:
        stored: who brought the record.
        versions: the removals of its versions.
        after: the position up to which senders have read.
    """
    forwards = [each.forward for each in versions if each.forward is not None]
    changes = [each for each in versions if each.position != each.former]
    made = {each.position for each in changes}
    firsts = [each.former_principal for each in changes if each.former > after and each.former not in made]
    if not changes:
        firsts = [stored.principal]
    if any(is_forwarded(Provenance(stored.received_at, principal)) for principal in firsts):
        return "insert", (forwards[-1][1] if changes and forwards else stored)
    if not forwards:
        return None
    operation, by = forwards[-1]
    return operation if all(other == operation for other, _ in forwards) else "replace", by


def entry_of(operation: Operation, provenance: Provenance, document: str) -> Entry:
    """A change as senders take it."""
    text = document.encode()
    record = decode_record(text)
    match operation:
        case "insert":
            return Insert(record, None, provenance, encoded=Encoded(record, text))
        case "replace":
            return Replace(record, None, provenance)
        case "close":
            if record.stop_time is None:
                raise ValueError(f"the feed closes {record.record_id!r} without a stop time")
            return Close(record.record_id, record.stop_time, provenance)
