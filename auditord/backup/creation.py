"""Make a backup, with or without a running daemon; called by ``auditord backup`` and the plugin ``backup``."""

import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from auditord import __version__
from auditord.backup.lake_tags import LakeTags
from auditord.backup.manifest import (
    FORMAT,
    TOKENS,
    BackupFile,
    FilePart,
    Manifest,
    SpoolPart,
    StorePart,
    TokensFile,
    delete_old,
    delete_unfinished,
    describe_file,
    new_folder,
    read_backups,
    write_manifest,
)
from auditord.backup.snapshots import StoreSnapshot, open_snapshot
from auditord.backup.sqlite import Pacing, copy_snapshot, snapshot
from auditord.config.model import Configuration
from auditord.database.durable_files import make_private_folder, write_durably
from auditord.database.memory import file_turn
from auditord.database.sql_files import load_scripts
from auditord.errors import reason_of
from auditord.spool import handing_over
from auditord.spool import tables as spool_tables
from auditord.spool.spool import FILE as SPOOL
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store.copying import Progress
from auditord_hookspecs import AuditordError


class BackupFailed(AuditordError):
    """A backup could not be made, and its partial files were removed.

    Remedy:
        see the reason (usually disk space or permissions) and make the backup again; older backups are untouched.
    """


class BackupOptions(msgspec.Struct, frozen=True):
    """Options of a backup.

    Args:
        place: the folder of all backups.
        keep: how many backups to keep, see :func:`delete_old`; None for all, also unfinished ones.
        rate: most bytes per second to read from SQLite files; None for no limit.
        dump: whether a record store in PostgreSQL is dumped as well.
    """

    place: Path
    keep: int | None = None
    rate: float | None = None
    dump: bool = False


class Made(msgspec.Struct, frozen=True):
    """A new backup, and the older ones that were deleted."""

    folder: Path
    manifest: Manifest
    discarded: Sequence[Path]
    advice: str | None = None
    """Steps left to the operator."""


async def make_backup(
    configuration: Configuration, options: BackupOptions, now: Callable[[], datetime], progress: Progress
) -> Made:
    """Make a backup of record store and spool as one pair. Entries in transit are in at least one of them.

    A daemon may be using the spool. ``progress`` is also called from threads.

    Raises:
        BackupFailed: there is nothing to back up, or the folder of the backups cannot be created.
        StoreUnavailable: the store or the spool is unreadable or damaged, or the copy cannot be written.
        NoBackup: the backup's folder cannot be created.
        CommandFailed: pg_dump failed.
    """
    state_dir, tags = configuration.state_dir, LakeTags(configuration)
    if not (state_dir / SPOOL).exists():
        raise BackupFailed(
            f"there is no {state_dir / SPOOL}: no daemon has used this folder, so there is nothing to back up"
        )
    try:
        make_private_folder(options.place, 0o700)
    except OSError as error:
        raise BackupFailed(
            f"cannot make the folder {options.place}, give another one: {error.filename}: {reason_of(error)}"
        ) from error
    async with file_turn(options.place / "auditord", "backup", lambda: progress.note_progress("waiting", 0, 1)):
        made_at, discarded = now(), list[Path]()
        if options.keep is not None:
            discarded += delete_unfinished(options.place)  # first, since runs that are killed would fill the disk
        number = 1 + max((each.number for each in read_backups(options.place)[0].values()), default=0)
        async with AsyncExitStack() as stack:
            # No entry leaves the outbox between the two snapshots. In the other order, entries that move from the spool
            # to the store meanwhile would be in neither.
            async with handing_over(state_dir):
                spool = stack.enter_context(snapshot(state_dir / SPOOL, SPOOL_MIGRATIONS))
                stored = await stack.enter_async_context(open_snapshot(configuration.store, dump=options.dump))
            folder = new_folder(options.place, made_at)
            try:
                if (lake_snapshot := await stored.lake_snapshot()) is not None:
                    await tags.keep(options.place, {folder.name: lake_snapshot})
                store, part, files = await _save(spool, stored, state_dir, folder, Pacing(progress, options.rate))
                manifest = Manifest(
                    format=FORMAT,
                    auditord=__version__,
                    number=number,
                    made_at=made_at,
                    store=store,
                    spool=part,
                    files=files,
                )
                write_manifest(folder, manifest)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        if options.keep is not None:
            discarded += delete_old(options.place, options.keep, manifest.spool.spool_id)
        await tags.keep(options.place, {})
    return Made(folder, manifest, discarded, stored.advice(folder, made_at))


async def _save(
    spool: sqlite3.Connection, stored: StoreSnapshot, state_dir: Path, folder: Path, pacing: Pacing
) -> tuple[StorePart, SpoolPart, Mapping[BackupFile, FilePart]]:
    """Write the snapshots, and the tokens, to the folder of a backup; return the parts of its manifest."""
    await anyio.to_thread.run_sync(copy_snapshot, spool, folder / SPOOL, pacing("spool"))
    part = _describe_spool(spool)
    spool.close()  # ends its transaction, so that the log stops growing
    store = await stored.save(folder, pacing)
    names: list[BackupFile] = [SPOOL, *_copy_tokens(state_dir, folder)]
    if store.file is not None:
        names.append(store.file)
    return store, part, {name: await anyio.to_thread.run_sync(describe_file, folder / name) for name in names}


def _describe_spool(spool: sqlite3.Connection) -> SpoolPart:
    generation, statistics = spool_tables.generation(spool), spool_tables.statistics(spool)
    return SpoolPart(
        schema=len(load_scripts(SPOOL_MIGRATIONS)),
        file=SPOOL,
        spool_id=generation.spool_id,
        generation=generation.number,
        queued={sender: queue.entries for sender, queue in statistics.queues.items()},
        quarantined=sum(statistics.quarantined.values()),
        checkpoints=statistics.checkpoints,
    )


def _copy_tokens(state_dir: Path, folder: Path) -> Sequence[TokensFile]:
    """Copy the API's tokens, if there are any, and return the names of the files."""
    try:
        content = (state_dir / TOKENS).read_bytes()  # replaced as a whole with each change
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackupFailed(f"{error.filename} cannot be read: {reason_of(error)}") from error
    write_durably(folder / TOKENS, content)
    return [TOKENS]
