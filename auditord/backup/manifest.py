"""The folder of a backup, named like ``auditord-20261122T020000Z`` (in UTC), and the manifest in it.

The manifest is written last. A folder without one is an unfinished backup.
"""

import hashlib
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from auditord.database.durable_files import make_private_folder, sync, write_durably
from auditord.store.lake import LakePart
from auditord_hookspecs import AuditordError

FILE: Final = "manifest.json"
FORMAT: Final = 1
"""The version of the manifest; a newer one is refused."""

TOKENS: Final = "tokens.json"
"""The API's tokens in the state folder, only as hashes. All other files there can be made again."""

_LARGEST: Final = 1 << 20
"""The most bytes of a manifest. It grows with the number of instances; those of a thousand take a tenth of this."""

_PIECE: Final = 1 << 20

StoreFile: TypeAlias = Literal["records.db", "records.dump"]
SpoolFile: TypeAlias = Literal["spool.db"]
TokensFile: TypeAlias = Literal["tokens.json"]
BackupFile: TypeAlias = StoreFile | SpoolFile | TokensFile
"""File names allowed in a manifest. A restore reads no other file, wherever the folder comes from."""


class BackupDamaged(AuditordError):
    """A backup that does not match its manifest, or that this version cannot read.

    Remedy:
        use an older backup: `auditord restore FOLDER` tries the newest complete one. For a backup of a newer version,
        install that version.
    """


class StorePart(msgspec.Struct, frozen=True):
    """The record store in a backup.

    Args:
        schema: number of the last migration.
        file: the copy in the folder; None if the database is backed up by its own means.
        records: number of records.
        digest: digest of all data of each record, as printed by ``auditord database copy``.
        tables: number of rows in each other table.
        lake: the records that the store has released to the lake; None if there are none.
    """

    database: Literal["sqlite", "postgresql"]
    schema: int
    file: StoreFile | None
    records: int
    digest: str
    tables: Mapping[str, int]
    lake: LakePart | None = None


class SpoolPart(msgspec.Struct, frozen=True):
    """The spool in a backup.

    Args:
        schema: number of the last migration.
        file: the copy in the folder.
        spool_id: the id by which the store recognises the spool.
        generation: the number that matches the store's.
        queued: number of queued entries, by sender.
        quarantined: number of quarantined entries.
        checkpoints: when the checkpoint of each collector was saved.
    """

    schema: int
    file: SpoolFile
    spool_id: str
    generation: int
    queued: Mapping[str, int]
    quarantined: int
    checkpoints: Mapping[str, datetime]


class FilePart(msgspec.Struct, frozen=True):
    """A file's size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a backup.

    Args:
        format: see :data:`FORMAT`.
        auditord: the version that made the backup.
        number: larger than that of every earlier backup in the folder of all backups. It tells the newest one even if
            the clock was wrong.
        made_at: the time of the backed-up state.
        files: every file except the manifest.
    """

    format: int
    auditord: str
    number: int
    made_at: datetime
    store: StorePart
    spool: SpoolPart
    files: Mapping[BackupFile, FilePart]


class _Versioned(msgspec.Struct, frozen=True):
    format: int


