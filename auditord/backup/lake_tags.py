"""Tags of the lake that keep the snapshots of existing backups from expiring."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from auditord.backup.manifest import Manifest, read_backups
from auditord.config.model import Configuration
from auditord.database.durable_files import write_durably
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake.opening import ConfiguredLake

_log: Final = logging.getLogger(__name__)

FILE: Final = "lake-tags"
"""File with a folder's id for the tags. Daemons of one name on several hosts may have folders of the same path."""


class LakeTags(msgspec.Struct, frozen=True):
    """The tags for a daemon's backups, if it has a lake."""

    configuration: Configuration

    async def keep(self, place: Path, making: Mapping[str, int]) -> None:
        """Keep tags for exactly the complete backups in a folder and those in progress.

        If the lake is unreachable, the backup goes ahead with a warning, and the next backup updates the tags.

        Args:
            place: the folder of all backups.
            making: snapshots by the names of unfinished backups.
        """
        name = self.configuration.lake.name
        if name is None:
            return
        found, damaged = read_backups(place)
        for error in damaged.values():
            _log.warning("%s", error)
        wanted = {
            **{folder.name: each.store.lake.snapshot for folder, each in found.items() if each.store.lake is not None},
            **making,
        }
        if not wanted and not (place / FILE).exists():
            return
        file = place / FILE
        if not file.exists():
            write_durably(file, secrets.token_hex(4).encode())
        prefix = f"auditord-backup/{quote(name, safe='')}/{file.read_text()}/"
        try:
            expired = await asyncio.to_thread(self._tag, prefix, wanted)
        except (StoreUnavailable, ConfigurationError) as error:
            _log.warning("the lake's snapshots may expire although backups in %s need them: %s", place, error)
            return
        for folder in sorted(expired):
            _log.warning("%s: the lake no longer has its snapshot %d", place / folder, wanted[folder])

    async def warn_of_loss(self, manifest: Manifest) -> str | None:
        """Return a warning if the lake lacks, or may lack, the snapshot that a restored store needs, else None."""
        if manifest.store.lake is None:
            return None
        snapshot = manifest.store.lake.snapshot
        with closing(ConfiguredLake(self.configuration)) as lake:
            try:
                if await asyncio.to_thread(lambda: lake.table.has(snapshot)):
                    return None
                why = f"{lake.warehouse} no longer has snapshot {snapshot}"
            except (StoreUnavailable, ConfigurationError) as error:
                why = str(error)
            return (
                f"{why}: if released records have been changed since, restore the lake's folder or bucket "
                f"{lake.warehouse}, and its catalog, from their backup of the night of {manifest.made_at:%Y-%m-%d}"
            )

    def _tag(self, prefix: str, wanted: Mapping[str, int]) -> set[str]:
        with closing(ConfiguredLake(self.configuration)) as lake:
            return set(lake.table.tag(prefix, wanted))
