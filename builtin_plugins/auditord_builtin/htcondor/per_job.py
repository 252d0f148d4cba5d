"""HTCondor's ``PER_JOB_HISTORY_DIR`` as a source: a file per job, which its reader has to remove.

A file is removed by the run after the one that kept its record: then the spool remembers it, whatever has happened in
between. A dry run removes nothing.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.files import read_row
from auditord_builtin.htcondor.judging import judge, wanted_again
from auditord_hookspecs import AuditordError, Batch, CollectorContext, InvalidRecord, Quarantined
from auditord_hookspecs.mapping import Row

_CHUNK: Final = 1_000
_REMEMBERED: Final = timedelta(days=3650)
"""Until it is removed a file must not be taken for a new one, and it may be there for long if removing fails."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file.

    Args:
        path: where it is.
        key: its name and what is in it: two jobs may use one file name, one after the other.
        row: its ad; None if it is none.
        text: what is in it.
    """

    path: Path
    key: str
    row: Row | None
    text: str


async def collect_folder(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the files that are there.

    Raises:
        AuditordError: the folder or a file cannot be read, or a file cannot be removed.
    """
    paths = await to_thread.run_sync(_list, config.per_job_history_dir)
    remaining = iter(paths)
    while chunk := list(islice(remaining, _CHUNK)):
        files = await to_thread.run_sync(_read, config, chunk)
        known = await context.seen([file.key for file in files])
        if context.window is None and context.job is None:
            if not context.dry_run:
                await to_thread.run_sync(_remove, [file.path for file in files if file.key in known])
            yield await _judged(config, context, [file for file in files if file.key not in known])
        else:
            rows = [file.row for file in files if file.row is not None]
            yield await judge(config, context, wanted_again(config, context, rows))


async def _judged(config: HTCondorConfig, context: CollectorContext, files: Sequence[JobFile]) -> Batch:
    batch = await judge(config, context, [file.row for file in files if file.row is not None])
    until = context.now() + _REMEMBERED
    return replace(
        batch,
        quarantined=[*batch.quarantined, *(_broken(file) for file in files if file.row is None)],
        seen={**batch.seen, **dict.fromkeys((file.key for file in files), until)},
    )


def _broken(file: JobFile) -> Quarantined:
    return Quarantined(file.key, {"ad": file.text}, f"{file.path.name} holds no ClassAd")


def _list(folder: Path | None) -> list[Path]:
    """The files by name; HTCondor writes under another name (``.history.…``) and renames."""
    try:
        return [] if folder is None else sorted(path for path in folder.iterdir() if path.name.startswith("history."))
    except OSError as error:
        raise AuditordError(f"cannot read PER_JOB_HISTORY_DIR {folder}: {error}") from error


def _read(config: HTCondorConfig, paths: Sequence[Path]) -> list[JobFile]:
    try:
        return [_parsed(config, path, path.read_bytes()) for path in paths]
    except OSError as error:
        raise AuditordError(f"cannot read a file of PER_JOB_HISTORY_DIR: {error}") from error


def _parsed(config: HTCondorConfig, path: Path, content: bytes) -> JobFile:
    key = f"file/{path.name}/{hashlib.sha256(content).hexdigest()[:16]}"
    try:
        row = read_row(config, content)
    except InvalidRecord:
        row = None
    return JobFile(path, key, row, content.decode(errors="replace"))


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise AuditordError(f"{path} is accounted for and cannot be removed: {error}") from error
