"""Snapshots that nobody reads any more, and files of the table that no snapshot needs.

Rows that were taken out of the table are in the files of earlier snapshots, and their least and greatest values in the
lists of these files (Iceberg's manifests). A run that was killed before its commit leaves files that no snapshot names.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

KEPT_SNAPSHOTS: Final = 100
"""Snapshots to which nothing but rows was added since; those who read them are not disturbed."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The files of a table.

    Args:
        files: all of them, by their names.
        is_any: whether some are not needed, or some snapshot is not.
    """

    files: Collection[Path]
    is_any: bool


def leftovers_of(table: Table) -> Leftovers:
    """The files of a table, and whether it is worth while to clean it."""
    files = [path for path in _folder(table).rglob("*") if path.is_file()]
    unused = {path.name for path in files} - needed_files(table)
    return Leftovers(files, bool(unused) or len(table.snapshots()) > KEPT_SNAPSHOTS or _has_removed_rows(table))


def forget_snapshots(table: Table) -> None:
    """Expire all snapshots but the newest."""
    newest = table.current_snapshot()
    old = [each.snapshot_id for each in table.snapshots() if each != newest]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
        table.refresh()


def delete_unused(table: Table, files: Collection[Path]) -> int:
    """Delete those of the files that the table does not need; returns how many there were."""
    needed = needed_files(table)
    unused = [path for path in files if path.name not in needed]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


def _folder(table: Table) -> Path:
    return Path(unquote(urlparse(table.location()).path))


def _has_removed_rows(table: Table) -> bool:
    """Return whether rows were taken out since the earliest snapshot, or the newest still names their files."""
    return any(
        each.summary is not None and each.summary.operation is not Operation.APPEND for each in table.snapshots()
    )


def needed_files(table: Table) -> set[str]:
    """The names of the files, which are unique, that the table refers to."""
    manifests = {each.manifest_path: each for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
    paths = {table.metadata_location, *[entry.metadata_file for entry in table.metadata.metadata_log]}
    paths |= {snapshot.manifest_list for snapshot in table.snapshots()} | manifests.keys()
    paths |= {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    return {path.rpartition("/")[2] for path in paths}
