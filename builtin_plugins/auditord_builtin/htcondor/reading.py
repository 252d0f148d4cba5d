"""Read a schedd's history since a position, from ``condor_history``, history files, or one file per job."""

import glob
import hashlib
import re
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from auditord_builtin.htcondor.ads import JobAd, ad_name, can_stop, split_ads, whole_ads
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import classify, ends_before, select_ads
from auditord_builtin.htcondor.evaluation import read_ad, read_ads
from auditord_builtin.htcondor.query import Query, Source, list_columns, run_query_around
from auditord_hookspecs import AuditordError, Batch, CollectorContext
from auditord_hookspecs.folders import SharedFolder, UnsafePath, open_regular
from auditord_hookspecs.outcomes import restore

ANCHORS: Final = 50
"""The number of ads to remember. An answer that contains one of them has no gap, and may stop at the last one."""

_WITNESSES: Final = 100

_FEWEST_READ: Final = 10_000
"""The number of ads that a schedd reads at least: the lowest default of HISTORY_HELPER_MAX_HISTORY."""

_GAP: Final = (
    "its answer may have a gap, since it does not reach the last ads that were read: raise HISTORY_HELPER_MAX_HISTORY"
    " there, or read its files with history_paths; the jobs of the answer were accounted for"
)
_EMPTY: Final = (
    "its history is empty, but was not before; if that is right, this error stops when the next job leaves its queue"
)


class Position(msgspec.Struct, frozen=True):
    """The position in one schedd's history.

    Args:
        earliest: jobs that ended before this are ignored if the first reading finds them.
        anchors: names of the newest ads, newest first.
        until: the time of the last reading without a gap; None if there was none.
    """

    earliest: datetime
    anchors: tuple[str, ...] = ()
    until: datetime | None = None

    @property
    def first(self) -> bool:
        """True until a reading without a gap."""
        return self.until is None

    def after(self, names: Sequence[str], now: datetime) -> "Position":
        """Return the position after a complete reading. ``names`` are the names of the answer's ads, newest first.

        An empty history does not count as read, since an answer that was truncated to nothing looks the same.
        """
        anchors = tuple(dict.fromkeys((*names, *self.anchors)))[:ANCHORS]
        return Position(self.earliest, anchors, now if anchors else None)


class Checkpoint(msgspec.Struct, frozen=True):
    """The state between runs. Only ``schedds`` is used without ``history_paths``.

    Args:
        schedds: the position in each schedd's history, by name.
        files: the number of bytes read of each file, by the fingerprint of the file's first ad.
        earliest: as in a position.
        current: the fingerprint of the file to which HTCondor was appending, by path, once a run has read all files to
            their ends.
    """

    schedds: dict[str, Position]
    files: dict[str, int] = {}
    earliest: datetime | None = None
    current: dict[str, str] = {}

    def batch(self, batch: Batch | None = None) -> Batch:
        """Return the batch, or an empty one, with this checkpoint."""
        return replace(batch or Batch(), checkpoint=msgspec.to_builtins(self))

    def with_schedd(self, name: str, position: Position) -> "Checkpoint":
        """Return a copy of the checkpoint with a schedd's new position."""
        return msgspec.structs.replace(self, schedds={**self.schedds, name: position})


class Answer(msgspec.Struct, frozen=True):
    """A schedd's answer.

    Args:
        ads: the ads to process, newest first.
        unreadable: lines that belong to no ad.
        names: the names of all ads in the answer, newest first.
        doubt: why the answer may be incomplete; None if it is complete.
        replaced: True if the answer contains no ad that was read before, because the history was rotated or restarted.
    """

    ads: Sequence[JobAd]
    unreadable: Sequence[str]
    names: Sequence[str]
    doubt: str | None
    replaced: bool = False


