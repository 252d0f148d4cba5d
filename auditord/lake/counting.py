"""Counts of the lake's rows, which tell whether another program has deleted or added some.

Only a program that also forges the positions of the daemons escapes the count of all rows. The count of released rows
is compared with the record store's.
"""

from collections import Counter
from itertools import chain

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from auditord.lake.manifests import LakeRefused
from auditord.lake.positions import positions_of
from auditord.lake.reading import count_marked, stream_rows
from auditord.store.lake import LakeMiscounted, LakeState, Released
from auditord_hookspecs.wording import counted


class RowCounts:
    """Checks of loaded tables, which remember the snapshots that they have counted, by their lists of manifests.

    A forger can give a snapshot other manifests without changing its id.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._sound = "", "", LakeState()  # snapshot and daemon that were found to have a row for each released record
        self._rows = "", Counter[str]()

    def refuse_miscounted(self, table: Table, snapshot_id: int, daemon: str, released: Released) -> None:
        """Raise LakeMiscounted unless a snapshot of a loaded table has a row for each released record of a daemon.

        Rows that do not count may be missing, since a run deletes them before the store forgets them.
        """
        state, recalled = released.state, len(released.recalled)
        checked = _list_of(table.snapshot_by_id(snapshot_id)), daemon, state
        if not state.records or self._sound == checked:
            return
        found = count_marked(table, snapshot_id, daemon, state.release)
        if not state.records <= found <= state.records + recalled:
            change = found - state.records
            raise LakeMiscounted(
                f"The lake {self._location} has {found:,} of {counted(state.records, 'record')} that {daemon} has "
                f"released to it: another program has {'deleted' if change < 0 else 'added'} "
                f"{counted(abs(change), 'row')}. Run `auditord lake verify`, and roll the table back "
                f"to snapshot {state.snapshot_id} or an earlier one."
            )
        self._sound = checked

    def refuse_changed(self, table: Table, daemon: str | None) -> None:
        """Raise LakeMiscounted if another program has deleted or added rows of a daemon, or of any if it is None.

        Files are read only if the manifests do not have the expected number of rows.
        """
        snapshot, positions = table.current_snapshot(), positions_of(table)
        if snapshot is None:
            return
        manifests = snapshot.manifests(table.io)
        for each in manifests:
            if len(table.io.new_input(each.manifest_path)) != each.manifest_length:
                raise LakeRefused(
                    f"The manifest {each.manifest_path} of the lake does not have the size with which it was written: "
                    "another program has replaced it. Restore it from a backup."
                )
        rows = sum((each.added_rows_count or 0) + (each.existing_rows_count or 0) for each in manifests)
        if rows == sum(each.rows for each in positions.values()):
            return
        if self._rows[0] != _list_of(snapshot):
            names = (batch["daemon"].to_pylist() for batch in stream_rows(table, AlwaysTrue(), ("daemon",)))
            self._rows = _list_of(snapshot), Counter(chain.from_iterable(names))
        found, expected = self._rows[1], {name: each.rows for name, each in positions.items()}
        for name in sorted(found.keys() | expected) if daemon is None else [daemon]:
            change = found[name] - expected.get(name, 0)
            if change:
                raise LakeMiscounted(
                    f"The lake {self._location} has {counted(found[name], 'row')} of {name}, which has written "
                    f"{expected.get(name, 0):,}: another program has {'deleted' if change < 0 else 'added'} "
                    f"{abs(change):,}. Find out which, and roll the table back to a snapshot before that."
                )


def _list_of(snapshot: Snapshot | None) -> str:
    return "" if snapshot is None else snapshot.manifest_list


def refuse_rewritten(table: Table) -> None:
    """Raise LakeRefused if a manifest of the newest snapshot does not have the rows that the list of manifests says."""
    snapshot = table.current_snapshot()
    for each in () if snapshot is None else snapshot.manifests(table.io):
        rows = sum(entry.data_file.record_count for entry in each.fetch_manifest_entry(table.io))
        expected = (each.added_rows_count or 0) + (each.existing_rows_count or 0)
        if rows != expected:
            raise LakeRefused(
                f"The manifest {each.manifest_path} of the lake has {counted(rows, 'row')}, but {expected:,} were "
                "written to it: another program has replaced it. Roll the table back to an earlier snapshot."
            )