def describe_file(path: Path) -> FilePart:
    """Return size and checksum of a file, read from the disk."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return FilePart(size, digest.hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes a folder a complete backup."""
    write_durably(folder / FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        BackupDamaged: the manifest cannot be read, or is of a later version.
    """
    try:
        with (folder / FILE).open("rb") as file:
            text = file.read(_LARGEST + 1)  # the folder is not trusted
        if len(text) > _LARGEST:
            raise BackupDamaged(f"{folder / FILE} has more than {_LARGEST} bytes, so it is not a manifest")
        version = msgspec.json.decode(text, type=_Versioned).format
        if version > FORMAT:
            raise BackupDamaged(
                f"{folder} was made by a newer auditord (manifest {version}, this version knows up to {FORMAT}): "
                "install that version to restore it"
            )
        return msgspec.json.decode(text, type=Manifest)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise BackupDamaged(f"{folder / FILE} cannot be read: {error}") from error


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Verify that every file of a backup matches the manifest. The folder is not trusted.

    Raises:
        BackupDamaged: a file is missing, different or a link, or the manifest lacks its checksum.
    """
    for part in (manifest.store.file, manifest.spool.file):
        if part is not None and part not in manifest.files:
            raise BackupDamaged(f"{folder / FILE} has no checksum for {part}; use another backup")
    for name, expected in manifest.files.items():
        try:
            status = (folder / name).lstat()
            if not stat.S_ISREG(status.st_mode):
                raise BackupDamaged(f"{folder / name} is not a regular file; use another backup")
            if status.st_size != expected.size:  # a sparse file may have any size, and is not read
                raise BackupDamaged(
                    f"{folder / name} is damaged: it has {status.st_size} bytes, the manifest says {expected.size}; "
                    "use another backup"
                )
            found = describe_file(folder / name)
        except OSError as error:
            raise BackupDamaged(f"{folder / name} cannot be read: {error.strerror}; use another backup") from error
        if found != expected:
            raise BackupDamaged(
                f"{folder / name} is damaged: its SHA-256 is {found.sha256}, the manifest says {expected.sha256}; use "
                "another backup"
            )


_NAME: Final = re.compile(r"auditord-\d{8}T\d{6}Z")


class NoBackup(AuditordError):
    """A folder contains no complete backup.

    Remedy:
        name the folder with the backups; without any backup, run `auditord restore --without-backup`.
    """


def new_folder(place: Path, moment: datetime) -> Path:
    """Create the private folder of a new backup, replacing an unfinished one of the same second.

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
        raise NoBackup(f"cannot create a backup in {place}: {error.strerror}") from error
    return folder


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a manifest, and so is a complete backup.

    A folder that another user made may have one; :func:`read_manifest` reports that it cannot be read.
    """
    try:
        return (folder / FILE).is_file()
    except PermissionError:
        return True


def read_backups(place: Path) -> tuple[Mapping[Path, Manifest], Mapping[Path, BackupDamaged]]:
    """Return the complete backups in a folder, the newest first, and those whose manifest cannot be read."""
    found, damaged = dict[Path, Manifest](), dict[Path, BackupDamaged]()
    for folder in filter(is_complete, _list_folders(place)):
        try:
            found[folder] = read_manifest(folder)
        except BackupDamaged as error:
            damaged[folder] = error
    return dict(sorted(found.items(), key=lambda each: each[1].number, reverse=True)), damaged


def find_backup(place: Path) -> Path:
    """Return ``place`` if it is a complete backup, else the newest complete backup in it.

    Raises:
        NoBackup: there is no complete backup.
        BackupDamaged: a backup that cannot be read may be newer than all others.
    """
    if is_complete(place):
        return place
    found, damaged = read_backups(place)
    newest = next(iter(found), None)
    for folder, error in damaged.items():
        if newest is None or folder.name > newest.name:
            other = "" if newest is None else f"; the newest that can be read is {newest}: name it to use it"
            raise BackupDamaged(f"{error}{other}") from error
    if newest is None:
        unfinished = ", ".join(folder.name for folder in _list_folders(place))
        more = f"; unfinished: {unfinished}" if unfinished else f"; a complete backup contains a {FILE}"
        raise NoBackup(f"there is no complete backup in {place}{more}")
    return newest


def delete_unfinished(place: Path) -> Sequence[Path]:
    """Delete unfinished backups that this user may delete, and return their folders.

    The caller must hold the lock of ``place``.
    """
    unfinished = [folder for folder in _list_folders(place) if not is_complete(folder)]
    for folder in unfinished:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder for folder in unfinished if not folder.exists()]


def delete_old(place: Path, keep: int, spool_id: str) -> Sequence[Path]:
    """Delete old backups of a spool, and return their folders.

    Keeps the ``keep`` newest backups, and besides the last one of each of the ``keep`` newest days. So several backups
    of one day never delete the backups of other days. Backups of other spools are kept: a daemon whose disk is not
    mounted begins with an empty one. The manifest is deleted first, so that a partly deleted folder never counts as a
    backup.
    """
    own = {folder: each for folder, each in read_backups(place)[0].items() if each.spool.spool_id == spool_id}
    last_of_days = dict[date, Path]()
    for folder, each in own.items():
        last_of_days.setdefault(each.made_at.date(), folder)
    kept = {*[*own][:keep], *[*last_of_days.values()][:keep]}
    old = [folder for folder in own if folder not in kept]
    for folder in old:
        (folder / FILE).unlink(missing_ok=True)
        sync(folder)
        shutil.rmtree(folder)
    return old


def _list_folders(place: Path) -> Sequence[Path]:
    """Return all folders with a backup's name, complete or not, in the order of their names, the last first."""
    if not place.is_dir():
        return ()
    return sorted((each for each in place.iterdir() if _NAME.fullmatch(each.name) and each.is_dir()), reverse=True)