async def read_new(source: Source, schedd: str, position: Position) -> Answer:
    """Read the ads that were added to the history since the position."""
    config = source.config
    only_newest = position.first and position.earliest >= source.context.now() - timedelta(seconds=1)
    # Stop at the oldest usable anchor, so that the answer contains the newer ones.
    usable = [name for name in position.anchors if can_stop(name)]
    query = Query(schedd, usable[-1] if len(usable) > 1 else None, ANCHORS if only_newest else None)
    printed = await run_query_around(source, query)
    if query.stop_at is not None:
        newer = position.anchors[: position.anchors.index(query.stop_at)]
        if not set(names_of(config, printed.ads)).issuperset(newer):  # a copy of the anchor may have ended the answer
            printed = await run_query_around(source, replace(query, stop_at=None))
    ads, names = printed.ads, names_of(config, printed.ads)
    # New ads can be on both sides of a known one: a schedd that crashed appends the same ad again, after other jobs.
    anchors = set(position.anchors)
    known = {place for place, name in enumerate(names) if name in anchors}
    if known:
        new = [ad for place, ad in enumerate(ads[: max(known)]) if place not in known]
        return Answer(new, printed.unreadable, names, doubt=None)
    if position.first:
        # Do not filter each ad by its end, since a job can stay in the queue for days after it ended.
        within = [number for number, ad in enumerate(ads, 1) if not ends_before(config, ad, position.earliest)]
        ads = ads[: max(within, default=0)]
    if not names and position.anchors:  # an answer that was truncated to nothing looks the same
        return Answer(ads, printed.unreadable, names, _EMPTY)
    if position.first:
        whole = only_newest or await _reaches(source, schedd, printed.ads, position.earliest)
    else:  # the ends of its jobs prove nothing: an answer that follow_references so far back would contain an anchor
        whole = await _is_everything(source, schedd, printed.ads)
    return Answer(ads, printed.unreadable, names, None if whole else _GAP, replaced=bool(position.anchors))


async def read_all(source: Source, schedd: str, since: datetime) -> Answer:
    """Read the whole history. ``doubt`` is set if it may not reach back to ``since``."""
    printed = await run_query_around(source, Query(schedd))
    whole = await _reaches(source, schedd, printed.ads, since)
    return Answer(printed.ads, printed.unreadable, names_of(source.config, printed.ads), None if whole else _GAP)


