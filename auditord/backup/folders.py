"""Find, create and delete the folders of backups; used by ``creation`` and ``restoring``.

Each backup is a folder ``auditord-20261122T020000Z`` (its time in UTC) in a folder of backups. It is complete once it
has a manifest, which is written last.
"""

import re
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from auditord.backup.manifest import FILE
from auditord.database.durable_files import make_private_folder, synced
from auditord_hookspecs import AuditordError

_NAME: Final = re.compile(r"auditord-\d{8}T\d{6}Z")


class NoBackup(AuditordError):
    """A folder contains no complete backup.

    Remedy:
        name the folder with the backups; without any backup, run
            `auditord restore --continue --without-backup`.
    """


def new_folder(place: Path, moment: datetime) -> Path:
    """Create the private folder of a new backup; replaces an unfinished one of the same second.

    The caller must hold the lock of ``place``, so that no other backup is created there.

    Raises:
        NoBackup: the folder cannot be created, or a complete backup of the same second exists.
    """
    folder = place / f"auditord-{moment:%Y%m%dT%H%M%SZ}"
    try:
        make_private_folder(place, 0o700)
        if folder.is_dir() and not is_complete(folder):
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
    except FileExistsError as error:
        raise NoBackup(f"{folder} already exists, from another backup in the same second; try again") from error
    except OSError as error:
        raise NoBackup(f"no backup can be made in {place}: {error.strerror}") from error
    return folder


def is_complete(folder: Path) -> bool:
    """Return whether a folder is a complete backup, which has a manifest."""
    return (folder / FILE).is_file()


def backups(place: Path) -> Sequence[Path]:
    """Return the complete backups in a folder, the newest first."""
    return [folder for folder in _folders(place) if is_complete(folder)]


def found_backup(place: Path) -> Path:
    """Return ``place`` if it is a complete backup, else the newest complete backup in it.

    Raises:
        NoBackup: there is none.
    """
    if is_complete(place):
        return place
    if complete := backups(place):
        return complete[0]
    broken = ", ".join(folder.name for folder in _folders(place))
    more = f"; {broken} were never finished" if broken else f"; a backup has a {FILE}"
    raise NoBackup(f"there is no complete backup in {place}{more}")


def discard_old(place: Path, keep: int, newest: Path) -> Sequence[Path]:
    """Delete all but the ``keep`` newest complete backups, and unfinished ones older than ``newest``.

    The manifest is deleted first, so that a partly deleted folder never counts as a backup. Returns deleted folders.
    """
    kept = {newest, *backups(place)[:keep]}
    gone = [folder for folder in _folders(place) if folder not in kept and folder.name < newest.name]
    for folder in gone:
        (folder / FILE).unlink(missing_ok=True)
        synced(folder)
        shutil.rmtree(folder)
    return gone


def _folders(place: Path) -> Sequence[Path]:
    """Return all folders with a backup's name, complete or not, the newest first."""
    if not place.is_dir():
        return ()
    return sorted((each for each in place.iterdir() if _NAME.fullmatch(each.name) and each.is_dir()), reverse=True)
