"""Check the archive: libraries, folder, and whether its table belongs to the record store."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from auditord.archive.opening import ConfiguredArchive
from auditord.config.model import Configuration
from auditord.errors import SchemaMismatch, StoreUnavailable
from auditord.store.archived import ArchiveState
from auditord.store.opening import open_store_for_reading
from auditord_hookspecs.checks import Finding, Severity, check_extra, check_folder
from auditord_hookspecs.wording import counted

_REMEDY: Final = "mend archive.folder and archive.catalog, or restore the folder and its catalog from a backup"


async def check_archive(configuration: Configuration) -> AsyncGenerator[Finding, None]:
    """Look at the archive, where one is configured, as far as one can come."""
    if not configuration.archive.enabled:
        return
    libraries = [check_extra(module, "archive") for module in ("pyarrow", "pyiceberg")]
    for finding in libraries:
        yield finding
    archive = ConfiguredArchive(configuration)
    if archive.folder.exists():
        yield check_folder(archive.folder, "let this user write to it")
    state = await _state(configuration)
    if not state.archive_id:
        yield Finding(Severity.OK, "table", "nothing is archived yet")
    elif all(finding.severity is Severity.OK for finding in libraries):
        yield await asyncio.to_thread(_table, archive, state)


async def _state(configuration: Configuration) -> ArchiveState:
    try:
        async with open_store_for_reading(configuration.store) as store:
            return await store.archive_state()
    except (StoreUnavailable, SchemaMismatch):
        return ArchiveState()  # the record store's own checks say so


def _table(archive: ConfiguredArchive, state: ArchiveState) -> Finding:
    try:
        if archive.table.archive_id() != state.archive_id:
            text = f"it is not the archive of this record store, which is at {state.location}"
            return Finding(Severity.FAILURE, "table", text, _REMEDY)
        archive.table.require(state.snapshot_id)
    except StoreUnavailable as error:
        return Finding(Severity.FAILURE, "table", str(error), _REMEDY)
    finally:
        archive.close()
    return Finding(Severity.OK, "table", f"{counted(state.records, 'record')} at {state.location}")
