"""History files as a source: they are read on from where the last run stopped, whatever they are called by then.

HTCondor appends an ad and then a line ``*** …``, and from time to time renames the file (``history.20260329T120000``)
and begins a new one. A file is known by its first ad, which never changes, so neither a new name nor a copy matters.
"""

import glob
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import parse_ad, row_of_ad, split_ads
from auditord_builtin.htcondor.checkpoint import Checkpoint
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import ended_at
from auditord_builtin.htcondor.judging import judge, wanted_again
from auditord_builtin.htcondor.query import wanted_columns
from auditord_hookspecs import AuditordError, Batch, CollectorContext, InvalidRecord
from auditord_hookspecs.folders import open_regular
from auditord_hookspecs.mapping import Row

_PIECE: Final = 8 * 1024**2
_HEAD: Final = 1024**2
_END: Final = b"\n***"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file.

    Args:
        rows: its ads, the oldest first.
        unreadable: what is no ad.
        size: how many bytes it has.
    """

    rows: Sequence[Row]
    unreadable: Sequence[str]
    size: int


async def collect_files(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for what was appended since the last run, or for the window that is to be collected again.

    Raises:
        AuditordError: a file cannot be read.
    """
    checkpoint = Checkpoint.from_json(context.checkpoint)
    again = context.window is not None or context.job is not None
    if checkpoint.earliest is None and not again:
        checkpoint = replace(checkpoint, earliest=config.earliest_datetime or context.now())
        yield Batch(checkpoint=checkpoint.to_json())
    found = await to_thread.run_sync(_find, config.history_paths)
    for number, (path, name) in enumerate(found, start=1):
        done = 0 if again else checkpoint.files.get(name, 0)
        while (piece := await to_thread.run_sync(_read, config, path, done)).size:
            done += piece.size
            checkpoint = replace(checkpoint, files={**checkpoint.files, name: done})
            rows = _chosen(config, context, checkpoint, piece.rows)
            batch = await judge(config, context, rows, piece.unreadable)
            yield batch if again else replace(batch, checkpoint=checkpoint.to_json())
        context.report_progress(number / len(found))
    if not again:
        kept = {name: size for name, size in checkpoint.files.items() if name in {each for _, each in found}}
        yield Batch(checkpoint=replace(checkpoint, files=kept, caught_up=True).to_json())


def _chosen(
    config: HTCondorConfig, context: CollectorContext, checkpoint: Checkpoint, rows: Sequence[Row]
) -> Sequence[Row]:
    """Ads that matter; whatever is appended after the first run does, also if the job had ended long before."""
    if context.window is not None or context.job is not None:
        return wanted_again(config, context, rows)
    if checkpoint.caught_up or checkpoint.earliest is None:
        return rows
    earliest = checkpoint.earliest
    return [row for row in rows if not _ended_before(config, row, earliest)]


def _ended_before(config: HTCondorConfig, row: Row, moment: datetime) -> bool:
    try:
        end = ended_at(config, row)
    except InvalidRecord:
        return False
    return end is not None and end < moment


def _find(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """The files with the fingerprints of their first ads, rotated ones first; one that is still empty is left out."""
    files = [each for path in paths for each in (*sorted(_rotated(path)), path)]
    named = ((path, _fingerprint(path)) for path in files)
    return [(path, name) for path, name in named if name]


def _rotated(path: Path) -> Iterator[Path]:
    return (Path(name) for name in glob.glob(f"{glob.escape(str(path))}.*"))  # noqa: PTH207 the path is no pattern


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
    except OSError as error:
        raise AuditordError(f"cannot read the history file {path}: {error}") from error


def _read(config: HTCondorConfig, path: Path, start: int) -> Piece:
    """The next piece of a file, up to the end of an ad; nothing if no ad has ended since."""
    count = _PIECE
    while True:
        text = _bytes(path, start, count)
        size = _whole_ads(text)
        if size or len(text) < count:
            break
        count *= 2  # one ad is longer than a piece
    return parse_piece(config, text[:size])


def _whole_ads(text: bytes) -> int:
    """How many bytes of the text are ads with the line that ends them; that line may itself be half written."""
    written = text.rfind(b"\n") + 1
    banner = text.rfind(_END, 0, written - 1)
    return text.find(b"\n", banner + 1) + 1 if banner >= 0 else 0


def parse_piece(config: HTCondorConfig, text: bytes) -> Piece:
    """The ads of a piece."""
    rows: list[Row] = []
    unreadable: list[str] = []
    for ad in split_ads(text):
        try:
            rows.append(read_row(config, ad))
        except InvalidRecord:
            unreadable.append(ad.decode(errors="replace"))
    return Piece(rows, unreadable, len(text))


def read_row(config: HTCondorConfig, ad: bytes) -> Row:
    """The row of an ad in the form of history files.

    Raises:
        InvalidRecord: it is none.
    """
    return row_of_ad(parse_ad(ad.decode(errors="replace")), wanted_columns(config))
