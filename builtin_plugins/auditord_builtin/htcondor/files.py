"""History files as a source: they are read on from where the last run stopped, whatever they are called by then.

HTCondor appends an ad and then a line ``*** …``, and from time to time renames the file (``history.20260329T120000``)
and begins a new one. A file is known by its first ad, which never changes, so neither a new name nor a copy matters.
"""

import glob
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anyio import to_thread
from msgspec.structs import replace

from auditord_builtin.htcondor.ads import JobAd, split_ads, whole_ads
from auditord_builtin.htcondor.classifying import classify, wanted_again
from auditord_builtin.htcondor.conversion import ended_before
from auditord_builtin.htcondor.evaluation import read_ads
from auditord_builtin.htcondor.query import Source, wanted_columns
from auditord_builtin.htcondor.reading import Checkpoint
from auditord_hookspecs import AuditordError, Batch, CollectorContext
from auditord_hookspecs.folders import open_regular
from auditord_hookspecs.outcomes import restore

_PIECE: Final = 8 * 1024**2
_HEAD: Final = 1024**2
_END: Final = b"\n***"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file: its jobs, the oldest first, and its number of bytes."""

    ads: Sequence[JobAd]
    size: int


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One file.

    Args:
        path: where it is.
        name: the fingerprint of its first ad; empty as long as it has none.
        current: the configured path, if HTCondor appends to this file and it is no rotated one.
    """

    path: Path
    name: str
    current: str | None = None


async def collect_files(source: Source) -> AsyncIterator[Batch]:
    """Account for what was appended since the last run, or for the window that is to be collected again.

    Raises:
        AuditordError: a file cannot be read.
    """
    config, context = source.config, source.context
    checkpoint = restore(context.checkpoint or {"schedds": {}}, Checkpoint)
    again = source.again
    if checkpoint.earliest is None and not again:
        checkpoint = replace(checkpoint, earliest=config.earliest_datetime or context.now())
        yield checkpoint.batch()
    there = await to_thread.run_sync(_find, config.history_paths)
    for file in there:
        if not file.name and not file.path.exists():  # HTCondor makes it for the first job that leaves the queue
            context.log.warning("%s does not exist yet: no job has left the queue, or the path is wrong", file.path)
    found = [file for file in there if file.name]
    if not again:
        _warn_of_lost_files(context, checkpoint, found)
    for number, file in enumerate(found, start=1):
        done = 0 if again else checkpoint.files.get(file.name, 0)
        while (piece := await to_thread.run_sync(_read, source, file.path, done, abandon_on_cancel=True)).size:
            done += piece.size
            checkpoint = replace(checkpoint, files={**checkpoint.files, file.name: done})
            batch = await classify(source, _chosen(source, checkpoint, piece.ads))
            yield batch if again else checkpoint.batch(batch)
        context.report_progress(number / len(found))
    if not again:
        yield _caught_up(checkpoint, found).batch()


def _warn_of_lost_files(context: CollectorContext, checkpoint: Checkpoint, found: Sequence[HistoryFile]) -> None:
    """Say that the file which was being written in the last run is gone, and with it what came after that run."""
    there = {file.name for file in found}
    for path, name in checkpoint.current.items():
        if name not in there:
            context.log.warning(
                "%s: its history holds nothing that was read before: if it was rotated, jobs may be missing; run more "
                "often, or raise MAX_HISTORY_ROTATIONS or MAX_HISTORY_LOG",
                path,
            )


def _caught_up(checkpoint: Checkpoint, found: Sequence[HistoryFile]) -> Checkpoint:
    """All was read. Where a new file is not there yet, the one that is known last remains the current one."""
    there = {file.name for file in found}
    current = {path: name for path, name in checkpoint.current.items() if name in there}
    current |= {file.current: file.name for file in found if file.current is not None}
    files = {name: size for name, size in checkpoint.files.items() if name in there}
    return replace(checkpoint, files=files, current=current, caught_up=True)


def _chosen(source: Source, checkpoint: Checkpoint, ads: Sequence[JobAd]) -> Sequence[JobAd]:
    """Ads that matter; whatever is appended after the first run does, also if the job had ended long before."""
    if source.again:
        return wanted_again(source, ads)
    if checkpoint.caught_up or checkpoint.earliest is None:
        return ads
    earliest = checkpoint.earliest
    return [ad for ad in ads if not ended_before(source.config, ad, earliest)]


def _find(paths: Sequence[Path]) -> list[HistoryFile]:
    """The files, rotated ones first."""
    found: list[HistoryFile] = []
    for path in paths:
        rotated = map(Path, sorted(glob.glob(f"{glob.escape(str(path))}.*")))  # noqa: PTH207 the path is no pattern
        found += [HistoryFile(each, _fingerprint(each)) for each in rotated]
        found.append(HistoryFile(path, _fingerprint(path), str(path)))
    return found


def _fingerprint(path: Path) -> str:
    head = _bytes(path, 0, _HEAD)
    banner = head.find(_END)
    end = head.find(b"\n", banner + 1)
    return hashlib.sha256(head[:end]).hexdigest()[:32] if banner >= 0 and end >= 0 else ""


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


def _read(source: Source, path: Path, start: int) -> Piece:
    """The next piece of a file, up to the end of an ad; nothing if no ad has ended since."""
    count = _PIECE
    while True:
        text = _bytes(path, start, count)
        size = whole_ads(text)
        if size or len(text) < count:
            break
        count *= 2  # one ad is longer than a piece
    texts = [ad.decode(errors="replace") for ad in split_ads(text[:size])]
    columns = wanted_columns(source.config)
    return Piece([ad for text in texts for ad in read_ads(source.evaluator, text, columns)], size)
