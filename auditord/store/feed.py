"""The feed of all stored versions of records, and how far each consumer has read it.

The table of records is the log: every stored version has a position, and adding a record writes nothing else. A change
of a stored record removes the former version and adds a new one: the row gets a new position, and a row in ``removals``
keeps the former version until every consumer has passed it.

The state at a position H consists of the versions with positions up to H that were not removed by H. So to get from
position P to H, a consumer adds the versions in (P, H] that are still stored or were removed after H, and subtracts
those up to P that were removed in (P, H] (:func:`versions_between`). This is exact for any order of commits.

In SQLite, the position is the row number. It follows the order of commits, since there is a single writer. In
PostgreSQL, it is the id of the transaction plus an offset. Positions below the oldest running transaction are final,
and consumers read no further.

Consumers inside the database (``count:<key>`` of :mod:`auditord.store.counting`, ``rollup:<number>`` of
:mod:`auditord.store.rollups`) fold a slice of the feed and move their position in one transaction. Consumers outside
(``lake``, ``senders``) commit there before they move their position, and are idempotent.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Final, LiteralString, NamedTuple

import msgspec

from auditord.database.instants import from_micros
from auditord.store.dialects import Sql, join
from auditord.store.planning import Operation, Removed
from auditord.store.protocol import Outbox, OutboxEntry, is_forwarded
from auditord.store.work import Work, as_json, ask, for_each
from auditord_hookspecs import Close, Entry, Insert, Provenance, Replace
from auditord_hookspecs.entries import Encoded
from auditord_hookspecs.wire import decode_record

SENDERS: Final = "senders"
"""The consumer that forwards changes by clients."""

LAKE: Final = "lake"
"""The consumer that syncs records to the lake."""

BEHIND_ALL: Final = (1 << 63) - 1
"""A position after all others."""

_INSIDE: Final = ("count:", "rollup:")


class Slice(msgspec.Struct, frozen=True):
    """The part of the feed after one position, up to and including another."""

    after: int
    upto: int


class Consumer(NamedTuple):
    """A consumer, and the position up to which it has read."""

    name: str
    position: int

    @property
    def is_inside(self) -> bool:
        """True if it folds the feed inside the database."""
        return self.name.startswith(_INSIDE)


def note_removals(removals: Sequence[Removed]) -> Work[None]:
    """Copy stored versions to ``removals``, before their rows are changed or deleted in the same transaction."""
    if removals:
        yield from for_each("note_removals", removals)
        yield from ask("continue_positions")


def list_consumers() -> Work[Sequence[Consumer]]:
    return [Consumer(*row) for row in (yield from ask("list_consumers"))]


def lock_consumers(names: Sequence[str]) -> Work[Sequence[Consumer]]:
    """Lock consumers until the end of the transaction, and return them; skip those that other processes have locked."""
    return [Consumer(*row) for row in (yield from ask("lock_consumers", names=as_json(names)))]


def end_of_feed() -> Work[int]:
    """Return the position up to which the feed is final."""
    ((end,),) = yield from ask("end_of_feed")
    return int(end)


def last_version() -> Work[int]:
    """Return the position of the last version that is final, or 0."""
    ((position,),) = yield from ask("last_version", end=(yield from end_of_feed()))
    return int(position)


def end_of_slice(after: int, end: int, limit: int) -> Work[int]:
    """Return the end of a slice of about ``limit`` records."""
    if end <= after:
        return after
    ((upto,),) = yield from ask("end_of_slice", after=after, end=end, limit=limit)
    return int(upto)


def move_consumers(names: Sequence[str], position: int) -> Work[None]:
    """Move consumers to a position, unless they are already further."""
    yield from ask("move_consumers", names=as_json(names), position=position)


def read_by_all() -> Work[int]:
    """Return the position before the first record that some consumer has not read."""
    ((first,),) = yield from ask("first_unread")
    return BEHIND_ALL if first is None else int(first) - 1


def clear_removals() -> Work[None]:
    """Delete removals that all consumers have passed, and names in those that all counts and roll-ups have passed."""
    if not (yield from ask("has_removals")):
        return
    consumers = yield from list_consumers()
    yield from ask("delete_removals", position=min(each.position for each in consumers))
    yield from ask("scrub_removals", position=min(each.position for each in consumers if each.is_inside))


def oldest_unread() -> Work[Mapping[str, datetime | None]]:
    """Return when the oldest record arrived that each consumer has not read; None for consumers that have read all."""
    rows = yield from ask("oldest_unread")
    return {name: None if received_at is None else from_micros(received_at) for name, received_at in rows}


class Edge(Enum):
    """A placeholder for a position among the parameters of a statement, so that one statement serves all slices."""

    AFTER = "after"
    UPTO = "upto"


def of_slice(statement: Sql, bounds: Slice) -> Sql:
    """Fill the positions of a slice into a statement of :func:`versions_between`."""
    positions = {Edge.AFTER: bounds.after, Edge.UPTO: bounds.upto}
    values = [positions[each] if isinstance(each, Edge) else each for each in statement.parameters]
    return Sql(statement.sql, tuple(values))


def versions_between(
    columns: LiteralString, where: LiteralString, records: LiteralString, removals: LiteralString
) -> Sql:
    """Return the query for the versions by which the states at both ends of a slice differ.

    Its column ``sign`` is 1 for added versions and -1 for removed ones. Some parameters are of :class:`Edge`;
    :func:`of_slice` replaces them by positions.

    Args:
        columns: further columns of the query.
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
    """A removal of a former version, with the operation that senders forward for it, and who made it."""

    position: int
    former: int
    former_principal: str | None
    forward: tuple[Operation, Provenance] | None


