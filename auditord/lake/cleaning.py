"""Remove snapshots of the lake that have expired, and files that no snapshot needs."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from datetime import datetime
from importlib import import_module
from typing import Any, Final

from pyiceberg.table import Table

_fs: Any = import_module("pyarrow.fs")  # Any: it ships no types

_MOST_SNAPSHOTS: Final = 500
"""Snapshots that stay at most: each commit writes the list of them."""


def clean(table: Table, keep_since: datetime, made_before: datetime, needed: int) -> int:
    """Expire old snapshots and delete files that none needs; see :meth:`auditord.lake.table.LakeTable.clean`."""
    newest_first = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0, reverse=True)
    since = keep_since.timestamp() * 1_000
    old = [
        each.snapshot_id
        for place, each in enumerate(newest_first)
        if place and each.snapshot_id != needed and (place >= _MOST_SNAPSHOTS or each.timestamp_ms < since)
    ]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
        table.refresh()
    return _delete_unneeded(table, made_before)


def _delete_unneeded(table: Table, made_before: datetime) -> int:
    io: Any = table.io  # Any: pyiceberg types it as any FileIO
    scheme, netloc, path = io.parse_location(table.location(), io.properties)
    filesystem = io.fs_by_scheme(scheme, netloc)
    found = filesystem.get_file_info(_fs.FileSelector(path, recursive=True))
    needed = needed_files(table)
    unneeded = [
        each.path
        for each in found
        if each.type == _fs.FileType.File and each.base_name not in needed and each.mtime < made_before
    ]
    for each in unneeded:
        filesystem.delete_file(each)
    return len(unneeded)


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
