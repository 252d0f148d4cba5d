"""Collect jobs from history files, which HTCondor appends to and rotates."""

import glob
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from anyio import to_thread

from auditord_builtin.htcondor.ads import JobAd, split_ads, whole_ads
from auditord_builtin.htcondor.choosing import classify, select_ads
from auditord_builtin.htcondor.conversion import ends_before
from auditord_builtin.htcondor.evaluation import read_ads
from auditord_builtin.htcondor.query import Source, list_columns
from auditord_builtin.htcondor.reading import Checkpoint
from auditord_hookspecs import AuditordError, Batch
from auditord_hookspecs.folders import open_regular
from auditord_hookspecs.outcomes import restore

_PIECE: Final = 8 * 1024**2

_HEAD: Final = 1024**2

_END: Final = b"\n***"

_ATTRIBUTE: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]* *=")


class Piece(msgspec.Struct, frozen=True):
    """A part of a file: its ads, oldest first, and its size in bytes."""

    ads: Sequence[JobAd]
    size: int


class HistoryFile(msgspec.Struct, frozen=True):
    """A history file.

    Args:
        name: the fingerprint of the file's first ad, or of its first MiB if the ad is longer; empty if it has none.
        history: the configured path. HTCondor appends to the file at this path; the other ones are rotated.
    """

    path: Path
    name: str
    history: Path


async def collect_files(source: Source) -> AsyncIterator[Batch]:
    """Collect the jobs appended since the last run, or collect a job or window again.

    Raises:
        AuditordError: a file cannot be read.
    """
    config, context = source.config, source.context
    checkpoint = restore(context.checkpoint or {"schedds": {}}, Checkpoint)
    again = source.again
    if checkpoint.earliest is None and not again:
        checkpoint = msgspec.structs.replace(checkpoint, earliest=config.earliest_datetime or context.now())
        yield checkpoint.batch()
    files = await to_thread.run_sync(_find, config.history_paths)
    for file in files:
        if not file.name and not file.path.exists():  # HTCondor creates the file when the first job leaves the queue
            context.log.warning("%s does not exist yet: no job has left the queue, or the path is wrong", file.path)
    found = [file for file in files if file.name]
    if not again:  # if a file that was current in the last run is gone, the jobs appended since are lost
        existing = {file.name for file in found}
        for path, name in checkpoint.current.items():
            if name not in existing:
                context.log.warning(
                    "%s: its history contains no job that was read before: if it was rotated, jobs may be missing; run "
                    "more often, or raise MAX_HISTORY_ROTATIONS or MAX_HISTORY_LOG",
                    path,
                )
    for number, file in enumerate(found, start=1):
        done = 0 if again else checkpoint.files.get(file.name, 0)
        while (piece := await to_thread.run_sync(_read, source, file, done, abandon_on_cancel=True)).size:
            done += piece.size
            checkpoint = msgspec.structs.replace(checkpoint, files={**checkpoint.files, file.name: done})
            batch = await classify(source, _select(source, checkpoint, file, piece.ads))
            yield batch if again else checkpoint.batch(batch)
        context.report_progress(number / len(found))
    if not again:
        yield _catch_up(checkpoint, files).batch()


def _catch_up(checkpoint: Checkpoint, files: Sequence[HistoryFile]) -> Checkpoint:
    """Return the checkpoint after all files were read. A file stays current until a newer one exists at its path.

    If a path has no file any more, no position is forgotten: its file system may not be mounted.
    """
    existing = {file.name for file in files if file.name}
    newest = {str(file.history): file.name for file in files if file.path == file.history}
    known = {path: name for path, name in checkpoint.current.items() if path in newest}
    current = known | {path: name for path, name in newest.items() if name}
    if existing.issuperset(current.values()):
        kept = {name: size for name, size in checkpoint.files.items() if name in existing}
        checkpoint = msgspec.structs.replace(checkpoint, files=kept)
    return msgspec.structs.replace(checkpoint, current=current)


def _select(source: Source, checkpoint: Checkpoint, file: HistoryFile, ads: Sequence[JobAd]) -> Sequence[JobAd]:
    """Return the ads to process. ``earliest`` only applies to a path until a run has caught up with it."""
    if source.again:
        return select_ads(source, ads)
    if str(file.history) in checkpoint.current or checkpoint.earliest is None:
        return ads
    earliest = checkpoint.earliest
    return [ad for ad in ads if not ends_before(source.config, ad, earliest)]


def _find(paths: Sequence[Path]) -> list[HistoryFile]:
    """Return the files, for each path the rotated ones first."""
    found: list[HistoryFile] = []
    for path in paths:
        rotated = map(Path, sorted(glob.glob(f"{glob.escape(str(path))}.*")))  # noqa: PTH207 the path is no pattern
        found += [HistoryFile(each, _fingerprint(each), path) for each in (*rotated, path)]
    return found


def _fingerprint(path: Path) -> str:
    head = _bytes(path, 0, _HEAD)
    banner = head.find(_END)
    end = head.find(b"\n", banner + 1) if banner >= 0 else -1
    if end < 0:  # the first ad is incomplete, is longer than the head, or is none, as in a compressed file
        is_long_ad = len(head) == _HEAD and _ATTRIBUTE.match(head) is not None
        return hashlib.sha256(head).hexdigest()[:32] if is_long_ad else ""
    return hashlib.sha256(head[:end]).hexdigest()[:32]


def _bytes(path: Path, start: int, count: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(start)
            return file.read(count)
    except FileNotFoundError as error:
        if path.parent.is_dir():
            return b""
        raise AuditordError(f"cannot read the history file {path}: there is no folder {path.parent}") from error
    except OSError as error:
        raise AuditordError(f"cannot read the history file {path}: {error}") from error


def _read(source: Source, file: HistoryFile, start: int) -> Piece:
    """Return the complete ads after ``start``; a piece of size 0 if there are none.

    Raises:
        AuditordError: the file cannot be read, or another file has got its path.
    """
    count = _PIECE
    while True:
        text = _bytes(file.path, start, count)
        size = whole_ads(text)
        if size or len(text) < count:
            break
        count *= 2  # the ad is longer than a piece
    if text and _fingerprint(file.path) != file.name:
        raise AuditordError(f"{file.path} was rotated while it was read; the next run reads the rest")
    texts = [ad.decode(errors="replace") for ad in split_ads(text[:size])]
    columns = list_columns(source.config)
    return Piece([ad for text in texts for ad in read_ads(source.evaluator, text, columns)], size)