def names_of(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[str]:
    """Return the ads' names, in the same order."""
    return [ad_name(ad, epochs=config.epochs) for ad in ads]


async def _reaches(source: Source, schedd: str, ads: Sequence[JobAd], moment: datetime) -> bool:
    """Return True if the answer reaches back to ``moment``, or to the beginning of the history."""
    witnesses, before = ads[-_WITNESSES:], moment - source.config.overlap
    if len(witnesses) == _WITNESSES and all(ends_before(source.config, ad, before) for ad in witnesses):
        return True
    return await _is_everything(source, schedd, ads)


async def _is_everything(source: Source, schedd: str, ads: Sequence[JobAd]) -> bool:
    """Return True if the history contains only these ads.

    A schedd that does not support ``oldest_first`` returns its newest ad. Then only the number of ads decides.
    """
    probe = (await run_query_around(source, Query(schedd, limit=1, oldest_first=True))).ads
    if not ads or not probe:
        return not ads and not probe
    names = names_of(source.config, ads)
    found = names_of(source.config, probe)[0]
    if found == names[-1]:
        return True
    misunderstood = found == names[0] or (found not in names and _status_time(probe[0]) > _status_time(ads[0]))
    return misunderstood and len(ads) < _FEWEST_READ


def _status_time(ad: JobAd) -> int:
    text = ad.row.get("EnteredCurrentStatus", "")
    return int(text) if text.isdecimal() else 0


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
    if not again:
        _warn_of_lost_files(context, checkpoint, found)
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


def _warn_of_lost_files(context: CollectorContext, checkpoint: Checkpoint, found: Sequence[HistoryFile]) -> None:
    """Warn if a file that was current in the last run has been deleted, which loses the jobs appended since."""
    existing = {file.name for file in found}
    for path, name in checkpoint.current.items():
        if name not in existing:
            context.log.warning(
                "%s: its history contains no job that was read before: if it was rotated, jobs may be missing; run "
                "more often, or raise MAX_HISTORY_ROTATIONS or MAX_HISTORY_LOG",
                path,
            )


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


_CHUNK: Final = 1_000
_LONGEST: Final = 16 << 20
_REMEMBERED: Final = timedelta(days=30)
"""The time for which a file that could not be removed does not count as new. After that it is sent again: a no-op."""


class JobFile(msgspec.Struct, frozen=True):
    """A job's file. The key contains a hash of the text, since a later job can reuse a file name."""

    name: str
    key: str
    ad: JobAd


async def collect_folder(source: Source) -> AsyncIterator[Batch]:
    """Collect the jobs in ``per_job_history_dir``, and remove the files that earlier runs accounted for.

    Raises:
        AuditordError: the folder or a file cannot be read, or a file cannot be removed.
    """
    context, path = source.context, source.config.per_job_history_dir
    if path is None:
        return
    with _open_folder(path) as folder:
        remaining = iter(await to_thread.run_sync(_list, folder))
        while chunk := list(islice(remaining, _CHUNK)):
            texts, refused = await to_thread.run_sync(_read_files, folder, chunk)
            files = await to_thread.run_sync(_parse_files, source, texts, abandon_on_cancel=True)
            for unsafe in refused:
                context.log.error("%s", unsafe)
            if source.again:
                yield await classify(source, select_ads(source, [file.ad for file in files]))
                continue
            known = await context.seen([file.key for file in files])
            if not context.dry_run:
                await to_thread.run_sync(_remove, folder, [file.name for file in files if file.key in known])
            new = [file for file in files if file.key not in known]
            batch = await classify(source, [file.ad for file in new])
            until = context.now() + _REMEMBERED
            yield replace(batch, seen={**batch.seen, **dict.fromkeys((file.key for file in new), until)})


@contextmanager
def _open_folder(path: Path) -> Generator[SharedFolder, None, None]:
    try:
        with SharedFolder.opened(path) as folder:
            yield folder
    except OSError as error:
        raise AuditordError(f"cannot read PER_JOB_HISTORY_DIR {path}: {error}") from error


def _list(folder: SharedFolder) -> list[str]:
    """Return the sorted file names. While HTCondor writes a file, its name begins with ``.history.``."""
    return sorted(name for name in folder.names() if name.startswith("history."))


def _read_files(folder: SharedFolder, names: Sequence[str]) -> tuple[dict[str, bytes], list[UnsafePath]]:
    """Return the contents by name, and errors for unsafe files. HTCondor creates neither links nor FIFOs there."""
    texts: dict[str, bytes] = {}
    refused: list[UnsafePath] = []
    for name in names:
        try:
            with folder.open_file(name) as file:
                content = file.read(_LONGEST + 1)
        except UnsafePath as error:
            refused.append(error)
            continue
        if len(content) <= _LONGEST:
            texts[name] = content
        else:
            text = f"{folder.path / name}: is larger than {_LONGEST >> 20} MiB: that is not a job's ad; check it"
            refused.append(UnsafePath(text))
    return texts, refused


def _parse_files(source: Source, texts: Mapping[str, bytes]) -> list[JobFile]:
    columns = list_columns(source.config)
    return [
        JobFile(
            name,
            f"file/{name}/{hashlib.sha256(content).hexdigest()[:16]}",
            read_ad(source.evaluator, content.decode(errors="replace"), columns),
        )
        for name, content in texts.items()
    ]


def _remove(folder: SharedFolder, names: Sequence[str]) -> None:
    for name in names:
        try:
            with suppress(FileNotFoundError):
                folder.remove(name)
        except OSError as error:
            raise AuditordError(f"{folder.path / name} is accounted for, but cannot be removed: {error}") from error
