"""Positions of the daemons in the lake: how far each has synced, kept in the summary of each snapshot."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import msgspec
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    IsNull,
    LessThan,
    Or,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from auditord.errors import ConfigurationError

POSITIONS: Final = "auditord.positions"
"""Snapshot property with the position of each daemon: the id of its store, the number of its last batch, whether a
full sync is incomplete, the number of its last release, and the number of its rows."""


class LakePosition(msgspec.Struct, frozen=True, array_like=True):
    """The state of the sync of a daemon's store.

    Args:
        store_id: of the store.
        batch: the number of its last batch.
        is_filling: whether a full sync of the store's existing records is incomplete.
        release: the highest release number that rows have or have had.
        rows: the number of its rows in the snapshot.
    """

    store_id: str
    batch: int
    is_filling: bool = False
    release: int = 0
    rows: int = 0


def positions_of(table: Table) -> Mapping[str, LakePosition]:
    """Return the positions in the newest snapshot that has any. Snapshots of other engines have none, and keep rows."""
    snapshot = newest_with_positions(table)
    text = "{}" if snapshot is None else properties_of(snapshot)[POSITIONS]
    return msgspec.json.decode(text, type=dict[str, LakePosition])


def newest_with_positions(table: Table) -> Snapshot | None:
    """Return the newest snapshot that has positions, or None."""
    return next((each for each in newest_first(table) if POSITIONS in properties_of(each)), None)


def newest_first(table: Table) -> Iterator[Snapshot]:
    """Yield the newest snapshot and those before it, as far as the table has them.

    Raises:
        ValueError: a snapshot follows itself.
    """
    snapshot, left = table.current_snapshot(), len(table.metadata.snapshots)
    while snapshot is not None:
        if left == 0:
            raise ValueError(f"snapshot {snapshot.snapshot_id} follows itself")
        yield snapshot
        parent, left = snapshot.parent_snapshot_id, left - 1
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def properties_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the additional properties in the summary of a snapshot."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def refuse_mixed(positions: Mapping[str, LakePosition], daemon: str, store_id: str) -> None:
    """Raise ConfigurationError for two stores under one name, or for one store under two names."""
    existing = positions.get(daemon)
    if existing is not None and existing.store_id != store_id:
        raise ConfigurationError(
            f"lake.name: the lake has records of another record store under the name {daemon}: choose another name; "
            f"or, if that store is lost and this one has its records, `auditord lake forget {daemon}`."
        )
    for other, position in positions.items():
        if other != daemon and position.store_id == store_id:
            raise ConfigurationError(
                f"lake.name: the lake has the records of this record store under the name {other}: they would be there "
                f"twice. Set lake.name: {other}; or, to use the new name, run `auditord lake forget {other}` first."
            )


def beyond(positions: Mapping[str, LakePosition]) -> BooleanExpression:
    """Return a condition for rows of daemons without a position, or of a batch later than the daemon's position.

    Released rows may have a later batch, since a copy of a record store numbers its batches anew. The condition
    consists of ranges, so that files can be skipped by their column bounds. ``daemon NOT IN (…)`` would skip none.
    """
    names = sorted(positions)
    if not names:
        return AlwaysTrue()
    outside = (LessThan(term="daemon", value=names[0]), GreaterThan(term="daemon", value=names[-1]))
    between = [
        And(GreaterThan(term="daemon", value=lower), LessThan(term="daemon", value=upper))
        for lower, upper in pairwise(names)
    ]
    later = [
        And(
            EqualTo(term="daemon", value=name),
            GreaterThan(term="batch", value=position.batch),
            Or(IsNull(term="release"), GreaterThan(term="release", value=position.release)),
        )
        for name, position in positions.items()
    ]
    return Or(*outside, *between, *later)
