"""Expiry of the lake's snapshots, and deletion of files that no snapshot needs."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from stat import S_ISREG
from typing import Any, Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

_fs: Any = import_module("pyarrow.fs")  # Any: it ships no types

_MOST_SNAPSHOTS: Final = 500
"""Most snapshots kept without a tag. Each commit writes the list of all snapshots."""


def expire(table: Table, keep_since: datetime, needed: Collection[int]) -> int:
    """Expire old snapshots and delete their files; see :meth:`auditord.lake.table.LakeTable.expire`."""
    newest_first = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0, reverse=True)
    kept = {*needed, *[each.snapshot_id for each in table.metadata.refs.values()]}
    since = keep_since.timestamp() * 1_000
    old = [
        each
        for place, each in enumerate(newest_first)
        if each.snapshot_id not in kept and (place >= _MOST_SNAPSHOTS or each.timestamp_ms < since)
    ]
    if not old:
        return 0
    before = _manifests(table, old)
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
    table.refresh()
    after = _manifests(table, table.snapshots())
    dropped = {path: each for path, each in before.items() if path not in after}
    files = _data_files(table, dropped.values())
    files = files and files - _data_files(table, after.values())
    unneeded = {each.manifest_list for each in old} | dropped.keys() | files
    for path in unneeded:
        with suppress(FileNotFoundError):
            table.io.delete(path)
    return len(unneeded)


def delete_strays(table: Table, made_before: datetime) -> int:
    """Delete files that no snapshot refers to; see :meth:`auditord.lake.table.LakeTable.delete_strays`."""
    io: Any = table.io  # Any: pyiceberg types it as any FileIO
    scheme, netloc, path = io.parse_location(table.location(), io.properties)
    needed = needed_files(table)
    if scheme == "file":
        # By descriptors: pyarrow follows links to folders, which another writer can make.
        deleted, before = 0, made_before.timestamp()
        for _, _, names, descriptor in os.fwalk(path):
            for name in set(names).difference(needed):
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if S_ISREG(status.st_mode) and status.st_mtime < before:
                        os.unlink(name, dir_fd=descriptor)
                        deleted += 1
        return deleted
    filesystem = io.fs_by_scheme(scheme, netloc)
    strays = [
        each.path
        for each in filesystem.get_file_info(_fs.FileSelector(path, recursive=True))
        if each.type == _fs.FileType.File and each.base_name not in needed and each.mtime < made_before
    ]
    for each in strays:
        filesystem.delete_file(each)
    return len(strays)


def needed_files(table: Table) -> set[str]:
    """Return the names of the files that the table refers to. File names are unique."""
    manifests = _manifests(table, table.snapshots())
    paths = {table.metadata_location, *[entry.metadata_file for entry in table.metadata.metadata_log]}
    paths |= {snapshot.manifest_list for snapshot in table.snapshots()} | manifests.keys()
    paths |= _data_files(table, manifests.values())
    statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)  # of other engines
    paths |= {each.statistics_path for each in statistics}
    return {path.rpartition("/")[2] for path in paths}


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, Any]:  # Any: pyiceberg's ManifestFile
    return {each.manifest_path: each for snapshot in snapshots for each in snapshot.manifests(table.io)}


def _data_files(table: Table, manifests: Iterable[Any]) -> set[str]:  # Any: pyiceberg's ManifestFile
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
