"""HTCondor's ``PER_JOB_HISTORY_DIR`` as a source: a file per job, which its reader has to remove.

A file is removed by the run after the one that kept its record: then the spool remembers it, whatever has happened in
between. A dry run removes nothing.
"""

import hashlib
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
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
from auditord_hookspecs.folders import SharedFolder, UnsafePath
from auditord_hookspecs.mapping import Row

_CHUNK: Final = 1_000
_LONGEST: Final = 16 << 20
_REMEMBERED: Final = timedelta(days=3650)
"""Until it is removed a file must not be taken for a new one, and it may be there for long if removing fails."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file.

    Args:
        name: of the file.
        key: its name and what is in it: two jobs may use one file name, one after the other.
        row: its ad; None if it is none.
        text: what is in it.
    """

    name: str
    key: str
    row: Row | None
    text: str


async def collect_folder(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the files that are there.

    Raises:
        AuditordError: the folder or a file cannot be read, or a file cannot be removed.
    """
    if config.per_job_history_dir is None:
        return
    with _opened(config.per_job_history_dir) as folder:
        async for batch in _collect(config, context, folder):
            yield batch


async def _collect(config: HTCondorConfig, context: CollectorContext, folder: SharedFolder) -> AsyncIterator[Batch]:
    remaining = iter(await to_thread.run_sync(_list, folder))
    while chunk := list(islice(remaining, _CHUNK)):
        files, refused = await to_thread.run_sync(_read, config, folder, chunk)
        for unsafe in refused:
            context.log.error("%s", unsafe)
        known = await context.seen([file.key for file in files])
        if context.window is None and context.job is None:
            if not context.dry_run:
                await to_thread.run_sync(_remove, folder, [file.name for file in files if file.key in known])
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
    return Quarantined(file.key, {"ad": file.text}, f"{file.name} holds no ClassAd")


@contextmanager
def _opened(path: Path) -> Generator[SharedFolder, None, None]:
    try:
        with SharedFolder.opened(path) as folder:
            yield folder
    except OSError as error:
        raise AuditordError(f"cannot read PER_JOB_HISTORY_DIR {path}: {error}") from error


def _list(folder: SharedFolder) -> list[str]:
    """The files by name; HTCondor writes under another name (``.history.…``) and renames."""
    return sorted(name for name in folder.names() if name.startswith("history."))


def _read(config: HTCondorConfig, folder: SharedFolder, names: Sequence[str]) -> tuple[list[JobFile], list[UnsafePath]]:
    """The files, and why some of these names stay unread: HTCondor's user makes neither links nor FIFOs there."""
    files: list[JobFile] = []
    refused: list[UnsafePath] = []
    for name in names:
        try:
            files.append(_parsed(config, name, _content(folder, name)))
        except UnsafePath as error:
            refused.append(error)
    return files, refused


def _content(folder: SharedFolder, name: str) -> bytes:
    with folder.open_file(name) as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise UnsafePath(f"{folder.path / name}: is larger than {_LONGEST >> 20} MiB: that is no job's ad; look at it")
    return content


def _parsed(config: HTCondorConfig, name: str, content: bytes) -> JobFile:
    key = f"file/{name}/{hashlib.sha256(content).hexdigest()[:16]}"
    try:
        row = read_row(config, content)
    except InvalidRecord:
        row = None
    return JobFile(name, key, row, content.decode(errors="replace"))


def _remove(folder: SharedFolder, names: Sequence[str]) -> None:
    for name in names:
        try:
            with suppress(FileNotFoundError):
                folder.remove(name)
        except OSError as error:
            raise AuditordError(f"{folder.path / name} is accounted for and cannot be removed: {error}") from error