def begin_outbox() -> Work[None]:
    """Keep changes by clients for senders from now on, unless they are already kept."""
    yield from ask("add_consumer", name=SENDERS, position=(yield from end_of_feed()))


def read_outbox(limit: int | None) -> Work[Outbox]:
    """Return the oldest changes by clients, from a slice of about ``limit`` records of the feed.

    A record that was changed several times has one entry, with its current version. Without a limit, all visible
    changes are returned, also those whose positions are not final yet.
    """
    found = [each for each in (yield from list_consumers()) if each.name == SENDERS]
    if not found:
        return Outbox(0, 0, ())
    after = found[0].position
    upto = BEHIND_ALL
    if limit is not None:
        upto = yield from end_of_slice(after, (yield from end_of_feed()), limit)
    if not (yield from ask("has_versions_behind", position=after)):
        return Outbox(after, after, ())
    versions: dict[str, list[_Version]] = {}
    operation: Operation | None
    for record_id, position, former, principal, operation, at, by, agent in (
        yield from ask("removals_of_slice", after=after, upto=upto)
    ):
        # A version that was removed after the slice exists at its end. A later slice forwards the removal.
        forward: tuple[Operation, Provenance] | None = None
        if operation is not None and position <= upto:
            forward = (operation, Provenance(from_micros(at), by, agent))
        versions.setdefault(record_id, []).append(_Version(position, former, principal, forward))
    entries: list[OutboxEntry] = []
    for record_id, position, document, received_at, principal, agent in (
        yield from ask("forwardable_of_slice", after=after, upto=upto, changed=as_json(list(versions)))
    ):
        stored = Provenance(from_micros(received_at), principal, agent)
        forward = _forward(stored, position, versions.get(record_id, ()), Slice(after, upto))
        if forward is not None:
            entries.append(OutboxEntry(min(position, upto), entry_of(*forward, document)))
    return Outbox(after, upto, entries)


def _forward(
    stored: Provenance, position: int, versions: Sequence[_Version], bounds: Slice
) -> tuple[Operation, Provenance] | None:
    """Return the operation to be forwarded for a record, and who made it; None if nothing is to be forwarded.

    Args:
        stored: who brought the record.
        position: of the stored version.
        versions: the removals of its versions.
        bounds: the slice that senders read.
    """
    # Leave out the versions of a former record with this id, which was deleted up to the end of the slice.
    present = {position, *[each.former for each in versions]}
    gone = {each.position for each in versions if each.position <= bounds.upto and each.position not in present}
    while former := {each.former for each in versions if each.position in gone}:
        versions = [each for each in versions if each.position not in gone]
        gone = former
    forwards = [each.forward for each in versions if each.forward is not None]
    changes = [each for each in versions if each.position != each.former]
    made = {each.position for each in changes}
    firsts = [each.former_principal for each in changes if each.former > bounds.after and each.former not in made]
    if not changes:
        firsts = [stored.principal]
    if any(is_forwarded(Provenance(stored.received_at, principal)) for principal in firsts):
        return "insert", (forwards[-1][1] if changes and forwards else stored)
    if not forwards:
        return None
    operation, by = forwards[-1]
    return operation if all(other == operation for other, _ in forwards) else "replace", by


def entry_of(operation: Operation, provenance: Provenance, document: str) -> Entry:
    """Return a change in the form that senders take."""
    text = document.encode()
    record = decode_record(text)
    if operation == "insert":
        return Insert(record, None, provenance, encoded=Encoded(record, text))
    if operation == "close" and record.stop_time is not None:  # else a later change has opened the record again
        return Close(record.record_id, record.stop_time, provenance)
    return Replace(record, None, provenance)
