"""Folders of backups: each backup is a folder of its own, named by its moment; the oldest ones give way."""

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
    """No complete backup is where one was looked for.

    Remedy:
        name the folder that the backups are in; without any, `auditord restore --continue --without-backup`.
    """


def new_folder(place: Path, moment: datetime) -> Path:
    """Make the folder of a backup, instead of one of the same second that was never finished; it is private.

    The caller holds the lock of the place, so no other backup is made there.

    Raises:
        NoBackup: it cannot be made, or another backup of the same second is there.
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
    """Return whether a folder is a whole backup."""
    return (folder / FILE).is_file()


def backups(place: Path) -> Sequence[Path]:
    """The complete backups in a folder, the newest first."""
    return [folder for folder in _folders(place) if is_complete(folder)]


def found_backup(place: Path) -> Path:
    """The backup that a folder is, or the newest complete one in it.

    Raises:
        NoBackup: it is none and has none.
    """
    if is_complete(place):
        return place
    if complete := backups(place):
        return complete[0]
    broken = ", ".join(folder.name for folder in _folders(place))
    more = f"; {broken} were never finished" if broken else f"; a backup has a {FILE}"
    raise NoBackup(f"there is no complete backup in {place}{more}")


def discard_old(place: Path, keep: int, newest: Path) -> Sequence[Path]:
    """Remove all but the newest complete backups, and older unfinished ones; return the removed folders.

    The manifest goes first: a folder that is half gone is no backup.
    """
    kept = {newest, *backups(place)[:keep]}
    gone = [folder for folder in _folders(place) if folder not in kept and folder.name < newest.name]
    for folder in gone:
        (folder / FILE).unlink(missing_ok=True)
        synced(folder)
        shutil.rmtree(folder)
    return gone


def _folders(place: Path) -> Sequence[Path]:
    """Everything that a backup may have made here, the newest first."""
    if not place.is_dir():
        return ()
    return sorted((each for each in place.iterdir() if _NAME.fullmatch(each.name) and each.is_dir()), reverse=True)
